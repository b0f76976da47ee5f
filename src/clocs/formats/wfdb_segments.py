"""WFDB records of one or many segments, of which some are gaps or lack some of the signals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clocs.errors import UnusableError
from clocs.formats.source import Source
from clocs.formats.wfdb_formats import Integers
from clocs.formats.wfdb_header import Header, Signal, parse_header
from clocs.formats.wfdb_signals import NO_FILE, Rows, frames_of, signal_rows, size_of_signals
from clocs.limits import MAX_HEADER_BYTES, check_size
from clocs.recording import UNITS_PER_MV


class RecordRows(NamedTuple):
    """Some signals of a record.

    Attributes:
        steps: (signals, samples).
        missing: (signals, samples), or None where no sample is missing.
        gain: Steps per mV (or per unit of what is no voltage), of each signal.
        zero: The value of zero, of each signal.
        physical: (signals, samples) in mV, nan where missing, in place of `steps` where segments
            differ in gain or zero; else None.
    """

    steps: Integers
    missing: NDArray[np.bool_] | None
    gain: tuple[float, ...]
    zero: tuple[int, ...]
    physical: NDArray[np.float64] | None = None


class _Segment(NamedTuple):
    name: str
    start: int  # frame of the record
    frames: int


class _Piece(NamedTuple):
    """What one segment has of the wanted signals."""

    at: int  # sample of the stretch
    kept: list[int]  # places among the wanted signals
    rows: Rows
    gain: list[float]
    zero: list[int]


def signals_of_record(source: Source, path: str, header: Header) -> tuple[Signal, ...]:
    """All signals that a record may have.

    Where segments differ, the first of them has no samples and describes all signals.

    Raises:
        UnusableError: unreadable.
    """
    if header.signals:
        return header.signals
    for segment in _segments(header):
        if segment.name != NO_FILE:
            return _header_of(source, path, segment.name).signals
    raise UnusableError("nan", f"{path} has no segment with samples")


def frames_of_record(source: Source, path: str, header: Header) -> int:
    """How many frames a record has, gaps included."""
    if header.segment_names:
        held = sum(header.segment_samples)
        if held < (header.samples or 0):
            raise UnusableError("truncated", f"{path} has {held} of {header.samples} samples")
        return held
    return frames_of(source, path, header)


def segments_beside(source: Source, path: str, head: bytes) -> set[str]:
    """The headers in the source that are segments of this one."""
    lines = (line.split(maxsplit=1) for line in head.splitlines())
    first = next((words[0] for words in lines if words and words[0][:1] != b"#"), b"")
    if b"/" not in first:  # of the record line, 'name/segments'
        return set()
    try:
        header = parse_header(source.read(path, MAX_HEADER_BYTES), name=path)
    except UnusableError:
        return set()
    folder = path[: path.rfind("/") + 1]
    return {f"{folder}{name}.hea" for name in header.segment_names} - {path}


def record_rows(
    source: Source,
    path: str,
    header: Header,
    every: Sequence[Signal],
    kept: Sequence[int],
    *,
    first: int,
    count: int,
) -> RecordRows:
    """Some signals of a record, which have the same number of samples per frame.

    Args:
        source: Holds the record's files.
        path: Of its header.
        header: Parsed.
        every: All of `signals_of_record`.
        kept: Numbers of the wanted ones.
        first: Frame to start with.
        count: Frames.

    Raises:
        UnusableError: truncated, unreadable, nan or beyond the limits.
    """
    signals = [every[number] for number in kept]
    if header.signals:
        rows = signal_rows(source, path, header, kept, first=first, count=count)
        gain = tuple(_steps_per_mv(one) for one in signals)
        return RecordRows(*rows, gain, tuple(one.baseline for one in signals))
    per_frame = signals[0].samples_per_frame
    shape = (len(signals), count * per_frame)
    touched = {one.name for one, _, _ in _touched(header, first, count)}
    held = sum(
        size_of_signals(source, _path_of(path, name), _header_of(source, path, name))
        for name in touched
    )
    check_size(2 * shape[0] * shape[1], packed=held, name=path)
    pieces = list(_pieces(source, path, header, every, kept, first, count))
    if not any(piece.kept for piece in pieces):
        raise UnusableError("nan", f"{path} has no samples from frame {first:,} on")
    return _joined(pieces, shape)


def _joined(pieces: Sequence[_Piece], shape: tuple[int, int]) -> RecordRows:
    found: list[set[tuple[float, int]]] = [set() for _ in range(shape[0])]
    for piece in pieces:
        for place, gain, zero in zip(piece.kept, piece.gain, piece.zero, strict=True):
            found[place].add((gain, zero))
    missing = np.ones(shape, np.bool_)
    scale = [next(iter(one), (1.0, 0)) for one in found]
    gains, zeros = tuple(gain for gain, _ in scale), tuple(zero for _, zero in scale)
    same = all(len(one) <= 1 for one in found)
    kind = np.result_type(np.int16, *(piece.rows.steps for piece in pieces))
    steps = np.zeros(shape if same else (0, 0), kind)
    physical = np.full((0, 0) if same else shape, np.nan)
    for piece in pieces:
        here = slice(piece.at, piece.at + piece.rows.steps.shape[1])
        for i, place in enumerate(piece.kept):
            row, absent = piece.rows.steps[i], piece.rows.missing
            missing[place, here] = False if absent is None else absent[i]
            if same:
                steps[place, here] = row
            else:
                physical[place, here] = (row - float(piece.zero[i])) / piece.gain[i]
    if same:
        return RecordRows(steps, missing, gains, zeros)
    physical[missing] = np.nan
    return RecordRows(steps, missing, gains, zeros, physical)


def _pieces(
    source: Source,
    path: str,
    header: Header,
    every: Sequence[Signal],
    kept: Sequence[int],
    first: int,
    count: int,
) -> Iterator[_Piece]:
    per_frame = every[kept[0]].samples_per_frame
    names = _distinct_names(every)
    wanted = {names[number]: place for place, number in enumerate(kept)}
    for segment, start, stop in _touched(header, first, count):
        inner = _header_of(source, path, segment.name)
        beside = _path_of(path, segment.name)
        if inner.rate != header.rate:
            detail = f"{path} has {header.rate:g} Hz, its segment {segment.name} {inner.rate:g} Hz"
            raise UnusableError("unreadable", detail)
        own = [
            (number, wanted[name])
            for number, name in enumerate(_distinct_names(inner.signals))
            if name in wanted and inner.signals[number].file != NO_FILE
        ]
        if any(inner.signals[number].samples_per_frame != per_frame for number, _ in own):
            raise UnusableError("unreadable", f"{path} changes its rate in {segment.name}")
        if not own:
            continue
        numbers = [number for number, _ in own]
        rows = signal_rows(
            source, beside, inner, numbers, first=start - segment.start, count=stop - start
        )
        yield _Piece(
            (start - first) * per_frame,
            [place for _, place in own],
            rows,
            [_steps_per_mv(inner.signals[number]) for number in numbers],
            [inner.signals[number].baseline for number in numbers],
        )


def _distinct_names(signals: Sequence[Signal]) -> list[tuple[str, int]]:
    """Names of signals, and how many of the same name come before."""
    seen: Counter[str] = Counter()
    names = []
    for signal in signals:
        names.append((signal.name, seen[signal.name]))
        seen[signal.name] += 1
    return names


def _touched(header: Header, first: int, count: int) -> Iterator[tuple[_Segment, int, int]]:
    """Segments with samples in a stretch, and from which to which frame."""
    for segment in _segments(header):
        start, stop = max(segment.start, first), min(segment.start + segment.frames, first + count)
        if segment.name != NO_FILE and start < stop:
            yield segment, start, stop


def _steps_per_mv(signal: Signal) -> float:
    return signal.gain * UNITS_PER_MV.get(signal.unit.lower(), 1.0)


def _segments(header: Header) -> Iterator[_Segment]:
    start = 0
    for name, frames in zip(header.segment_names, header.segment_samples, strict=True):
        yield _Segment(name, start, frames)
        start += frames


def _path_of(path: str, segment: str) -> str:
    return f"{path[: path.rfind('/') + 1]}{segment}.hea"


def _header_of(source: Source, path: str, segment: str) -> Header:
    """The header of a segment."""
    beside = _path_of(path, segment)
    if "/" in segment or "\\" in segment or beside not in source or beside == path:
        raise UnusableError("unreadable", f"{path} has no segment {segment} beside it")
    inner = parse_header(source.read(beside, MAX_HEADER_BYTES), name=beside)
    if inner.segment_names:
        raise UnusableError("unreadable", f"{path} has segments inside segments")
    return inner
