"""Files of named arrays: NumPy's `.npy` and `.npz`; HDF5 and MATLAB files open as the same tree.

A file is a tree of arrays with paths. What lies beside an array or above it (attributes, or arrays
called `rate`, `leads`, `patient_id`, `exam_id` …) speaks about it. Pickled objects are never
loaded; `.npy` is mapped into memory.
"""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clocs.errors import UnusableError
from clocs.formats.arrays import (
    Axes,
    by_meaning,
    find_axes,
    meaning_of,
    metadata_from,
    rate_in,
    recording_from,
    text_of,
    texts_of,
)
from clocs.formats.base import FileFormat, FileMetadata, Part, ReadOptions, decoding, stretch
from clocs.formats.source import Source, stem
from clocs.limits import MAX_TABLE_BYTES, check_size
from clocs.recording import STANDARD_LEADS, Recording, canonical_lead

_FIELDS = frozenset(
    {"rate", "leads", "unit", "patient", "id", "labels", "age", "sex", "recorded_at"}
)
_MIN_SAMPLES = 50
_MAX_PARTS = 10_000_000
_MAX_OF_ALL = 1 << 50  # bytes of all recordings together: only what is packed limits them
_LOOKED_AT = 8  # recordings, and stretches of each, from which a unit is guessed
_BLOCK = 256  # samples of each stretch


@dataclass(frozen=True)
class Tree:
    """The arrays of a file.

    Attributes:
        arrays: By path, with slashes; they have `shape` and `dtype` and are read where indexed.
        packed: Bytes of the file.
        attributes: By the path of the array or folder that has them; '' is the root.
        close: Ends reading.
        looked_at: Some samples of arrays whose unit had to be guessed.
    """

    arrays: Mapping[str, Any]
    packed: int
    attributes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    close: Callable[[], object] = lambda: None
    looked_at: dict[str, NDArray[Any]] = field(default_factory=dict)

    @cached_property
    def fields(self) -> dict[str, list[str]]:
        """Arrays that speak about others, by folder."""
        found: dict[str, list[str]] = {}
        for path in self.arrays:
            if meaning_of(_last(path)) in _FIELDS:
                found.setdefault(_folder(path), []).append(path)
        return found


class Place(NamedTuple):
    """Where a recording is: an array, or several of one lead each, and which row of it."""

    arrays: tuple[str, ...]
    axes: Axes
    row: int | None


def find_places(tree: Tree, options: ReadOptions, *, name: str) -> dict[str, Place]:
    """The recordings of a file by their names in it; '' for the only one.

    Raises:
        UnusableError: unreadable, where no array can be a recording.
    """
    signals = list(_signals(tree, options, name=name))
    for paths, _ in signals:
        array = tree.arrays[paths[0]]
        size = int(np.prod(array.shape, dtype=object)) * array.dtype.itemsize
        check_size(size, packed=tree.packed, name=name, most=_MAX_OF_ALL)
    places: dict[str, Place] = {}
    if sum(_count(tree, one) for one in signals) > _MAX_PARTS:
        raise UnusableError("exceeds limits", f"{name} holds too many recordings")
    for one in signals:
        paths, axes = one
        count = _count(tree, one)
        prefix = _shared(paths) if len(signals) > 1 else ""
        if axes.recording is None:
            places[prefix] = Place(paths, axes, None)
            continue
        names = _row_names(tree, paths[0], count)
        for row, label in enumerate(names):
            whole = f"{prefix}/{label}" if prefix else label
            places[whole if count > 1 or prefix else ""] = Place(paths, axes, row)
    return places


