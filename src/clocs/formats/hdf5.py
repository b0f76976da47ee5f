"""ECGs in HDF5 files: arrays anywhere in them, with what attributes and other datasets say.

Links to other files are not followed, and no dataset is read whose samples lie in another file.
"""

from __future__ import annotations

import io
import math
import mmap
from pathlib import Path
from typing import Any

from clocs.errors import UnusableError
from clocs.formats.array_file import Tree
from clocs.formats.array_reader import ArrayReader
from clocs.formats.base import FileFormat, Part, ReadOptions
from clocs.formats.source import Source, stem
from clocs.limits import check_size
from clocs.recording import Recording

_MAGIC = b"\x89HDF\r\n\x1a\n"
_HEAP = b"GCOL\1\0\0\0"  # how a store of texts of variable length begins
_MAX_ITEMS = 1_000_000
_MAX_DEPTH = 32
_MAX_ATTRIBUTE = 1 << 20  # bytes, or as many of references to texts


def open_hdf5(source: Source, path: str) -> Tree:
    """The arrays of a file, found without reading them.

    Raises:
        UnusableError: exceeds limits.
    """
    import h5py

    disk = source.on_disk(path)
    # By a file of Python's: HDF5 would lock the path for as long as it is open.
    opened = io.BytesIO(source.read(path)) if disk is None else Path(disk).open("rb")  # noqa: SIM115
    try:
        file = h5py.File(opened, "r")
    except BaseException:
        opened.close()
        raise

    def close() -> None:
        file.close()
        opened.close()

    arrays: dict[str, Any] = {}
    attributes: dict[str, dict[str, Any]] = {}
    try:
        _check_heaps(opened, stem(path))
        _walk(file, "", arrays, attributes, stem(path), source.size(path), [0])
    except BaseException:
        close()
        raise
    return Tree(arrays, source.size(path), attributes, close)


def _check_heaps(opened: Any, name: str) -> None:
    """Refuse texts of variable length whose store never ends: HDF5 would read it for ever."""
    if isinstance(opened, io.BytesIO):
        _check_objects(opened.getvalue(), name)
    else:
        with mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            _check_objects(mapped, name)


def _check_objects(data: bytes | mmap.mmap, name: str) -> None:
    at = data.find(_HEAP)
    while at >= 0:
        place, stop = at + 16, at + int.from_bytes(data[at + 8 : at + 16], "little")
        while place + 16 <= min(stop, len(data)):
            number = int.from_bytes(data[place : place + 2], "little")
            size = int.from_bytes(data[place + 8 : place + 16], "little")
            step = 16 + size + -size % 8 if number else size  # number 0 is what is left
            if not 0 < step <= stop - place:
                raise UnusableError("unreadable", f"{name} is damaged: its texts have no end")
            place += step
        at = data.find(_HEAP, at + 1)


def _walk(
    group: Any,
    path: str,
    arrays: dict[str, Any],
    attributes: dict[str, dict[str, Any]],
    name: str,
    packed: int,
    seen: list[int],
) -> None:
    """Collect what lies below a group, by hard links alone."""
    import h5py

    attributes[path] = _attributes(group)
    if path.count("/") > _MAX_DEPTH:
        raise UnusableError("exceeds limits", f"{name} has groups inside groups without end")
    for key in group:
        seen[0] += 1
        if seen[0] > _MAX_ITEMS:
            raise UnusableError("exceeds limits", f"{name} holds more than {_MAX_ITEMS:,} items")
        if key.startswith("#") or not isinstance(group.get(key, getlink=True), h5py.HardLink):
            continue
        below = f"{path}/{key}" if path else key
        item = group[key]
        if isinstance(item, h5py.Group):
            _walk(item, below, arrays, attributes, name, packed, seen)
        elif isinstance(item, h5py.Dataset) and item.shape is not None:
            if item.external or item.is_virtual:
                continue
            if item.chunks:  # is unpacked whole, however little of it is read
                chunk = math.prod(item.chunks) * item.dtype.itemsize
                check_size(chunk, packed=packed, name=name)
            arrays[below] = _Text(item) if _is_text(item) else item
            attributes[below] = _attributes(item)


def _attributes(item: Any) -> dict[str, Any]:
    """Those with a value that can be read; MATLAB's own are none."""
    import h5py

    found = {}
    for key in item.attrs:
        if key.startswith("MATLAB"):
            continue
        try:
            place = item.attrs.get_id(key)
            kind = place.dtype
            if h5py.check_vlen_dtype(kind) is not None and h5py.check_string_dtype(kind) is None:
                continue  # lists, which say nothing here; a damaged one ends the process
            if math.prod(place.shape) * kind.itemsize < _MAX_ATTRIBUTE:
                found[key] = item.attrs[key]
        except (OSError, TypeError, ValueError):  # a type that h5py does not know
            continue
    return found


def _is_text(item: Any) -> bool:
    """Whether MATLAB wrote characters, as numbers of 16 bits."""
    return bool(item.attrs.get("MATLAB_class") == b"char") and item.dtype.kind == "u"


class _Text:
    """Characters that MATLAB has written as one text."""

    def __init__(self, item: Any) -> None:
        self._item = item
        self.shape: tuple[int, ...] = ()
        self.dtype: Any = str

    def __getitem__(self, index: Any) -> str:
        if self._item.size > 10_000:
            return ""
        return "".join(map(chr, self._item[()].ravel().tolist()))


_FILES = ArrayReader("HDF5", open_hdf5)


def _read(source: Source, path: str, options: ReadOptions) -> Recording:
    return _FILES.read(source, path, options)


def _parts(source: Source, path: str, options: ReadOptions) -> list[Part]:
    return _FILES.parts(source, path, options)


def _recognize(head: bytes) -> bool:
    starts = (0, 512, 1024, 2048)
    return not head.startswith(b"MATLAB") and any(head[at : at + 8] == _MAGIC for at in starts)


HDF5 = FileFormat(
    "HDF5",
    ".h5",
    _read,
    other_suffixes=(".hdf5",),
    recognize=_recognize,
    parts=_parts,
    reads_stretches=True,
    may_crash=True,
)
