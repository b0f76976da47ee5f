"""Signals of one WFDB header, whole or a stretch of them: integers, and which are missing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clocs.errors import UnusableError
from clocs.formats.flac import flac_samples, read_flac
from clocs.formats.source import Source
from clocs.formats.wfdb_formats import (
    FLAC_BITS,
    FORMATS,
    MISSING,
    Integers,
    bytes_of,
    decode,
    samples_in,
)
from clocs.formats.wfdb_header import Header, Signal
from clocs.limits import check_size

_MAX_SKEW = 100_000  # frames between two signals of one moment; real ones are a few
NO_FILE = "~"


class Rows(NamedTuple):
    """Signals as they are in a file.

    Attributes:
        steps: (signals, samples); whatever where samples are missing.
        missing: (signals, samples), or None where none is.
    """

    steps: Integers
    missing: NDArray[np.bool_] | None


class _File(NamedTuple):
    """One signal file of a header."""

    name: str  # in the source
    form: str
    offset: int
    columns: dict[int, int]  # of each signal, by its number in the header: where it is in a frame
    width: int  # samples of a frame


def beside(path: str, file: str, source: Source) -> str:
    """The name in the source of a file that a header names.

    Raises:
        UnusableError: It is not there, or in another folder.
    """
    if "/" in file or "\\" in file:
        raise UnusableError("unreadable", f"{path} names a file in another folder: {file}")
    name = path[: path.rfind("/") + 1] + file
    if name not in source:
        raise UnusableError("unreadable", f"{path} names {file}, which is not beside it")
    return name


def frames_of(source: Source, path: str, header: Header) -> int:
    """How many frames a header's signals have: by its word, else by the size of their file.

    Raises:
        UnusableError: Their file is missing, or of no known format.
    """
    if header.samples:  # 0 means the same as nothing
        return header.samples
    first = next((one for one in header.signals if one.file != NO_FILE), None)
    if first is None:
        return 0
    file = _file(source, path, header, first.file)
    return _held(source, file, path)


def size_of_signals(source: Source, path: str, header: Header) -> int:
    """Bytes of a header's signal files."""
    files = {signal.file for signal in header.signals} - {NO_FILE}
    return sum(source.size(beside(path, file, source)) for file in files)


def signal_rows(
    source: Source, path: str, header: Header, kept: Sequence[int], *, first: int, count: int
) -> Rows:
    """Some signals of a header, which have the same number of samples per frame.

    Args:
        source: Holds the signal files.
        path: Of the header.
        header: Parsed.
        kept: Numbers of the signals.
        first: Frame to start with.
        count: Frames.

    Raises:
        UnusableError: truncated, unreadable or beyond the limits.
    """
    per_frame = header.signals[kept[0]].samples_per_frame
    if all(header.signals[number].file == NO_FILE for number in kept):
        raise UnusableError("nan", f"{path} has no samples of {header.signals[kept[0]].name}")
    size = size_of_signals(source, path, header)
    rows: list[Integers] = []
    absent: list[NDArray[np.bool_] | None] = []
    decoded: dict[str, Integers] = {}
    for number in kept:
        signal = header.signals[number]
        if signal.skew > _MAX_SKEW:
            detail = f"{path} shifts {signal.name} by {signal.skew:,} samples"
            raise UnusableError("unreadable", detail)
        if signal.file == NO_FILE:
            check_size(2 * count * per_frame * len(kept), packed=size, name=path)
            rows.append(np.zeros(count * per_frame, np.int16))
            absent.append(np.ones(count * per_frame, np.bool_))
            continue
        file = _file(source, path, header, signal.file)
        if signal.file not in decoded:
            most = max(s.skew for s in header.signals if s.file == signal.file)
            held = _held(source, file, path)
            whole = header.samples or held
            if held < whole or whole < first + count or not whole:
                wanted = max(first + count, header.samples or 0)
                raise UnusableError("truncated", f"{path} has {held} of {wanted} samples")
            stop = min(first + count + min(most, _MAX_SKEW), whole)
            decoded[signal.file] = _decoded(source, file, header, path, first, stop - first)
        frames, column = decoded[signal.file], file.columns[number]
        here = frames[signal.skew : signal.skew + count, column : column + per_frame].reshape(-1)
        row, missing = _padded(here, count * per_frame, MISSING.get(file.form))
        rows.append(row)
        absent.append(missing)
    kind = np.result_type(*rows)
    steps = np.empty((len(rows), count * per_frame), kind)
    for i, row in enumerate(rows):
        steps[i] = row
    if all(one is None for one in absent):
        return Rows(steps, None)
    missing = np.zeros(steps.shape, np.bool_)
    for i, one in enumerate(absent):
        if one is not None:
            missing[i] = one
    return Rows(steps, missing)


