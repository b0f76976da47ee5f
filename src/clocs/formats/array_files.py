"""Files of named arrays: NumPy's `.npy` and `.npz`; HDF5 and MATLAB files are read in the same way.

A file is a tree of arrays with paths. What lies beside an array or above it (attributes, or arrays
called `rate`, `leads`, `patient_id`, `exam_id` …) speaks about it. Pickled objects are never
loaded; `.npy` is mapped into memory.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from operator import methodcaller
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clocs.errors import UnusableError
from clocs.files import MAX_TABLE_BYTES, check_size
from clocs.formats import arrays as numbers
from clocs.formats import base
from clocs.formats.arrays import Axes, by_meaning, meaning_of, text_of, texts_of
from clocs.formats.base import FileMetadata, Part, ReadOptions, format_of_several, unreadable
from clocs.formats.source import Source, stem
from clocs.recording import STANDARD_LEADS, Recording, canonical_lead

_FIELDS = frozenset(
    {"rate", "leads", "unit", "patient", "id", "labels", "age", "sex", "recorded_at"}
)
_MIN_SAMPLES = 50
_MAX_PARTS = 10_000_000
_MAX_OF_ALL = 1 << 50  # bytes of all recordings together: only what is packed limits them
_LOOKED_AT = 8  # recordings, and stretches of each, from which a unit is guessed
_BLOCK = 256  # samples of each stretch
_MAGIC = b"\x93NUMPY"
_MAX_HEADER = 10_000  # characters, as NumPy's own limit


class _Place(NamedTuple):
    """Where a recording is: an array, or several of one lead each, and which row of it."""

    arrays: tuple[str, ...]
    axes: Axes
    row: int | None


class NamedArrays(base.OpenFile):
    """The arrays of a file.

    Args:
        source: Holds the file.
        path: Its name there.
        options: By the user.
        arrays: By path, with slashes; they have `shape` and `dtype` and are read where indexed.
        attributes: By the path of the array or folder that has them; '' is the root.
        close: Ends reading.
    """

    def __init__(
        self,
        source: Source,
        path: str,
        options: ReadOptions,
        arrays: Mapping[str, Any],
        attributes: Mapping[str, Mapping[str, Any]] | None = None,
        close: Callable[[], object] = lambda: None,
    ) -> None:
        self.arrays, self.attributes, self._close = arrays, attributes or {}, close
        self._name, self._packed, self._options = stem(path), source.size(path), options
        self._looked_at: dict[str, NDArray[Any]] = {}

    def close(self) -> None:
        """Ends reading."""
        self._close()

    @cached_property
    def names(self) -> dict[str, _Place]:
        """The recordings of the file by their names in it; '' for the only one."""
        signals = [(paths, axes, self._rows(paths[0], axes)) for paths, axes in self._signals()]
        for paths, *_ in signals:
            size = _bytes_of(self.arrays[paths[0]])
            check_size(size, packed=self._packed, name=self._name, most=_MAX_OF_ALL)
        if sum(rows for *_, rows in signals) > _MAX_PARTS:
            raise UnusableError("exceeds limits", f"{self._name} holds too many recordings")
        places: dict[str, _Place] = {}
        for paths, axes, rows in signals:
            shared = paths[0] if len(paths) == 1 else _folder(paths[0])
            prefix = shared if len(signals) > 1 else ""
            if axes.recording is None:
                places[prefix] = _Place(paths, axes, None)
                continue
            for row, label in enumerate(self._row_names(paths[0], rows)):
                whole = f"{prefix}/{label}" if prefix else label
                places[whole if rows > 1 or prefix else ""] = _Place(paths, axes, row)
        return places

    def parts(self, options: ReadOptions) -> list[Part]:
        """One part per recording, with its duration and patient where they are known."""
        known: dict[str, dict[str, Any]] = {}
        parts = []
        for label, place in self.names.items():
            path = place.arrays[0]
            if path not in known:
                fields, rows = self._fields(path), self._rows(path, place.axes)
                known[path] = {
                    key: value[()] if getattr(value, "shape", ())[:1] == (rows,) else value
                    for key, value in fields.items()
                    if key in ("rate", "patient") and _is_small(value)
                } | {"rows": rows}
            samples = self.arrays[path].shape[place.axes.sample]
            rate = numbers.rate_in(_of_row(known[path], "rate", place.row)) or options.rate
            patient = text_of(_of_row(known[path], "patient", place.row))
            parts.append(Part(label, samples / rate if rate else None, patient or None))
        return parts

    def read(self, options: ReadOptions) -> Recording:
        """The recording of `part` in the options.

        Raises:
            UnusableError: unreadable, truncated, nan, implausible or beyond the limits.
        """
        place = self.names[options.part]
        label = f"{self._name}_{options.part}" if options.part else self._name
        array, axes = self.arrays[place.arrays[0]], place.axes
        meta = self._metadata(place)
        rate = meta.rate if meta.rate is not None else options.rate
        samples = array.shape[axes.sample]
        kept = slice(0, samples)
        if rate is not None and (options.start or options.stop is not None):
            kept = base.stretch(options, rate=rate, samples=samples, name=label)
        size = _bytes_of(array) * len(place.arrays) // self._rows(place.arrays[0], axes)
        kept_size = size * (kept.stop - kept.start) // samples
        check_size(kept_size, packed=self._packed, name=label)
        values = self._values(place, place.row, kept)
        sample = values
        if meta.unit is None and options.unit is None:
            sample = self._sample(place)
        return numbers.recording_from(values, meta, options, name=label, sample=sample)

    def _values(self, place: _Place, row: int | None, kept: slice) -> NDArray[Any]:
        """(leads, samples) of one row."""
        axes = place.axes
        if len(place.arrays) > 1:
            return np.stack([np.asarray(self.arrays[one][kept]) for one in place.arrays])
        array = self.arrays[place.arrays[0]]
        index: list[Any] = [slice(None)] * len(array.shape)
        index[axes.sample] = kept
        if axes.recording is not None:
            index[axes.recording] = row
        values = np.asarray(array[tuple(index)])
        if axes.lead is None:
            return values.reshape(1, -1)
        return values.T if axes.lead > axes.sample else values

    def _sample(self, place: _Place) -> NDArray[Any]:
        """(leads, some samples) from all over an array, so that its rows agree about their unit."""
        path = place.arrays[0]
        if path not in self._looked_at:
            samples = self.arrays[path].shape[place.axes.sample]
            rows: list[int | None] = [None]
            if place.axes.recording is not None:
                rows = [*_spread(self._rows(path, place.axes) - 1)]
            stretches = [slice(at, at + _BLOCK) for at in _spread(max(samples - _BLOCK, 0))]
            blocks = [self._values(place, row, one) for row in rows for one in stretches]
            self._looked_at[path] = np.concatenate(blocks, axis=1)
        return self._looked_at[path]

    def _signals(self) -> Iterator[tuple[tuple[str, ...], Axes]]:
        """Arrays that can be recordings, with their axes; those of one lead each taken together."""
        flat: dict[str, list[str]] = {}
        problem: UnusableError | None = None
        found = False
        for path, array in self.arrays.items():
            kind, shape = getattr(array.dtype, "kind", ""), array.shape
            if kind not in "iuf" or meaning_of(_last(path)) in _FIELDS or 0 in shape:
                continue
            if len(shape) == 1 and shape[0] >= _MIN_SAMPLES:
                flat.setdefault(_folder(path), []).append(path)
            elif 2 <= len(shape) <= 3 and max(shape) >= _MIN_SAMPLES:
                named = _names(by_meaning(self._near(path)).get("leads"))
                try:
                    axes = numbers.find_axes(shape, named, self._options, name=self._name)
                except UnusableError as error:
                    problem = error
                    continue
                found = True
                yield (path,), axes
        if problem is not None and not found:
            raise problem
        for paths in flat.values():
            leads = [one for one in paths if canonical_lead(_last(one)) in STANDARD_LEADS]
            if len(leads) > 1 and len({self.arrays[one].shape for one in leads}) == 1:
                yield tuple(leads), Axes(None, None, 0)
            elif not found:
                yield from (((one,), Axes(None, None, 0)) for one in paths)
            found = True
        if not found:
            text = "holds no array of numbers that could be an ECG of (leads, samples)"
            raise unreadable(f"{self._name} {text}")

    def _metadata(self, place: _Place) -> FileMetadata:
        fields = self._fields(place.arrays[0])
        rows = {**fields, "rows": self._rows(place.arrays[0], place.axes)}
        own = {key: _of_row(rows, key, place.row) for key in fields.keys() - {"id", "leads"}}
        if np.size(own.get("labels", 0)) > 1:
            del own["labels"]
        leads = _names(fields.get("leads"))
        if len(place.arrays) > 1 or (leads is None and place.axes.lead is None):
            names = [_last(one) for one in place.arrays]
            leads = names if all(canonical_lead(one) in STANDARD_LEADS for one in names) else leads
        meta = numbers.metadata_from(own)
        meta.leads, meta.patient = leads, meta.patient or self._name
        meta.notices += filter(None, [place.axes.notice])
        return meta

    @cached_property
    def _speaking(self) -> dict[str, list[str]]:
        """Arrays that speak about others, by folder."""
        found: dict[str, list[str]] = {}
        for path in self.arrays:
            if meaning_of(_last(path)) in _FIELDS:
                found.setdefault(_folder(path), []).append(path)
        return found

    def _near(self, path: str) -> dict[str, Any]:
        """Attributes and arrays beside an array and above it, the nearest first."""
        found: dict[str, Any] = {}
        parts = path.split("/")
        for folder in ("/".join(parts[:depth]) for depth in range(len(parts))):
            found |= self.attributes.get(folder, {})
            beside = (one for one in self._speaking.get(folder, ()) if one != path)
            found |= {_last(one): self.arrays[one] for one in beside}
        found |= self.attributes.get(path, {})
        return dict(reversed(found.items()))

    def _fields(self, path: str) -> dict[str, Any]:
        near = by_meaning(self._near(path))
        return {key: value for key, value in near.items() if key in _FIELDS}

    def _rows(self, path: str, axes: Axes) -> int:
        return 1 if axes.recording is None else int(self.arrays[path].shape[axes.recording])

    def _row_names(self, path: str, count: int) -> list[str]:
        ids = self._fields(path).get("id")
        if ids is not None and tuple(getattr(ids, "shape", ())) == (count,) and _is_small(ids):
            names = texts_of(ids[()])
            if all(names) and len(set(names)) == count:
                return names
        return [str(row) for row in range(count)]


def _spread(last: int) -> Iterator[int]:
    """Some whole numbers from 0 to the last."""
    return map(int, np.unique(np.linspace(0, last, _LOOKED_AT).astype(int)))


def _names(value: Any) -> list[str] | None:
    """Names of leads; None where the field holds anything else."""
    if value is None or not _is_small(value):
        return None
    names = texts_of(value[()] if hasattr(value, "shape") else value)
    return names if all(names) and len(set(names)) == len(names) else None


def _bytes_of(value: Any) -> int:
    size = int(np.prod(getattr(value, "shape", ()), dtype=object))
    return size * int(getattr(getattr(value, "dtype", None), "itemsize", 1))


def _is_small(value: Any) -> bool:
    """Whether a field can be read whole."""
    return _bytes_of(value) <= MAX_TABLE_BYTES


def _of_row(fields: Mapping[str, Any], key: str, row: int | None) -> Any:
    """A field of one recording: its row where there is one per recording, else the only value."""
    value = fields.get(key)
    shape: tuple[int, ...] | None = getattr(value, "shape", None)
    if value is None or shape is None:
        return value
    if row is not None and shape and shape[0] == fields["rows"]:
        return value[row]
    return value[()] if int(np.prod(shape)) == 1 else None


def _last(path: str) -> str:
    return path.rpartition("/")[2]


def _folder(path: str) -> str:
    return path.rpartition("/")[0]


class _Header:
    """What an array's header says, and where its numbers begin."""

    def __init__(self, head: bytes, name: str) -> None:
        file = io.BytesIO(head[: _MAX_HEADER + 64])
        version = np.lib.format.read_magic(file)
        readers: dict[tuple[int, int], Callable[..., Any]] = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }
        if version not in readers:
            raise unreadable(f"{name} is of version {version} of NumPy's format")
        self.shape, fortran, self.dtype = readers[version](file, max_header_size=_MAX_HEADER)
        if self.dtype.hasobject:
            raise unreadable(f"{name} holds Python objects, which are not loaded; save numbers")
        self.order: Any = "F" if fortran else "C"
        self.start, self.name = file.tell(), name

    def check(self, size: int) -> None:
        """Refuse a file of so many bytes that does not hold the array."""
        held, promised = size - self.start, _bytes_of(self)
        if held < promised:
            raise base.truncated(f"{self.name} has {held:,} of {promised:,} bytes")

    def array(self, data: bytes) -> NDArray[Any]:
        """The array, from all bytes of its file."""
        self.check(len(data))
        count = int(np.prod(self.shape, dtype=object))
        flat = np.frombuffer(data, self.dtype, count, self.start)
        return flat.reshape(self.shape, order=self.order)


