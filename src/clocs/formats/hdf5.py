"""ECGs in HDF5 and MATLAB files: arrays anywhere in them, with what attributes and others say.

Links to other files are not followed, and no dataset is read whose samples lie in another file.
MATLAB 7.3 is HDF5, version 4 is read by SciPy. A `.mat` with a WFDB header is WFDB.
"""

from __future__ import annotations

import io
import math
import mmap
import struct
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from operator import methodcaller
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clocs.errors import UnusableError
from clocs.files import MAX_BYTES, MAX_TIMES_SMALLER, UNPACKED_FREELY, check_size
from clocs.formats.array_files import NamedArrays
from clocs.formats.base import ReadOptions, format_of_several, truncated, unreadable
from clocs.formats.source import Source, stem

_MAGIC = b"\x89HDF\r\n\x1a\n"
_HEAP = b"GCOL\1\0\0\0"  # how a store of texts of variable length begins
_MAX_ITEMS = 1_000_000
_MAX_DEPTH = 32
_MAX_ATTRIBUTE = 1 << 20  # bytes, or as many of references to texts
_V5, _V73 = b"MATLAB 5.0 MAT-file", b"MATLAB 7.3 MAT-file"
_V5_HEADER = 128  # bytes
_MATRIX, _COMPRESSED = 14, 15  # types of elements in version 5
_TYPES = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8"}
_TYPES |= {13: "u8", 16: "u1", 17: "u2", 18: "u4"}  # the last three are of text
_TEXTS = {1: "latin-1", 2: "latin-1", 4: "utf-16", 16: "utf-8", 17: "utf-16", 18: "utf-32"}
_CELL, _STRUCT, _OBJECT, _CHAR = 1, 2, 3, 4  # classes of matrices
_CLASSES = {6: "f8", 7: "f4", 8: "i1", 9: "u1", 10: "i2", 11: "u2", 12: "i4", 13: "u4"}
_CLASSES |= {14: "i8", 15: "u8"}


def _open_hdf5(source: Source, path: str, options: ReadOptions) -> NamedArrays:
    """The arrays of a file, found without reading them.

    Raises:
        UnusableError: exceeds limits.
    """
    import h5py

    disk, name = source.on_disk(path), stem(path)
    arrays: dict[str, Any] = {}
    attributes: dict[str, dict[str, Any]] = {}
    with ExitStack() as stack:
        # By a file of Python's: HDF5 would lock the path for as long as it is open.
        opened: Any = stack.enter_context(
            io.BytesIO(source.read(path)) if disk is None else Path(disk).open("rb")  # noqa: SIM115
        )
        file = stack.enter_context(h5py.File(opened, "r"))
        if disk is None:
            _check_heaps(opened.getvalue(), name)
        else:
            with mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
                _check_heaps(mapped, name)
        for number, (below, item) in enumerate(_walk(file, "")):
            if number > _MAX_ITEMS or below.count("/") > _MAX_DEPTH:
                raise UnusableError("exceeds limits", f"{name} has groups or items without end")
            attributes[below] = _attributes(item)
            if isinstance(item, h5py.Dataset) and item.shape is not None:
                if item.chunks:  # is unpacked whole, however little of it is read
                    chunk = math.prod(item.chunks) * item.dtype.itemsize
                    check_size(chunk, packed=source.size(path), name=name)
                is_text = item.attrs.get("MATLAB_class") == b"char" and item.dtype.kind == "u"
                arrays[below] = _Text(item) if is_text else item
        return NamedArrays(source, path, options, arrays, attributes, stack.pop_all().close)


def _check_heaps(data: bytes | mmap.mmap, name: str) -> None:
    """Refuse texts of variable length whose store never ends: HDF5 would read it for ever."""
    at = data.find(_HEAP)
    while at >= 0:
        place, stop = at + 16, at + int.from_bytes(data[at + 8 : at + 16], "little")
        while place + 16 <= min(stop, len(data)):
            number = int.from_bytes(data[place : place + 2], "little")
            size = int.from_bytes(data[place + 8 : place + 16], "little")
            step = 16 + size + -size % 8 if number else size  # number 0 is what is left
            if not 0 < step <= stop - place:
                raise unreadable(f"{name} is damaged: its texts have no end")
            place += step
        at = data.find(_HEAP, at + 1)