def parts_of(tree: Tree, places: Mapping[str, Place], options: ReadOptions) -> list[Part]:
    """One part per place, with its duration and patient where they are known."""
    facts: dict[str, dict[str, Any]] = {}
    parts = []
    for label, place in places.items():
        path = place.arrays[0]
        if path not in facts:
            held = _fields(tree, path)
            rows = _count(tree, (place.arrays, place.axes))
            facts[path] = {
                key: held[key][()] if _is_rowwise(held[key], rows) else held[key]
                for key in ("rate", "patient")
                if key in held and _is_small(held[key])
            } | {"rows": rows}
        samples = tree.arrays[path].shape[place.axes.sample]
        rate = rate_in(_of_row(facts[path], "rate", place.row)) or options.rate
        patient = text_of(_of_row(facts[path], "patient", place.row))
        parts.append(Part(label, samples / rate if rate else None, patient or None))
    return parts


def read_place(
    tree: Tree, places: Mapping[str, Place], options: ReadOptions, *, name: str
) -> Recording:
    """The recording of `part` in the options.

    Raises:
        UnusableError: unreadable, truncated, nan, implausible or beyond the limits.
    """
    place = places.get(options.part)
    if place is None:
        known = ", ".join(map(repr, list(places)[:5]))
        detail = f"{name} has no recording {options.part!r}; it has {known} …"
        raise UnusableError("unreadable", detail)
    path, label = place.arrays[0], f"{name}_{options.part}" if options.part else name
    array = tree.arrays[path]
    held = _fields(tree, path) | {"rows": _count(tree, (place.arrays, place.axes))}
    said = _said(held, place, patient=name)
    rate = said.rate if said.rate is not None else options.rate
    kept = slice(None)
    if rate is not None and (options.start or options.stop is not None):
        samples = array.shape[place.axes.sample]
        kept = stretch(options, rate=rate, samples=samples, name=label)
    shape = list(array.shape)
    if place.axes.recording is not None:
        shape[place.axes.recording] = 1
    shape[place.axes.sample] = len(range(*kept.indices(shape[place.axes.sample])))
    size = int(np.prod(shape, dtype=object)) * array.dtype.itemsize * len(place.arrays)
    check_size(size, packed=tree.packed, name=label)
    values = _values(tree, place, place.row, kept)
    sample = _sample(tree, place) if said.unit is None and options.unit is None else None
    return recording_from(values, said, options, name=label, sample=sample)


def _values(tree: Tree, place: Place, row: int | None, kept: slice) -> NDArray[Any]:
    """(leads, samples) of one row."""
    axes = place.axes
    if len(place.arrays) > 1:
        return np.stack([np.asarray(tree.arrays[one][kept]) for one in place.arrays])
    array = tree.arrays[place.arrays[0]]
    index: list[Any] = [slice(None)] * len(array.shape)
    index[axes.sample] = kept
    if axes.recording is not None:
        index[axes.recording] = row
    values = np.asarray(array[tuple(index)])
    if axes.lead is None:
        return values.reshape(1, -1)
    return values.T if axes.lead > axes.sample else values


def _sample(tree: Tree, place: Place) -> NDArray[Any]:
    """(leads, some samples) from all over an array, so that its rows agree about their unit."""
    path = place.arrays[0]
    if path in tree.looked_at:
        return tree.looked_at[path]
    rows, _, samples = place.axes.size(tree.arrays[path].shape)
    looked: list[int | None] = [None]
    if place.axes.recording is not None:
        looked = [int(i) for i in np.unique(np.linspace(0, rows - 1, _LOOKED_AT).astype(int))]
    starts = np.unique(np.linspace(0, max(samples - _BLOCK, 0), _LOOKED_AT).astype(int))
    stretches = [slice(int(at), int(at) + _BLOCK) for at in starts]
    blocks = [_values(tree, place, row, one) for row in looked for one in stretches]
    tree.looked_at[path] = np.concatenate(blocks, axis=1)
    return tree.looked_at[path]


