"""Stores at an address, used here: a copy of one.

Whoever trains on a store reads all of it, several times, in chunks that are whole files. So it is
copied once, to the cache folder, rather than read over the network each time. The copy is named by
the hash of the manifest: a store that has changed is another copy.
"""

from __future__ import annotations

import hashlib
import shutil
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any

from clocs.errors import BusyError, ClocsWarning, StoreError
from clocs.files import cache_folder, locked, private_cache, private_folder, write_atomic, writing
from clocs.formats import addresses
from clocs.formats.addresses import Address, MissingError
from clocs.limits import MAX_TABLE_BYTES
from clocs.store.manifest import MANIFEST, Manifest, rebuild_hint

_BATCH = 1024  # files whose names are in memory
_WAIT_S = 0.2


def open_copy(address: Address, open_folder: Callable[[Path], Any]) -> Any:
    """A copy of the store at an address, made where there is none yet, or a damaged one.

    Another process that asks for the same one waits for it. `open_folder` opens a folder's store.

    Raises:
        StoreError: There is no complete store, or it is damaged or changes meanwhile.
    """
    folder = _local_copy(address, open_folder)
    try:
        return open_folder(folder)
    except StoreError:  # damaged since it was made
        shutil.rmtree(folder)
        return open_folder(_local_copy(address, open_folder))


def _local_copy(address: Address, open_folder: Callable[[Path], Any]) -> Path:
    content = _manifest_at(address)
    cache = cache_folder()
    private_cache(cache)
    private_folder(cache / "stores")
    folder = cache / "stores" / hashlib.sha256(content).hexdigest()[:32]
    work = folder.with_name(f"{folder.name}.new")
    while not (folder / MANIFEST).is_file():
        try:
            with locked(work):
                if not (folder / MANIFEST).is_file():  # not made by another process since
                    _fetch(address, content, work / "store", open_folder)
                    shutil.rmtree(folder, ignore_errors=True)
                    (work / "store").rename(folder)
        except BusyError:
            time.sleep(_WAIT_S)
    with suppress(OSError):
        work.rmdir()
    return folder


def _manifest_at(address: Address) -> bytes:
    try:
        return addresses.remote_file(address / MANIFEST).read(MAX_TABLE_BYTES)
    except MissingError:
        raise StoreError(
            f"{address} is no complete store (it has no {MANIFEST}); make one with `clocs prepare`"
        ) from None


def _fetch(
    address: Address, content: bytes, folder: Path, open_folder: Callable[[Path], Any]
) -> None:
    private_folder(folder)
    write_atomic(folder / MANIFEST, content)
    try:
        for shard in Manifest.read(folder).shards:
            _get(address, folder, f"{shard.folder}/{MANIFEST}")
        size = sum(
            one.signal_bytes + sum(file.bytes for file in one.files.values())
            for one in map(Manifest.read, _pieces(folder))
        )
        notice = f"{address} ({size / 1e6:,.1f} MB) is copied to {folder.parents[1]}, once"
        warnings.warn(notice, ClocsWarning, stacklevel=2)
        names = _file_names(folder)
        while batch := list(islice(names, _BATCH)):
            addresses.each(batch, lambda name: _get(address, folder, name))
        open_folder(folder).verify()
    except StoreError as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise StoreError(str(error).replace(str(folder), str(address))) from None
    if _manifest_at(address) != content:
        raise StoreError(f"{address} has changed while it was copied; try again")


def _pieces(folder: Path) -> list[Path]:
    """The folders of a store's recordings: its own, or those of its shards."""
    manifest = Manifest.read(folder)
    return [folder / shard.folder for shard in manifest.shards] or [folder]


def _file_names(folder: Path) -> Iterator[str]:
    """Every file of a store but its manifest, by what that and those of its shards say."""
    for piece in _pieces(folder):
        manifest = Manifest.read(piece)
        inner = "" if piece == folder else f"{piece.name}/"
        names = [*manifest.files, *([MANIFEST] if inner else [])]
        if any(".." in PurePosixPath(n).parts or PurePosixPath(n).is_absolute() for n in names):
            raise StoreError(f"{piece / MANIFEST} names files outside of the store; do not use it")
        yield from (inner + name for name in names)
        yield from (f"{inner}signals/c/{number}" for number in range(manifest.chunks))


def _get(address: Address, folder: Path, name: str) -> None:
    path = folder / name
    if path.is_file():  # by an attempt that was interrupted
        return
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.partial")
        try:
            with addresses.translate_fsspec_errors(address / name):
                system, remote = (address / name).system()
                system.get_file(remote, str(partial))
        except MissingError:
            raise StoreError(f"{path} is missing from the store; {rebuild_hint(folder)}") from None
        partial.replace(path)
