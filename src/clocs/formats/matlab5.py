"""MATLAB files of versions 5 to 7: matrices, texts, cells and structs.

SciPy's reader, written in C, ends the whole process on some damaged files.
"""

from __future__ import annotations

import struct
import zlib
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clocs.errors import UnusableError
from clocs.limits import MAX_BYTES, MAX_TIMES_SMALLER, UNPACKED_FREELY, check_size

MARK = b"MATLAB 5.0 MAT-file"
_HEADER = 128
_MATRIX, _COMPRESSED = 14, 15  # types of elements
_TYPES = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8"}
_TYPES |= {13: "u8", 16: "u1", 17: "u2", 18: "u4"}  # the last three are of text
_TEXTS = {1: "latin-1", 2: "latin-1", 4: "utf-16", 16: "utf-8", 17: "utf-16", 18: "utf-32"}
_CELL, _STRUCT, _OBJECT, _CHAR = 1, 2, 3, 4  # classes of matrices
_CLASSES = {6: "f8", 7: "f4", 8: "i1", 9: "u1", 10: "i2", 11: "u2", 12: "i4", 13: "u4"}
_CLASSES |= {14: "i8", 15: "u8"}
_DEEPEST = 32
_MAX_MATRICES = 1_000_000
_MAX_DIMENSIONS = 32


class Cell(NamedTuple):
    """The matrices of a cell array."""

    items: list[Any]


class Struct(NamedTuple):
    """The fields of each element of an array of structs."""

    records: list[dict[str, Any]]


def read_matlab5(data: bytes, name: str) -> dict[str, Any]:
    """The variables of a file: arrays of numbers or texts, `Cell` and `Struct`; others are skipped.

    Raises:
        UnusableError: truncated, unreadable or beyond the limits.
    """
    return _Reader(data, name).variables()