def _padded(
    row: Integers, count: int, mark: int | None
) -> tuple[Integers, NDArray[np.bool_] | None]:
    """A row of `count` samples, and which of them are missing; None where none is."""
    short = count - len(row)
    if short:  # shifted beyond the end of the file
        row = np.concatenate([row, np.zeros(short, row.dtype)])
    missing = np.zeros(count, np.bool_) if mark is None else row == mark
    if short:
        missing[count - short :] = True
    return row, missing if missing.any() else None


def _file(source: Source, path: str, header: Header, name: str) -> _File:
    columns: dict[int, int] = {}
    width = 0
    own: list[Signal] = []
    for number, signal in enumerate(header.signals):
        if signal.file == name:
            own.append(signal)
            columns[number] = width
            width += signal.samples_per_frame
    form = own[0].format
    if form not in FORMATS or any(one.format != form for one in own) or not width:
        found = ", ".join(sorted({one.format for one in own}))
        raise UnusableError("unreadable", f"{path} has signals of format {found} in {name}")
    if form in FLAC_BITS and len({one.samples_per_frame for one in own}) > 1:
        raise UnusableError("unreadable", f"{path} has several rates in the FLAC stream {name}")
    return _File(beside(path, name, source), form, own[0].offset, columns, width)


def _held(source: Source, file: _File, path: str) -> int:
    """Frames in a file."""
    if file.form in FLAC_BITS:
        per_frame = file.width // len(file.columns)
        return max(flac_samples(source, file.name, path) - file.offset, 0) // per_frame
    return samples_in(file.form, max(source.size(file.name) - file.offset, 0)) // file.width


def _decoded(
    source: Source, file: _File, header: Header, path: str, first: int, count: int
) -> Integers:
    """(frames, samples of a frame)."""
    if file.form in FLAC_BITS:
        channels = len(file.columns)
        per_frame = file.width // channels
        flat = read_flac(
            source,
            file.name,
            channels=channels,
            start=file.offset + first * per_frame,
            count=count * per_frame,
            bits=FLAC_BITS[file.form],
            path=path,
        )
        if len(flat) < count * per_frame:
            detail = f"{path} has {len(flat)} of {count * per_frame} samples from {first} on"
            raise UnusableError("truncated", detail)
        return flat.reshape(count, per_frame, channels).transpose(0, 2, 1).reshape(count, -1)
    if file.form == "8":
        return _summed(source, file, header, first, count)
    whole = first == 0 and bytes_of(file.form, count * file.width) + file.offset >= source.size(
        file.name
    )
    data = source.read(file.name) if whole else b""

    def piece(start: int, size: int) -> bytes:
        start += file.offset
        return data[start : start + size] if whole else source.piece(file.name, start, size)

    return decode(file.form, piece, first * file.width, count * file.width).reshape(count, -1)


def _summed(source: Source, file: _File, header: Header, first: int, count: int) -> Integers:
    """Format 8 holds differences: all of them are added up from the start on."""
    size = (first + count) * file.width
    data = source.piece(file.name, file.offset, size)
    steps = decode("8", lambda start, held: data[start : start + held], 0, size)
    frames = steps.reshape(first + count, -1)
    summed = np.empty((count, file.width), np.int32)
    for number, column in file.columns.items():
        signal = header.signals[number]
        stop = column + signal.samples_per_frame
        values = frames[:, column:stop].cumsum(dtype=np.int32) + np.int32(signal.initial)
        summed[:, column:stop] = values.reshape(first + count, -1)[first:]
    return summed