def _walk(group: Any, path: str) -> Iterator[tuple[str, Any]]:
    """The group and all groups and datasets below it, by path, by hard links alone."""
    import h5py

    yield path, group
    for key in group:
        if key.startswith("#") or not isinstance(group.get(key, getlink=True), h5py.HardLink):
            continue
        below, item = f"{path}/{key}" if path else key, group[key]
        if isinstance(item, h5py.Group):
            yield from _walk(item, below)
        elif isinstance(item, h5py.Dataset) and not (item.external or item.is_virtual):
            yield below, item


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


def _is_hdf5(head: bytes) -> bool:
    starts = (0, 512, 1024, 2048)
    return not head.startswith(b"MATLAB") and any(head[at : at + 8] == _MAGIC for at in starts)


def _open_matlab(source: Source, path: str, options: ReadOptions) -> NamedArrays:
    if source.head(path, len(_V73)) == _V73:
        return _open_hdf5(source, path, options)
    data = source.read(path)
    found: dict[str, Any]
    # Version 4 begins with a number, version 5 with four letters; on one damaged file of version 5
    # in 400, SciPy ends the process.
    if 0 in data[:4]:
        from scipy.io import loadmat

        file: Any = io.BytesIO(data)
        found = {key: value for key, value in loadmat(file).items() if not key.startswith("__")}
    else:
        found = _Version5(data, stem(path)).variables()
    arrays: dict[str, Any] = {}
    _flatten("", found, arrays)
    return NamedArrays(source, path, options, arrays)


def _flatten(path: str, value: Any, arrays: dict[str, Any]) -> None:
    """Add arrays by path: a variable's, or those of a struct's or a cell's fields."""
    if isinstance(value, dict):
        for key, inner in value.items():
            _flatten(f"{path}/{key}" if path else key, inner, arrays)
    elif isinstance(value, np.ndarray) and value.dtype.kind in "Uiufb":
        flat = value.dtype.kind == "U" or (value.ndim == 2 and 1 in value.shape)
        arrays[path] = value.ravel() if flat else value


