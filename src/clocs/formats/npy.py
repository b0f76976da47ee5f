"""ECGs as NumPy arrays: `.npy`, mapped into memory, and `.npz` with the fields beside them.

Pickled objects are never loaded.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from clocs.errors import UnusableError
from clocs.formats.array_file import Tree
from clocs.formats.array_reader import ArrayReader
from clocs.formats.base import FileFormat, Part, ReadOptions
from clocs.formats.samples import decoding
from clocs.formats.source import Source, stem
from clocs.limits import check_size
from clocs.recording import Recording

_MAGIC = b"\x93NUMPY"
_MAX_HEADER = 10_000  # characters, as NumPy's own limit
_MAX_FIELDS = 64 << 20  # bytes of an array of ids, patients or labels


class _Header:
    """What an array's header says, and where its numbers begin."""

    def __init__(self, file: BinaryIO, name: str) -> None:
        version = np.lib.format.read_magic(file)
        readers: dict[tuple[int, int], Callable[..., Any]] = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }
        if version not in readers:
            raise UnusableError("unreadable", f"{name} is of version {version} of NumPy's format")
        self.shape, fortran, self.dtype = readers[version](file, max_header_size=_MAX_HEADER)
        if self.dtype.hasobject:
            detail = f"{name} holds Python objects, which are not loaded; save it as numbers"
            raise UnusableError("unreadable", detail)
        self.order = "F" if fortran else "C"
        self.start = file.tell()
        self.size = int(np.prod(self.shape, dtype=object)) * self.dtype.itemsize

    def array(self, data: bytes, name: str) -> NDArray[Any]:
        """The array, from all bytes of its file."""
        held = len(data) - self.start
        if held < self.size:
            raise UnusableError("truncated", f"{name} has {held:,} of {self.size:,} bytes")
        count = self.size // max(self.dtype.itemsize, 1)
        flat = np.frombuffer(data, self.dtype, count, self.start)
        return flat.reshape(self.shape, order="F" if self.order == "F" else "C")


class _Member:
    """An array in an `.npz`, unpacked where it is indexed."""

    def __init__(self, archive: zipfile.ZipFile, info: zipfile.ZipInfo, name: str) -> None:
        with archive.open(info) as file:
            self._header = _Header(io.BytesIO(file.read(_MAX_HEADER + 64)), name)
        self.shape, self.dtype = self._header.shape, self._header.dtype
        self._archive, self._info, self._name = archive, info, name
        self._held: NDArray[Any] | None = None

    def __getitem__(self, index: Any) -> Any:
        if self._held is None:
            info = self._info
            check_size(info.file_size, packed=info.compress_size, name=self._name)
            self._held = self._header.array(self._archive.read(info), self._name)
        return self._held[index]


def array_from(data: bytes, name: str) -> NDArray[Any]:
    """The array in the bytes of an `.npy` file, without copying them.

    Raises:
        UnusableError: unreadable or truncated.
    """
    with decoding(name, "a NumPy array"):
        return _Header(io.BytesIO(data[: _MAX_HEADER + 64]), name).array(data, name)


def _open_npy(source: Source, path: str) -> Tree:
    name, disk = stem(path), source.on_disk(path)
    size = source.size(path)
    if disk is None:
        return Tree({"": array_from(source.read(path), name)}, packed=size)
    header = _Header(io.BytesIO(source.head(path, _MAX_HEADER + 64)), name)
    if size - header.start < header.size:
        detail = f"{name} has {size - header.start:,} of {header.size:,} bytes"
        raise UnusableError("truncated", detail)
    if not header.size:
        return Tree({"": np.empty(header.shape, header.dtype)}, packed=size)
    order: Any = header.order
    mapped = np.memmap(disk, header.dtype, "r", header.start, header.shape, order)
    return Tree({"": mapped.view(np.ndarray)}, packed=size)


def _open_npz(source: Source, path: str) -> Tree:
    name, disk = stem(path), source.on_disk(path)
    archive = zipfile.ZipFile(disk if disk is not None else io.BytesIO(source.read(path)))
    members = [one for one in archive.infolist() if one.filename.endswith(".npy")]
    arrays: dict[str, Any] = {}
    for info in members:
        if info.flag_bits & 1:
            raise UnusableError("unreadable", f"{name} is encrypted")
        arrays[info.filename.removesuffix(".npy")] = _Member(archive, info, name)
    return Tree(arrays, packed=source.size(path), close=archive.close)


_NPY, _NPZ = ArrayReader("a NumPy array", _open_npy), ArrayReader("NumPy arrays", _open_npz)


def _read_npy(source: Source, path: str, options: ReadOptions) -> Recording:
    return _NPY.read(source, path, options)


def _npy_parts(source: Source, path: str, options: ReadOptions) -> list[Part]:
    return _NPY.parts(source, path, options)


def _read_npz(source: Source, path: str, options: ReadOptions) -> Recording:
    return _NPZ.read(source, path, options)


def _npz_parts(source: Source, path: str, options: ReadOptions) -> list[Part]:
    return _NPZ.parts(source, path, options)


def _is_npy(head: bytes) -> bool:
    return head.startswith(_MAGIC)


def _is_npz(head: bytes) -> bool:
    """Whether a zip begins with an array, by the name in its first local header."""
    end = 30 + int.from_bytes(head[26:28], "little")
    return head.startswith(b"PK\x03\x04") and head[30:end].endswith(b".npy")


NPY = FileFormat(
    "NumPy", ".npy", _read_npy, recognize=_is_npy, parts=_npy_parts, reads_stretches=True
)
NPZ = FileFormat("NumPy archive", ".npz", _read_npz, recognize=_is_npz, parts=_npz_parts)
