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
from typing import Protocol, TypeVar

from clocs.errors import BusyError, ClocsWarning, StoreError
from clocs.files import cache_folder, locked, private_cache, private_folder, write_atomic, writing
from clocs.formats.addresses import (
    Address,
    MissingError,
    each,
    translate_fsspec_errors,
    remote_file,
)
from clocs.limits import MAX_TABLE_BYTES
from clocs.store.manifest import MANIFEST, Manifest

_BATCH = 1024  # files whose names are in memory
_WAIT_S = 0.2


class _Verified(Protocol):
    def verify(self) -> None: ...


S = TypeVar("S", bound=_Verified)


def open_copy(address: Address, open_folder: Callable[[Path], S]) -> S:
    """A copy of the store at an address, made where there is none yet, or a damaged one.

    Another process that asks for the same one waits for it.

    Args:
        address: Of the store.
        open_folder: Opens a store; raises StoreError where it is damaged.

    Raises:
        StoreError: There is no complete store, or it is damaged or changes meanwhile.
    """

    def check(folder: Path) -> None:
        open_folder(folder).verify()

    folder = _local_copy(address, check)
    try:
        return open_folder(folder)
    except StoreError:  # damaged since it was made
        shutil.rmtree(folder)
        return open_folder(_local_copy(address, check))


def _local_copy(address: Address, check: Callable[[Path], None]) -> Path:
    content = _manifest_at(address)
    folder = stores_folder() / manifest_key(content)
    work = folder.with_name(f"{folder.name}.new")
    while not (folder / MANIFEST).is_file():
        try:
            with locked(work):
                if not (folder / MANIFEST).is_file():  # not made by another process since
                    _fetch(address, content, work / "store", check)
                    shutil.rmtree(folder, ignore_errors=True)
                    (work / "store").rename(folder)
        except BusyError:
            time.sleep(_WAIT_S)
    with suppress(OSError):
        work.rmdir()
    return folder


def stores_folder() -> Path:
    """Where copies of stores are, and stores on their way to an address."""
    cache = cache_folder()
    private_cache(cache)
    private_folder(cache / "stores")
    return cache / "stores"


def work_folder(address: Address) -> Path:
    """Where a store on its way to an address is made, so that it resumes."""
    place = hashlib.sha256(f"{address.scheme}://{address.rest}".encode()).hexdigest()[:16]
    return stores_folder() / f"upload-{place}"


def keep_as_copy(folder: Path) -> None:
    """Let a folder, a store that was uploaded, be the copy that opening it would make."""
    copy = stores_folder() / manifest_key((folder / MANIFEST).read_bytes())
    if not copy.exists():
        folder.rename(copy)


def manifest_key(manifest: bytes) -> str:
    return hashlib.sha256(manifest).hexdigest()[:32]


def _manifest_at(address: Address) -> bytes:
    try:
        return remote_file(address / MANIFEST).read(MAX_TABLE_BYTES)
    except MissingError:
        raise StoreError(
            f"{address} is no complete store (it has no {MANIFEST}); make one with `clocs prepare`"
        ) from None


def _fetch(address: Address, content: bytes, folder: Path, check: Callable[[Path], None]) -> None:
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
        for names in batches(file_names(folder)):
            each(names, lambda name: _get(address, folder, name))
        check(folder)
    except StoreError as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise StoreError(str(error).replace(str(folder), str(address))) from None
    if _manifest_at(address) != content:
        raise StoreError(f"{address} has changed while it was copied; try again")


def _pieces(folder: Path) -> list[Path]:
    """The folders of a store's recordings: its own, or those of its shards."""
    manifest = Manifest.read(folder)
    return [folder / shard.folder for shard in manifest.shards] or [folder]


def file_names(folder: Path) -> Iterator[str]:
    """Every file of a store but its manifest, by what that and those of its shards say."""
    for piece in _pieces(folder):
        manifest = Manifest.read(piece)
        inner = "" if piece == folder else f"{piece.name}/"
        names = [*manifest.files, *([MANIFEST] if inner else [])]
        if any(".." in PurePosixPath(n).parts or PurePosixPath(n).is_absolute() for n in names):
            raise StoreError(f"{piece / MANIFEST} names files outside of the store; do not use it")
        yield from (inner + name for name in names)
        yield from (f"{inner}signals/c/{number}" for number in range(manifest.chunks))


def batches(names: Iterator[str]) -> Iterator[list[str]]:
    while batch := list(islice(names, _BATCH)):
        yield batch


def _get(address: Address, folder: Path, name: str) -> None:
    path = folder / name
    if path.is_file():  # by an attempt that was interrupted
        return
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.partial")
        try:
            with translate_fsspec_errors(address / name):
                system, remote = (address / name).system()
                system.get_file(remote, str(partial))
        except MissingError:
            raise StoreError(
                f"{path} is missing from the store; delete the store and run `clocs prepare` again"
            ) from None
        partial.replace(path)