class _Reader:
    def __init__(self, data: bytes, name: str) -> None:
        self._data, self._name, self._matrices = data, name, 0
        self._order = "<" if data[126:128] == b"IM" else ">"

    def variables(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        total, at = 0, _HEADER
        most = min(max(UNPACKED_FREELY, MAX_TIMES_SMALLER * len(self._data)), MAX_BYTES)
        while at + 8 <= len(self._data):
            kind, content, at = self._element(memoryview(self._data), at)
            if kind == _COMPRESSED:
                unpacked = self._unpacked(content, most - total)
                total += len(unpacked)
                kind, content, _ = self._element(memoryview(unpacked), 0)
            if kind == _MATRIX:
                called, value = self._matrix(content, 0)
                if value is not None:
                    found[called] = value
        return found

    def _unpacked(self, content: memoryview, most: int) -> bytes:
        unpacker = zlib.decompressobj()
        unpacked = unpacker.decompress(content, most + 1)
        check_size(len(unpacked), packed=len(self._data), name=self._name)
        if len(unpacked) > most:
            detail = f"{self._name} unpacks to more than an ECG has"
            raise UnusableError("exceeds limits", detail)
        if not unpacker.eof:
            raise UnusableError("truncated", f"{self._name} breaks off")
        return unpacked

    def _element(self, data: memoryview, at: int) -> tuple[int, memoryview, int]:
        """The type and content of the element at a place, and where the next one is."""
        if at + 8 > len(data):
            raise UnusableError("truncated", f"{self._name} breaks off")
        kind, size = struct.unpack_from(self._order + "II", data, at)
        if kind >> 16:  # at most four bytes, together with their size
            kind, size = kind & 0xFFFF, kind >> 16
            if size > 4:
                raise self._unreadable()
            return kind, data[at + 4 : at + 4 + size], at + 8
        stop = at + 8 + size
        if stop > len(data):
            detail = f"{self._name} has {len(data):,} of {stop:,} bytes"
            raise UnusableError("truncated", detail)
        return kind, data[at + 8 : stop], stop if kind == _COMPRESSED else stop + -size % 8

    def _numbers(self, data: memoryview, at: int) -> tuple[NDArray[Any], int]:
        kind, content, after = self._element(data, at)
        if kind not in _TYPES:
            raise self._unreadable()
        dtype = np.dtype(self._order + _TYPES[kind])
        if len(content) % dtype.itemsize:
            raise self._unreadable()
        return np.frombuffer(content, dtype), after

    def _matrix(self, data: memoryview, depth: int) -> tuple[str, Any]:
        """The name of a matrix and its value; None where it is of no kind that is read."""
        self._matrices += 1
        if depth > _DEEPEST or self._matrices > _MAX_MATRICES:
            detail = f"{self._name} holds structs inside structs without end"
            raise UnusableError("exceeds limits", detail)
        if not len(data):  # how an empty cell is written
            return "", np.zeros((0, 0))
        flags, at = self._numbers(data, 0)
        sizes, at = self._numbers(data, at)
        shape = tuple(map(int, sizes))
        if not len(flags) or not 2 <= len(shape) <= _MAX_DIMENSIONS or min(shape) < 0:
            raise self._unreadable()
        _, letters, at = self._element(data, at)
        called = bytes(letters).decode("latin-1")
        kind = int(flags[0]) & 0xFF
        if kind in _CLASSES:
            values, _ = self._numbers(data, at)
            return called, np.asarray(self._shaped(values, shape), _CLASSES[kind])
        if kind == _CHAR:
            return called, self._texts(data, at, shape)
        if kind == _CELL:
            items, _ = self._inner(data, at, self._count(data, shape), depth)
            return called, Cell(self._in_rows(items, shape))
        if kind in (_STRUCT, _OBJECT):
            return called, self._struct(data, at, shape, depth, named=kind == _OBJECT)
        return called, None

    def _texts(self, data: memoryview, at: int, shape: tuple[int, ...]) -> NDArray[Any]:
        """One text per row of a matrix of characters."""
        kind, content, _ = self._element(data, at)
        if kind not in _TEXTS:
            raise self._unreadable()
        code = _TEXTS[kind]
        if code in ("utf-16", "utf-32"):
            code += "-le" if self._order == "<" else "-be"
        letters = np.array(list(bytes(content).decode(code, "replace")), "U1")
        matrix = self._shaped(letters, shape)
        rows = matrix.reshape(-1, shape[-1]) if matrix.size else np.zeros((0, 0), "U1")
        return np.array(["".join(row) for row in rows.tolist()], dtype=np.str_)

    def _struct(
        self, data: memoryview, at: int, shape: tuple[int, ...], depth: int, *, named: bool
    ) -> Struct:
        if named:  # the name of its class
            *_, at = self._element(data, at)
        width, at = self._numbers(data, at)
        _, letters, at = self._element(data, at)
        size = int(width[0]) if len(width) else 0
        if size < 1:
            raise self._unreadable()
        text = bytes(letters)
        fields = [text[i : i + size].split(b"\0")[0] for i in range(0, len(text), size)]
        names = [field.decode("latin-1") for field in fields]
        count = self._count(data, shape)
        items, _ = self._inner(data, at, count * len(names), depth)
        step = len(names)
        records = [
            dict(zip(names, items[i * step : (i + 1) * step], strict=True)) for i in range(count)
        ]
        return Struct(self._in_rows(records, shape))

    def _inner(self, data: memoryview, at: int, count: int, depth: int) -> tuple[list[Any], int]:
        """So many matrices from a place on."""
        items = []
        for _ in range(count):
            kind, content, at = self._element(data, at)
            if kind != _MATRIX:
                raise self._unreadable()
            items.append(self._matrix(content, depth + 1)[1])
        return items, at

    def _count(self, data: memoryview, shape: tuple[int, ...]) -> int:
        """The number of elements, each of which takes eight bytes at least."""
        count = 1
        for size in shape:
            count *= size
        if 8 * count > len(data):
            raise UnusableError("truncated", f"{self._name} breaks off")
        return count

    def _shaped(self, values: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
        """Values that lie column after column."""
        try:
            return values.reshape(shape, order="F")
        except ValueError:
            raise self._unreadable() from None

    @staticmethod
    def _in_rows(items: list[Any], shape: tuple[int, ...]) -> list[Any]:
        """Items that lie column after column, row after row."""
        return [items[i] for i in np.arange(len(items)).reshape(shape, order="F").ravel()]

    def _unreadable(self) -> UnusableError:
        return UnusableError("unreadable", f"{self._name} is a damaged MATLAB file")
