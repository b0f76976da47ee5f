"""ECGs in MATLAB files: matrices and structs; a `.mat` with a WFDB header beside it is WFDB.

Versions 4 to 7 are read by SciPy, 7.3 is HDF5.
"""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import numpy as np

from clocs.errors import UnusableError
from clocs.formats.array_file import Tree
from clocs.formats.array_reader import ArrayReader
from clocs.formats.base import FileFormat, Part, ReadOptions
from clocs.formats.hdf5 import open_hdf5
from clocs.formats.source import Source, stem
from clocs.limits import MOST_BYTES, MOST_TIMES_SMALLER, UNPACKED_FREELY, check_size
from clocs.recording import Recording

_V5, _V73 = b"MATLAB 5.0 MAT-file", b"MATLAB 7.3 MAT-file"
_COMPRESSED = 15  # the type of an element that is packed
_MOST_ITEMS = 1_000_000


def _open(source: Source, path: str) -> Tree:
    from scipy.io import loadmat

    name = stem(path)
    if source.head(path, len(_V73)) == _V73:
        return open_hdf5(source, path)
    data = source.read(path)
    if data.startswith(_V5):
        data = _unpacked(data, name)
    file: Any = io.BytesIO(data)
    found = loadmat(file, chars_as_strings=True, struct_as_record=True)
    arrays: dict[str, Any] = {}
    for key, value in found.items():
        if not key.startswith("__"):
            _collect(key, value, arrays, name, depth=0)
    return Tree(arrays, packed=source.size(path))


def _unpacked(data: bytes, name: str) -> bytes:
    """The file without compression, which SciPy would undo whatever the size of the result."""
    order = "<" if data[126:128] == b"IM" else ">"
    pieces, at, total = [data[:128]], 128, 0
    most = min(max(UNPACKED_FREELY, MOST_TIMES_SMALLER * len(data)), MOST_BYTES)
    while at + 8 <= len(data):
        kind, size = struct.unpack_from(order + "II", data, at)
        end = at + 8 + size
        if end > len(data):
            raise UnusableError("truncated", f"{name} has {len(data):,} of {end:,} bytes")
        if kind == _COMPRESSED:
            unpacker = zlib.decompressobj()
            unpacked = unpacker.decompress(data[at + 8 : end], most - total + 1)
            total += len(unpacked)
            check_size(total, packed=len(data), name=name)
            if total > most:
                raise UnusableError("exceeds limits", f"{name} unpacks to more than an ECG has")
            if not unpacker.eof:
                raise UnusableError("truncated", f"{name} breaks off")
            pieces.append(unpacked)
        else:
            end += -size % 8
            pieces.append(data[at:end])
        at = end
    return b"".join(pieces)


def _collect(path: str, value: Any, arrays: dict[str, Any], name: str, *, depth: int) -> None:
    """Add the arrays of a variable: its own, or those of a struct's or a cell's fields."""
    if len(arrays) > _MOST_ITEMS or depth > 32:
        raise UnusableError("exceeds limits", f"{name} holds structs inside structs without end")
    if not isinstance(value, np.ndarray):
        return
    if value.dtype.names is not None:
        for number, record in enumerate(value.ravel()):
            below = path if value.size == 1 else f"{path}/{number}"
            for field in value.dtype.names:
                _collect(f"{below}/{field}", record[field], arrays, name, depth=depth + 1)
    elif value.dtype.kind == "O":
        if all(isinstance(one, np.ndarray) and one.dtype.kind == "U" for one in value.ravel()):
            arrays[path] = np.array(
                [str(one.ravel()[0]) if one.size else "" for one in value.ravel()]
            )
            return
        for number, one in enumerate(value.ravel()):
            below = path if value.size == 1 else f"{path}/{number}"
            _collect(below, one, arrays, name, depth=depth + 1)
    elif value.dtype.kind == "U":
        arrays[path] = value.ravel()
    elif value.dtype.kind in "iufb":
        flat = value.ndim == 2 and 1 in value.shape
        arrays[path] = value.ravel() if flat else value


_FILES = ArrayReader("MATLAB", _open)


def _read(source: Source, path: str, options: ReadOptions) -> Recording:
    return _FILES.read(source, path, options)


def _parts(source: Source, path: str, options: ReadOptions) -> list[Part]:
    return _FILES.parts(source, path, options)


def _recognise(head: bytes) -> bool:
    return head.startswith((_V5, _V73))


MATLAB = FileFormat("MATLAB", ".mat", _read, recognise=_recognise, parts=_parts)