class _Member:
    """An array in an `.npz`, unpacked where it is indexed."""

    def __init__(self, archive: zipfile.ZipFile, info: zipfile.ZipInfo, name: str) -> None:
        with archive.open(info) as file:
            self._header = _Header(file.read(_MAX_HEADER + 64), name)
        self.shape, self.dtype = self._header.shape, self._header.dtype
        self._archive, self._info = archive, info
        self._held: NDArray[Any] | None = None

    def __getitem__(self, index: Any) -> Any:
        if self._held is None:
            info = self._info
            check_size(info.file_size, packed=info.compress_size, name=self._header.name)
            self._held = self._header.array(self._archive.read(info))
        return self._held[index]


def array_from(data: bytes, name: str) -> NDArray[Any]:
    """The array in the bytes of an `.npy` file, without copying them.

    Raises:
        UnusableError: unreadable or truncated.
    """
    with base.decoding(name, "a NumPy array"):
        return _Header(data, name).array(data)


def _open_npy(source: Source, path: str, options: ReadOptions) -> NamedArrays:
    name, disk = stem(path), source.on_disk(path)
    if disk is None:
        return NamedArrays(source, path, options, {"": array_from(source.read(path), name)})
    header = _Header(source.head(path, _MAX_HEADER + 64), name)
    header.check(source.size(path))
    array = (
        np.empty(header.shape, header.dtype)
        if 0 in header.shape
        else np.memmap(disk, header.dtype, "r", header.start, header.shape, header.order).view(
            np.ndarray
        )
    )
    return NamedArrays(source, path, options, {"": array})


def _open_npz(source: Source, path: str, options: ReadOptions) -> NamedArrays:
    name, disk = stem(path), source.on_disk(path)
    archive = zipfile.ZipFile(disk if disk is not None else io.BytesIO(source.read(path)))
    members = [one for one in archive.infolist() if one.filename.endswith(".npy")]
    if any(one.flag_bits & 1 for one in members):
        raise unreadable(f"{name} is encrypted")
    arrays = {one.filename.removesuffix(".npy"): _Member(archive, one, name) for one in members}
    return NamedArrays(source, path, options, arrays, close=archive.close)


def _is_npz(head: bytes) -> bool:
    """Whether a zip begins with an array, by the name in its first local header."""
    end = 30 + int.from_bytes(head[26:28], "little")
    return head.startswith(b"PK\x03\x04") and head[30:end].endswith(b".npy")


_IS_NPY = methodcaller("startswith", _MAGIC)
NPY = format_of_several("NumPy", (".npy",), _open_npy, recognize=_IS_NPY, reads_stretches=True)
NPZ = format_of_several("NumPy archive", (".npz",), _open_npz, recognize=_is_npz)