def _signals(
    tree: Tree, options: ReadOptions, *, name: str
) -> Iterator[tuple[tuple[str, ...], Axes]]:
    """Arrays that can be recordings, with their axes; those of one lead each taken together."""
    flat: dict[str, list[str]] = {}
    several: list[str] = []
    for path, array in tree.arrays.items():
        kind = getattr(array.dtype, "kind", "")
        if kind not in "iuf" or meaning_of(_last(path)) in _FIELDS or 0 in array.shape:
            continue
        if 2 <= len(array.shape) <= 3 and max(array.shape) >= _MIN_SAMPLES:
            several.append(path)
        elif len(array.shape) == 1 and array.shape[0] >= _MIN_SAMPLES:
            flat.setdefault(_folder(path), []).append(path)
    problem: UnusableError | None = None
    found = False
    for path in several:
        named = _names(by_meaning(_near(tree, path)).get("leads"))
        try:
            axes = find_axes(tree.arrays[path].shape, named, options, name=name)
        except UnusableError as error:
            problem = error
            continue
        found = True
        yield (path,), axes
    if problem is not None and not found:
        raise problem
    for paths in flat.values():
        leads = [one for one in paths if canonical_lead(_last(one)) in STANDARD_LEADS]
        lengths = {tree.arrays[one].shape for one in leads}
        if len(leads) > 1 and len(lengths) == 1:
            yield tuple(leads), Axes(None, None, 0)
        elif not found:
            yield from (((one,), Axes(None, None, 0)) for one in paths)
        found = found or bool(paths)
    if not found:
        detail = f"{name} holds no array of numbers that could be an ECG of (leads, samples)"
        raise UnusableError("unreadable", detail)


def _said(held: Mapping[str, Any], place: Place, *, patient: str) -> FileMetadata:
    plain = held.keys() & (_FIELDS - {"id", "leads"})
    fields = {key: _of_row(held, key, place.row) for key in plain}
    if np.size(fields.get("labels", 0)) > 1:
        del fields["labels"]
    leads: Sequence[str] | None = _names(held.get("leads"))
    if len(place.arrays) > 1 or (leads is None and place.axes.lead is None):
        names = [_last(one) for one in place.arrays]
        leads = names if all(canonical_lead(one) in STANDARD_LEADS for one in names) else leads
    said = metadata_from(fields)
    notices = (place.axes.notice,) if place.axes.notice else ()
    return replace(said, leads=leads, patient=said.patient or patient, notices=notices)


def _names(value: Any) -> list[str] | None:
    """Names of leads; None where the field holds anything else."""
    if value is None:
        return None
    if not _is_small(value):
        return None
    names = texts_of(value[()] if hasattr(value, "shape") else value)
    return names if all(names) and len(set(names)) == len(names) else None


def _near(tree: Tree, path: str) -> dict[str, Any]:
    """Attributes and arrays beside an array and above it, the nearest last."""
    found: dict[str, Any] = {}
    parts = path.split("/")
    for folder in ("/".join(parts[:depth]) for depth in range(len(parts))):
        found |= tree.attributes.get(folder, {})
        beside = (one for one in tree.fields.get(folder, ()) if one != path)
        found |= {_last(one): tree.arrays[one] for one in beside}
    return found | dict(tree.attributes.get(path, {}))


def _fields(tree: Tree, path: str) -> dict[str, Any]:
    near = dict(reversed(_near(tree, path).items()))
    return {key: value for key, value in by_meaning(near).items() if key in _FIELDS}


def _count(tree: Tree, signal: tuple[tuple[str, ...], Axes]) -> int:
    return signal[1].size(tree.arrays[signal[0][0]].shape)[0]


def _is_small(value: Any) -> bool:
    """Whether a field can be read whole."""
    size = int(np.prod(getattr(value, "shape", ()), dtype=object))
    return size * getattr(getattr(value, "dtype", None), "itemsize", 1) <= MAX_TABLE_BYTES


def _is_rowwise(value: Any, rows: int) -> bool:
    shape: tuple[int, ...] = getattr(value, "shape", ())
    return len(shape) >= 1 and shape[0] == rows


