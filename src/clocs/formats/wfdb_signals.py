"""Samples of WFDB records, whole or a stretch: every format of signal files, and segments.

Each format equals what the wfdb package gives, sample by sample, also from the middle of a file.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clocs.errors import UnusableError
from clocs.files import MAX_HEADER_BYTES, check_size
from clocs.formats.base import truncated, unreadable
from clocs.formats.source import PieceReader, Source
from clocs.formats.wfdb_header import NO_FILE, Header, Signal, parse_header

Integers = NDArray[np.int16] | NDArray[np.int32]

FLAC_BITS: Final = {"508": (8,), "516": (8, 16), "524": (8, 16, 24)}
# What a missing sample is, in each format.
MISSING: Final[dict[str, int]] = {
    **dict.fromkeys(("80", "508"), -128),
    **dict.fromkeys(("310", "311"), -512),
    "212": -2048,
    **dict.fromkeys(("16", "61", "160", "516"), -32768),
    **dict.fromkeys(("24", "524"), -8388608),
    "32": -2147483648,
}
# Bytes that the first 0, 1, 2 … samples of a group take; a whole group takes the last of them.
_BYTES: Final[dict[str, tuple[int, ...]]] = {
    **dict.fromkeys(("8", "80"), (0, 1)),
    **dict.fromkeys(("16", "61", "160"), (0, 2)),
    "24": (0, 3),
    "32": (0, 4),
    "212": (0, 2, 3),
    "310": (0, 2, 4, 4),
    "311": (0, 2, 3, 4),
}
_KINDS: Final = {"8": "i1", "80": "u1", "16": "<i2", "61": ">i2", "160": "<u2", "32": "<i4"}
_ZEROS: Final = {"80": 128, "160": 32768}
_MAX_SKEW = 100_000  # frames between two signals of one moment; real ones are a few
_FLAC_HEAD = 42  # bytes of a FLAC stream's own description
_AT_ONCE = 1 << 20  # samples of all channels: libsndfile fails on blocks of more than 2**24


def samples_in(form: str, size: int) -> int:
    """Whole samples in so many bytes of a format that is not packed."""
    sizes = _BYTES[form]
    groups, rest = divmod(size, sizes[-1])
    return groups * (len(sizes) - 1) + max(i for i, held in enumerate(sizes) if held <= rest)


def decode(
    form: str, piece: Callable[[int, int], bytes | memoryview], start: int, count: int
) -> Integers:
    """`count` samples of a signal file from sample `start` on, of all its signals in turn.

    Args:
        form: The format's number.
        piece: Bytes of the file from a place on, counted from its first sample.
        start: First sample.
        count: Samples; all of them must be in the file.
    """
    sizes = _BYTES[form]
    per_group = len(sizes) - 1
    first = start // per_group
    groups = -(-(start + count) // per_group) - first
    data = piece(first * sizes[-1], groups * sizes[-1])
    if len(data) < groups * sizes[-1]:
        data = bytes(data).ljust(groups * sizes[-1], b"\0")  # the file ends within a group
    skipped = start - first * per_group
    return _decoded(form, data)[skipped : skipped + count]


def _decoded(form: str, data: bytes | memoryview) -> Integers:
    """All samples; of format 8 still differences."""
    if form in _KINDS:
        values: NDArray[Any] = np.frombuffer(data, _KINDS[form])
        if form in _ZEROS:
            values = values.astype(np.int32) - _ZEROS[form]
        if form == "32":
            return values.astype(np.int32, copy=False)
        return values.astype(np.int16, copy=False)
    if form == "24":
        wide = np.zeros((len(data) // 3, 4), np.uint8)
        wide[:, 1:] = np.frombuffer(data, np.uint8).reshape(-1, 3)
        return (wide.reshape(-1).view("<i4") >> 8).astype(np.int32, copy=False)
    if form == "212":  # two samples in three bytes: the middle one holds the upper bits of both
        triple = np.frombuffer(data, np.uint8).reshape(-1, 3)
        samples = np.empty((len(triple), 2), np.int16)
        upper = triple[:, 1].astype(np.int16)
        samples[:, 0] = triple[:, 0] | upper << 8
        samples[:, 1] = triple[:, 2] | upper >> 4 << 8
        return (samples << 4 >> 4).reshape(-1)  # the sign of 12 bits becomes that of 16
    if form == "310":  # three samples in two words; the third is in the upper five bits of both
        words = np.frombuffer(data, "<u2").reshape(-1, 2)
        tens = [*(words >> 1).T, (words[:, 0] >> 11) | (words[:, 1] >> 11 << 5)]
    else:  # 311: three samples in the lower bits of four bytes
        tens = [np.frombuffer(data, "<u4") >> 10 * i for i in range(3)]
    signed = np.stack(tens, axis=1).astype(np.uint16) << 6
    return signed.view(np.int16).reshape(-1) >> 6


class Rows(NamedTuple):
    """Some signals of a record.

    Attributes:
        counts: (signals, samples) ADC counts, anything where samples are missing; as floats, mV,
            NaN where missing, where segments differ in gain or zero.
        missing: (signals, samples), or None where none is.
        per_mv: ADC counts per mV (or per unit of what is no voltage), of each signal.
        zero: The count of zero, of each signal.
    """

    counts: NDArray[Any]
    missing: NDArray[np.bool_] | None
    per_mv: NDArray[np.float64]
    zero: NDArray[np.int32]


class _File(NamedTuple):
    """One signal file of a header."""

    name: str  # in the source
    form: str
    offset: int
    columns: dict[int, int]  # of each signal, by its number in the header: where it is in a frame
    width: int  # samples of a frame


class Record:
    """A header, and the files that it names.

    Raises:
        UnusableError: truncated, unreadable, nan or beyond the limits; all methods do.
    """

    def __init__(self, source: Source, path: str) -> None:
        self.source, self.path = source, path
        self.header = parse_header(source.read(path, MAX_HEADER_BYTES), name=path)

    def frames(self) -> int:
        """How many frames it has, gaps included: by its word, else by the size of its file."""
        header = self.header
        if header.segments:
            held = sum(frames for _, frames in header.segments)
            if held < (header.samples or 0):
                raise truncated(f"{self.path} has {held} of {header.samples} samples")
            return held
        if header.samples:  # 0 means the same as nothing
            return header.samples
        first = next((one for one in header.signals if one.file != NO_FILE), None)
        return 0 if first is None else self._held(self._file(first.file))

    def described(self) -> Header:
        """The header that describes all signals of the record: its own, or of its first segment.

        Where segments differ, the first of them has no samples and describes all signals.
        """
        if self.header.signals:
            return self.header
        name = next((name for name, _ in self.header.segments if name != NO_FILE), None)
        if name is None:
            raise UnusableError("nan", f"{self.path} has no segment with samples")
        return self._segment(name).header

    def rows(self, kept: Sequence[int], first: int, count: int) -> Rows:
        """Some of the signals `described`, which have the same number of samples per frame.

        Args:
            kept: Their numbers.
            first: Frame to start with.
            count: Frames.
        """
        header, path = self.header, self.path
        if header.signals:
            whole = not first and count == header.samples and len(kept) == len(header.signals)
            if whole and header.is_plain:
                return self._plain_rows()
            return self._signal_rows(kept, first, count)
        every = self.described().signals
        per_frame = every[kept[0]].samples_per_frame
        shape = (len(kept), count * per_frame)
        names = _distinct_names(every)
        wanted = {names[number]: place for place, number in enumerate(kept)}
        ends = accumulate(frames for _, frames in header.segments)
        spans = [
            (name, end - frames, max(end - frames, first), min(end, first + count))
            for (name, frames), end in zip(header.segments, ends, strict=True)
            if name != NO_FILE
        ]
        touched = [one for one in spans if one[2] < one[3]]
        segments = {name: self._segment(name) for name, *_ in touched}
        packed = sum(one._size() for one in segments.values())
        check_size(2 * shape[0] * shape[1], packed=packed, name=path)
        pieces: list[tuple[int, list[int], Rows]] = []  # sample, places among the wanted, rows
        for name, begins, start, stop in touched:
            rate, signals = segments[name].header.rate, segments[name].header.signals
            if rate != header.rate:
                rates = f"{header.rate:g} Hz, its segment {name} {rate:g} Hz"
                raise unreadable(f"{path} has {rates}")
            places = {
                number: wanted[key]
                for number, key in enumerate(_distinct_names(signals))
                if key in wanted and signals[number].file != NO_FILE
            }
            if any(signals[number].samples_per_frame != per_frame for number in places):
                raise unreadable(f"{path} changes its rate in {name}")
            if places:
                rows = segments[name].rows([*places], start - begins, stop - start)
                pieces.append(((start - first) * per_frame, [*places.values()], rows))
        if not pieces:
            raise UnusableError("nan", f"{path} has no samples from frame {first:,} on")
        return _joined(pieces, shape)

    def _segment(self, name: str) -> Record:
        beside = f"{self.path[: self.path.rfind('/') + 1]}{name}.hea"
        if "/" in name or "\\" in name or beside not in self.source or beside == self.path:
            raise unreadable(f"{self.path} has no segment {name} beside it")
        inner = Record(self.source, beside)
        if inner.header.segments:
            raise unreadable(f"{self.path} has segments inside segments")
        return inner

    def _beside(self, file: str) -> str:
        """The name in the source of a file that the header names; it must be in the same folder."""
        if "/" in file or "\\" in file:
            raise unreadable(f"{self.path} names a file in another folder: {file}")
        name = self.path[: self.path.rfind("/") + 1] + file
        if name not in self.source:
            raise unreadable(f"{self.path} names {file}, which is not beside it")
        return name

    def _size(self) -> int:
        """Bytes of all signal files."""
        files = {signal.file for signal in self.header.signals} - {NO_FILE}
        return sum(self.source.size(self._beside(file)) for file in files)

    def _file(self, name: str) -> _File:
        columns: dict[int, int] = {}
        width = 0
        for number, signal in enumerate(self.header.signals):
            if signal.file == name:
                columns[number] = width
                width += signal.samples_per_frame
        own = [self.header.signals[number] for number in columns]
        form = own[0].format
        forms = sorted({one.format for one in own})
        if form not in (*_BYTES, *FLAC_BITS) or len(forms) > 1 or not width:
            raise unreadable(f"{self.path} has signals of format {', '.join(forms)} in {name}")
        if form in FLAC_BITS and len({one.samples_per_frame for one in own}) > 1:
            raise unreadable(f"{self.path} has several rates in the FLAC stream {name}")
        return _File(self._beside(name), form, own[0].offset, columns, width)

    def _held(self, file: _File, size: int | None = None) -> int:
        """Frames in a file, of so many bytes where that is known."""
        if file.form in FLAC_BITS:
            samples = self._flac_facts(self.source.head(file.name, _FLAC_HEAD))[2]
            return max(samples - file.offset, 0) // (file.width // len(file.columns))
        size = self.source.size(file.name) if size is None else size
        return samples_in(file.form, max(size - file.offset, 0)) // file.width

    def _plain_rows(self) -> Rows:
        """All of a record whose header `is_plain`, in a quarter less time than by `_frames`."""
        signal, width = self.header.signals[0], len(self.header.signals)
        count = self.header.samples or 0
        if signal.format == "16":
            data = self.source.read(self._beside(signal.file))
            held = max(len(data) - signal.offset, 0) // (2 * width)
            if held < count:
                raise truncated(f"{self.path} has {held} of {count} samples")
            flat = np.frombuffer(data, "<i2", count=count * width, offset=signal.offset)
            frames: NDArray[Any] = flat.reshape(count, width)
        else:
            frames = self._frames(self._file(signal.file), 0, count)
        counts = np.ascontiguousarray(frames.T, np.int16)
        missing = counts == MISSING["16"] if counts.min() == MISSING["16"] else None
        per_mv, zero = self.header.scales
        return Rows(counts, missing, per_mv.copy(), zero.copy())

    def _signal_rows(self, kept: Sequence[int], first: int, count: int) -> Rows:
        """Some signals of a header without segments; see `rows`."""
        signals = [self.header.signals[number] for number in kept]
        per_frame = signals[0].samples_per_frame
        names = dict.fromkeys(one.file for one in signals)
        moved = NO_FILE in names or any(one.skew for one in signals)
        names.pop(NO_FILE, None)
        if not names:
            raise UnusableError("nan", f"{self.path} has no samples of {signals[0].name}")
        if moved:
            most = max(signals, key=lambda one: one.skew)
            if most.skew > _MAX_SKEW:
                raise unreadable(f"{self.path} shifts {most.name} by {most.skew:,} samples")
            size = 2 * count * per_frame * len(kept)
            check_size(size, packed=self._size(), name=self.path)
        files = {name: self._file(name) for name in names}
        frames = {name: self._frames(file, first, count) for name, file in files.items()}
        marks = {name: MISSING.get(file.form) for name, file in files.items()}
        counts = np.zeros((len(kept), count * per_frame), np.result_type(*frames.values()))
        missing: NDArray[np.bool_] | None = None
        if moved or any(frames[name].min() == mark for name, mark in marks.items()):
            missing = np.ones(counts.shape, np.bool_)
        for i, (number, signal) in enumerate(zip(kept, signals, strict=True)):
            if signal.file != NO_FILE:
                column = files[signal.file].columns[number]
                part = frames[signal.file][signal.skew : signal.skew + count]
                row = part[:, column : column + per_frame].reshape(-1)
                counts[i, : len(row)] = row  # what is shifted beyond the end of the file is missing
                if missing is not None:
                    missing[i, : len(row)] = row == marks[signal.file]
        per_mv, zero = self.header.scales
        return Rows(counts, missing, per_mv[[*kept]], zero[[*kept]])

    def _frames(self, file: _File, first: int, count: int) -> Integers:
        """(frames, samples of a frame) from a frame on; more where signals are skewed."""
        signals, promised, data = self.header.signals, self.header.samples or 0, None
        packed = file.form in FLAC_BITS
        if not packed and not first and count == promised:
            # Whole, so that its size and, in a zip, its checksum are compared.
            data = memoryview(self.source.read(file.name))
        held = promised if packed else 0
        held = held or self._held(file, None if data is None else len(data))
        whole = promised or held
        if held < whole or whole < first + count or not whole:
            wanted = max(first + count, promised)
            raise truncated(f"{self.path} has {held} of {wanted or 'any'} samples")
        most = max(signals[number].skew for number in file.columns)
        count = min(first + count + min(most, _MAX_SKEW), whole) - first
        if packed:
            return self._flac_frames(file, first, count, whole=not file.offset and count == whole)
        summed = file.form == "8"  # differences, which are added up from the start on
        begins = 0 if summed else first

        def piece(at: int, size: int) -> bytes | memoryview:
            at += file.offset
            return self.source.piece(file.name, at, size) if data is None else data[at : at + size]

        samples = (first + count - begins) * file.width
        frames = decode(file.form, piece, begins * file.width, samples).reshape(-1, file.width)
        if not summed:
            return frames
        sums = np.empty(frames.shape, np.int32)
        for number, column in file.columns.items():
            stop = column + signals[number].samples_per_frame
            values = frames[:, column:stop].cumsum(dtype=np.int32)
            values += np.int32(signals[number].initial)
            sums[:, column:stop] = values.reshape(len(frames), -1)
        return sums[first:]

    def _flac_facts(self, head: bytes) -> tuple[int, int, int]:
        """Channels, bits, and samples of each channel, as a stream describes itself."""
        if head[:4] != b"fLaC" or len(head) < _FLAC_HEAD:
            raise unreadable(f"the signals of {self.path}: it is not a FLAC stream")
        packed = int.from_bytes(head[18:26], "big")  # rate 20, channels 3, bits 5, samples 36 bits
        return (packed >> 41 & 7) + 1, (packed >> 36 & 31) + 1, packed & (1 << 36) - 1

    def _flac_frames(self, file: _File, first: int, count: int, *, whole: bool) -> NDArray[Any]:
        """As `_frames`; unless `whole`, only a part of the file is read for it."""
        import soundfile

        data = self.source.read(file.name) if whole else b""
        channels, allowed = len(file.columns), FLAC_BITS[file.form]
        per_frame = file.width // channels
        samples = count * per_frame
        held, bits, _ = self._flac_facts(data or self.source.head(file.name, _FLAC_HEAD))
        if held != channels or bits not in allowed:
            wanted = f"{channels} of {' or '.join(map(str, allowed))}"
            stated = f"holds {held} channels of {bits} bits, not {wanted}"
            raise unreadable(f"the signals of {self.path}: it {stated}")
        size = len(data) or self.source.size(file.name)
        check_size(2 * samples * channels, packed=size, name=self.path)
        pieces = PieceReader(partial(self.source.piece, file.name), size)
        opened: Any = io.BytesIO(data) if whole else io.BufferedReader(pieces, 1 << 16)
        parts: list[NDArray[Any]] = []
        try:
            with soundfile.SoundFile(opened) as stream:
                start = file.offset + first * per_frame
                # A damaged stream may promise any length, so the header limits what is allocated.
                left = min(samples, max(int(stream.frames) - start, 0))
                if start:
                    stream.seek(start)
                kind = "int32" if bits == 24 else "int16"
                while left or not parts:
                    some = min(max(_AT_ONCE // channels, 1), left)
                    parts.append(stream.read(some, dtype=kind, always_2d=True))
                    left = left - len(parts[-1]) if len(parts[-1]) else 0
            flat = parts[0] if len(parts) == 1 else np.concatenate(parts)
            if flat.shape[1] != channels:
                raise ValueError(f"it changes to {flat.shape[1]} channels")
        except (soundfile.SoundFileError, RuntimeError, ValueError) as error:
            damaged = unreadable(f"the signals of {self.path}: it is damaged ({error})")
            raise pieces.error or damaged from None
        if pieces.error is not None:
            raise pieces.error
        if len(flat) < samples:
            raise truncated(f"{self.path} has {len(flat)} of {samples} samples from {first} on")
        # Samples of 8 and 24 bits come shifted to the upper bits.
        flat = flat if bits == 16 else flat >> 8
        return flat.reshape(count, per_frame, channels).transpose(0, 2, 1).reshape(count, -1)


def _joined(pieces: Sequence[tuple[int, list[int], Rows]], shape: tuple[int, int]) -> Rows:
    scales: list[set[tuple[float, int]]] = [set() for _ in range(shape[0])]
    for _, places, rows in pieces:
        for place, per_mv, zero in zip(places, rows.per_mv, rows.zero, strict=True):
            scales[place].add((per_mv, zero))
    same = all(len(one) <= 1 for one in scales)
    kind = np.result_type(np.int16, *(rows.counts for *_, rows in pieces))
    joined = np.zeros(shape, kind) if same else np.full(shape, np.nan)
    missing = np.ones(shape, np.bool_)
    for at, places, rows in pieces:
        here = slice(at, at + rows.counts.shape[1])
        for i, place in enumerate(places):
            row = rows.counts[i]
            missing[place, here] = False if rows.missing is None else rows.missing[i]
            joined[place, here] = row if same else (row - float(rows.zero[i])) / rows.per_mv[i]
    if not same:
        joined[missing] = np.nan
    per_mv, zero = zip(*(next(iter(one), (1.0, 0)) for one in scales), strict=True)
    return Rows(joined, missing, np.array(per_mv), np.array(zero, np.int32))


def _distinct_names(signals: Sequence[Signal]) -> list[tuple[str, int]]:
    """Names of signals, and how many of the same name come before."""
    seen: Counter[str] = Counter()
    names = []
    for signal in signals:
        names.append((signal.name, seen[signal.name]))
        seen[signal.name] += 1
    return names
