"""ECGs in MATLAB files: matrices and structs; a `.mat` with a WFDB header beside it is WFDB.

Version 4 is read by SciPy, 5 to 7 by `matlab5`; 7.3 is HDF5.
"""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from clocs.formats.array_file import Tree
from clocs.formats.array_reader import ArrayReader
from clocs.formats.base import FileFormat, Part, ReadOptions
from clocs.formats.hdf5 import open_hdf5
from clocs.formats.matlab5 import MARK, Cell, Struct, read_matlab5
from clocs.formats.source import Source, stem
from clocs.recording import Recording

_V73 = b"MATLAB 7.3 MAT-file"


def _open(source: Source, path: str) -> Tree:
    name = stem(path)
    if source.head(path, len(_V73)) == _V73:
        return open_hdf5(source, path)
    data = source.read(path)
    # SciPy would crash on some damaged files of version 5, which begin with four letters
    found = _version_4(data) if 0 in data[:4] else read_matlab5(data, name)
    arrays: dict[str, Any] = {}
    for key, value in found.items():
        if not key.startswith("__"):
            _collect(key, value, arrays)
    return Tree(arrays, packed=source.size(path))


def _version_4(data: bytes) -> dict[str, Any]:
    from scipy.io import loadmat

    file: Any = io.BytesIO(data)
    return dict(loadmat(file, chars_as_strings=True))


def _collect(path: str, value: Any, arrays: dict[str, Any]) -> None:
    """Add the arrays of a variable: its own, or those of a struct's or a cell's fields."""
    if isinstance(value, Struct):
        for number, record in enumerate(value.records):
            below = path if len(value.records) == 1 else f"{path}/{number}"
            for field, inner in record.items():
                _collect(f"{below}/{field}", inner, arrays)
    elif isinstance(value, Cell):
        if all(isinstance(one, np.ndarray) and one.dtype.kind == "U" for one in value.items):
            arrays[path] = np.array([str(one[0]) if one.size else "" for one in value.items])
            return
        for number, one in enumerate(value.items):
            _collect(path if len(value.items) == 1 else f"{path}/{number}", one, arrays)
    elif not isinstance(value, np.ndarray):
        return
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


def _recognize(head: bytes) -> bool:
    return head.startswith((MARK, _V73))


MATLAB = FileFormat("MATLAB", ".mat", _read, recognize=_recognize, parts=_parts, may_crash=True)