class _Version5:
    """MATLAB files of versions 5 to 7; structs and cells become dictionaries.

    Raises:
        UnusableError: truncated, unreadable or beyond the limits.
    """

    def __init__(self, data: bytes, name: str) -> None:
        self._data, self._name, self._matrices = data, name, 0
        self._order = "<" if data[126:128] == b"IM" else ">"
        self._damaged = unreadable(f"{name} is a damaged MATLAB file")

    def variables(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        room = min(max(UNPACKED_FREELY, MAX_TIMES_SMALLER * len(self._data)), MAX_BYTES)
        try:
            for kind, content in self._elements(memoryview(self._data)[_V5_HEADER:]):
                element = kind, content
                if kind == _COMPRESSED:
                    unpacker = zlib.decompressobj()
                    unpacked = unpacker.decompress(content, room + 1)
                    room -= len(unpacked)
                    if room < 0:
                        text = f"{self._name} unpacks to more than an ECG has"
                        raise UnusableError("exceeds limits", text)
                    if not unpacker.eof:
                        raise truncated(f"{self._name} breaks off")
                    element = next(self._elements(memoryview(unpacked)))
                if element[0] == _MATRIX:
                    called, value = self._matrix(element[1], 0)
                    found[called] = value
        except StopIteration:
            raise truncated(f"{self._name} breaks off") from None
        return found

    def _elements(self, data: memoryview) -> Iterator[tuple[int, memoryview]]:
        """The type and content of each element."""
        at = 0
        while at + 8 <= len(data):
            kind, size = struct.unpack_from(self._order + "II", data, at)
            start, padding = at + 8, 0 if kind == _COMPRESSED else -size % 8
            if kind >> 16:  # at most four bytes, together with their size
                kind, size, start = kind & 0xFFFF, kind >> 16, at + 4
                padding = 4 - size
                if padding < 0:
                    raise self._damaged
            if start + size > len(data):
                raise truncated(f"{self._name} breaks off")
            yield kind, data[start : start + size]
            at = start + size + padding

    def _numbers(self, elements: Iterator[tuple[int, memoryview]]) -> NDArray[Any]:
        kind, content = next(elements)
        dtype = np.dtype(self._order + _TYPES.get(kind, "V0"))
        if not dtype.itemsize or len(content) % dtype.itemsize:
            raise self._damaged
        return np.frombuffer(content, dtype)

    def _matrix(self, data: memoryview, depth: int) -> tuple[str, Any]:
        """The name of a matrix and its value; None where it is of no kind that is read."""
        self._matrices += 1
        if depth > _MAX_DEPTH or self._matrices > _MAX_ITEMS:
            raise UnusableError("exceeds limits", f"{self._name} holds structs without end")
        if not len(data):  # how an empty cell is written
            return "", np.zeros((0, 0))
        elements = self._elements(data)
        flags, shape = self._numbers(elements), tuple(map(int, self._numbers(elements)))
        if not len(flags) or not 2 <= len(shape) <= _MAX_DEPTH or min(shape) < 0:
            raise self._damaged
        called, kind, value = next(elements)[1], int(flags[0]) & 0xFF, None
        if kind in _CLASSES:
            value = np.asarray(self._shaped(self._numbers(elements), shape), _CLASSES[kind])
        elif kind == _CHAR:
            value = self._texts(*next(elements), shape)
        elif kind in (_CELL, _STRUCT, _OBJECT):
            value = self._fields(elements, shape, depth, kind)
        return bytes(called).decode("latin-1"), value

    def _texts(self, kind: int, content: memoryview, shape: tuple[int, ...]) -> NDArray[Any]:
        """One text per row of a matrix of characters."""
        if kind not in _TEXTS:
            raise self._damaged
        code = _TEXTS[kind]
        if code in ("utf-16", "utf-32"):
            code += "-le" if self._order == "<" else "-be"
        letters = np.array(list(bytes(content).decode(code, "replace")), "U1")
        matrix = self._shaped(letters, shape)
        rows = matrix.reshape(-1, shape[-1]) if matrix.size else np.zeros((0, 0), "U1")
        return np.array(["".join(row) for row in rows.tolist()], dtype=np.str_)

    def _fields(
        self,
        elements: Iterator[tuple[int, memoryview]],
        shape: tuple[int, ...],
        depth: int,
        kind: int,
    ) -> Any:
        """The elements of a cell or struct by number, where there are several, and field."""
        names = [""]
        if kind != _CELL:
            if kind == _OBJECT:  # the name of its class
                next(elements)
            size, text = sum(self._numbers(elements)[:1].tolist()), bytes(next(elements)[1])
            if size < 1:
                raise self._damaged
            fields = [text[i : i + size].split(b"\0")[0] for i in range(0, len(text), size)]
            names = [field.decode("latin-1") for field in fields]
        count = math.prod(shape)
        if count > _MAX_ITEMS:
            raise truncated(f"{self._name} breaks off")
        records: list[dict[str, Any]] = []
        for _ in range(count):
            record: dict[str, Any] = {}
            for name in names:
                element, content = next(elements)
                if element != _MATRIX:
                    raise self._damaged
                record[name] = self._matrix(content, depth + 1)[1]
            records.append(record)
        order = np.arange(count).reshape(shape, order="F").ravel()  # columns lie one by one
        items: list[Any] = [records[i] if kind != _CELL else records[i][""] for i in order]
        if kind == _CELL and all(isinstance(a, np.ndarray) and a.dtype.kind == "U" for a in items):
            return np.array([str(one[0]) if one.size else "" for one in items])
        return items[0] if count == 1 else {str(i): one for i, one in enumerate(items)}

    def _shaped(self, values: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
        """Values that lie column after column."""
        if len(values) != math.prod(shape):
            raise self._damaged
        return values.reshape(shape, order="F")


_IS_MATLAB = methodcaller("startswith", (_V5, _V73))
HDF5 = format_of_several(
    "HDF5", (".h5", ".hdf5"), _open_hdf5, recognize=_is_hdf5, reads_stretches=True, may_crash=True
)
MATLAB = format_of_several("MATLAB", (".mat",), _open_matlab, recognize=_IS_MATLAB, may_crash=True)