def _of_row(held: Mapping[str, Any], key: str, row: int | None) -> Any:
    """A field of one recording: its row where there is one per recording, else the only value."""
    value = held.get(key)
    shape: tuple[int, ...] = getattr(value, "shape", ())
    if value is None or not shape:
        return value[()] if hasattr(value, "shape") and value is not None else value
    if row is not None and shape[0] == held["rows"]:
        return value[row]
    return value[()] if int(np.prod(shape)) == 1 else None


def _row_names(tree: Tree, path: str, count: int) -> list[str]:
    ids = _fields(tree, path).get("id")
    if ids is not None and tuple(getattr(ids, "shape", ())) == (count,) and _is_small(ids):
        names = texts_of(ids[()])
        if all(names) and len(set(names)) == count:
            return names
    return [str(row) for row in range(count)]


def _shared(paths: Sequence[str]) -> str:
    return paths[0] if len(paths) == 1 else _folder(paths[0])


def _last(path: str) -> str:
    return path.rpartition("/")[2]


def _folder(path: str) -> str:
    return path.rpartition("/")[0]


class ArrayReader:
    """Reads files of arrays; the last one of several recordings stays open for the next of them.

    Args:
        what: The format, for messages.
        open_tree: Opens a file of a source.
    """

    def __init__(self, what: str, open_tree: Callable[[Source, str], Tree]) -> None:
        self._what = what
        self._open = open_tree
        self._key: tuple[Any, ...] | None = None
        self._held: tuple[Tree, dict[str, Place]] | None = None

    def __reduce__(self) -> tuple[type[ArrayReader], tuple[object, ...]]:
        return ArrayReader, (self._what, self._open)  # another process opens its own

    def read(self, source: Source, path: str, options: ReadOptions) -> Recording:
        """The recording of a part."""
        with self._opened(source, path, options) as (tree, places):
            return read_place(tree, places, options, name=stem(path))

    def parts(self, source: Source, path: str, options: ReadOptions) -> list[Part]:
        """All recordings of a file."""
        with self._opened(source, path, options) as (tree, places):
            return parts_of(tree, places, options)

    @contextmanager
    def _opened(
        self, source: Source, path: str, options: ReadOptions
    ) -> Iterator[tuple[Tree, dict[str, Place]]]:
        named = (options.leads, tuple(options.lead_names.items()))
        key = (os.getpid(), named, *identity(source, path))
        with decoding(stem(path), self._what):
            if key == self._key and self._held is not None:
                yield self._held
                return
            tree = self._open(source, path)
            try:
                places = find_places(tree, options, name=stem(path))
                yield tree, places
            except BaseException:
                tree.close()
                raise
            if len(places) == 1:
                tree.close()
                return
            if self._held is not None and self._key is not None and self._key[0] == os.getpid():
                self._held[0].close()
            self._key, self._held = key, (tree, places)


def identity(source: Source, path: str) -> tuple[Any, ...]:
    """What changes when the file does."""
    disk = source.on_disk(path)
    if disk is None:
        return source, path
    state = os.stat(disk)  # noqa: PTH116
    return disk, state.st_mtime_ns, state.st_size


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


def _is_npy(head: bytes) -> bool:
    return head.startswith(_MAGIC)


def _is_npz(head: bytes) -> bool:
    """Whether a zip begins with an array, by the name in its first local header."""
    end = 30 + int.from_bytes(head[26:28], "little")
    return head.startswith(b"PK\x03\x04") and head[30:end].endswith(b".npy")


_NPY, _NPZ = ArrayReader("a NumPy array", _open_npy), ArrayReader("NumPy arrays", _open_npz)
NPY = FileFormat(
    "NumPy", ".npy", _NPY.read, recognize=_is_npy, parts=_NPY.parts, reads_stretches=True
)
NPZ = FileFormat("NumPy archive", ".npz", _NPZ.read, recognize=_is_npz, parts=_NPZ.parts)
