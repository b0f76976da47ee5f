"""Stores from here to an address: the manifest goes last, so that nobody opens half of one."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from clocs.errors import SettingError, StoreError
from clocs.formats.addresses import (
    Address,
    MissingError,
    RemoteFile,
    each,
    list_address,
    translate_fsspec_errors,
    remote_file,
)
from clocs.limits import MAX_TABLE_BYTES
from clocs.store.fetch import batches, file_names, manifest_key
from clocs.store.manifest import MANIFEST, Manifest

_UPLOAD = "upload.json"  # there while a store is being uploaded: the hash of its manifest
_READ_ONLY = ("http", "https")


def manifest_at(address: Address) -> Manifest | None:
    """The manifest of the store that is at an address already.

    Raises:
        SettingError: Nothing can be written there.
        StoreError: There are files that are no store.
    """
    _files_of_ours(address)
    with suppress(MissingError), tempfile.TemporaryDirectory() as folder:
        content = remote_file(address / MANIFEST).read(MAX_TABLE_BYTES)
        Path(folder, MANIFEST).write_bytes(content)
        return Manifest.read(Path(folder))
    return None


def _files_of_ours(address: Address) -> dict[str, RemoteFile]:
    if address.scheme in _READ_ONLY:
        raise SettingError(
            f"`out` is {address}, which can only be read; give a folder, or an address such as "
            "s3://bucket/store"
        )
    there = dict(list_address(address))
    if there and not there.keys() & {MANIFEST, _UPLOAD}:
        raise StoreError(f"{address} holds other files; give another address as `out`")
    return there


def upload(folder: Path, address: Address) -> None:
    """Copy a store to an address, its manifest last; what an interrupted upload did is kept.

    Raises:
        StoreError: There is another store, or a part of one.
    """
    content = (folder / MANIFEST).read_bytes()
    there = _files_of_ours(address)
    if MANIFEST in there and there[MANIFEST].read(MAX_TABLE_BYTES) != content:
        raise StoreError(
            f"{address} is already a store of something else; delete it or give another address "
            "as `out`"
        )
    if MANIFEST in there:
        return
    mark = manifest_key(content).encode()
    if _UPLOAD in there and there[_UPLOAD].read(MAX_TABLE_BYTES) != mark:
        raise StoreError(
            f"{address} holds a part of another store, whose upload was interrupted; finish that, "
            "or delete it"
        )
    _put_bytes(address / _UPLOAD, mark)

    def missing(names: Sequence[str]) -> list[str]:
        sizes = {name: (folder / name).stat().st_size for name in names}
        return [n for n in names if n not in there or there[n].size != sizes[n]]

    for names in batches(file_names(folder)):
        each(missing(names), lambda name: _put(folder / name, address / name))
    _put_bytes(address / MANIFEST, content)
    with translate_fsspec_errors(address):
        system, path = (address / _UPLOAD).system()
        system.rm_file(path)


def _put(path: Path, address: Address) -> None:
    with translate_fsspec_errors(address):
        system, remote = address.system()
        system.put_file(str(path), remote)


def _put_bytes(address: Address, content: bytes) -> None:
    with translate_fsspec_errors(address):
        system, remote = address.system()
        system.makedirs(system._parent(remote), exist_ok=True)
        system.pipe_file(remote, content)
