"""WFDB headers: the text of a `.hea` file as fields.

Follows the published format and, where real headers deviate from it, the wfdb package.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clocs.errors import UnusableError
from clocs.files import MAX_HEADER_BYTES, MAX_LINE, check_size
from clocs.formats.base import HEAD_BYTES
from clocs.recording import UNITS_PER_MV, said_by_file

_RECORD = re.compile(
    r"[ \t]*([-\w]++)(?:/(\d*))?[ \t]+(\d+)"  # name/segments signals; `++`: in linear time
    r"[ \t]*(\d*\.?\d*)/*-?\d*\.?\d*\(?-?\d*\.?\d*\)?"  # rate/counter rate(counter)
    r"[ \t]*(\d*)"  # samples; time and date may follow
)
_SIGNAL = re.compile(
    r"[ \t]*(\S*)[ \t]+(\d+)x?(\d*):?(\d*)\+?(\d*)"  # file format x frame : skew + offset
    r"[ \t]*(-?\d*\.?\d*e?[\+-]?\d*)\(?(-?\d*)\)?/?([\w\^\-\?%\/]*)"  # gain(baseline)/unit
    r"[ \t]*\d*[ \t]*(-?\d*)[ \t]*(-?\d*)[ \t]*-?\d*[ \t]*\d*[ \t]*"  # … zero, first value …
    r"([\S]?[^\t\n\r\f\v]*)"  # name
)
_SIGNAL_START = re.compile(
    r"(?:~|-|[^\s,;]*\.\w+)[ \t]+"
    r"(?:8|16|24|32|61|80|160|212|310|311|508|516|524)(?:[x:+]\d+)*(?:\s|$)"
)
_SEGMENT = re.compile(r"(?:~|[-\w]+)[ \t]+\d+")
_TIME = re.compile(r"(?:^|\s)(\d{1,2}):(\d{1,2})(?::(\d{1,2}))?")
_DAY = re.compile(r"(?:^|\s)(\d{1,2})[/-](\d{1,2}|[A-Za-z]{3})[/-](\d{4})(?:\s|$)")
_REST = re.compile(r"(-?\d{1,9}) -?\d+ \d+ ([^\t\n\r\f\v ]+)$")  # first value … block, name
_MONTHS = "jan feb mar apr may jun jul aug sep oct nov dec"
NO_FILE = "~"  # in place of a signal file or a segment: there are no samples
_NO_PREFIX = "\n"  # no line starts like this
_LARGEST_INT32 = 2**31 - 1
_MAX_COUNT = 2**40  # samples, bytes or segments: far more than any record has


class Signal(NamedTuple):
    """One signal line: where its samples are, and what turns them into a unit."""

    file: str
    format: str
    skew: int
    offset: int
    samples_per_frame: int
    gain: float
    baseline: int
    unit: str
    name: str
    initial: int = 0  # the value before the first difference, in format 8


@dataclass
class Header:
    """A whole header; what follows from it is computed once, as `parse_header` keeps headers.

    Attributes:
        rate: In Hz.
        samples: Per signal; None where the header leaves it to the size of the file.
        signals: In the order of the header; empty if there are segments.
        segments: Name and samples of each; empty for an ordinary record.
        comments: Without their '#'.
        recorded_at: Start of the recording as ISO 8601; None where the header gives no date.
    """

    rate: float
    samples: int | None
    signals: tuple[Signal, ...]
    segments: tuple[tuple[str, int], ...]
    comments: tuple[str, ...]
    recorded_at: str | None

    @cached_property
    def fields(self) -> dict[str, str]:
        """Comments of the form `Name: value`."""
        pairs = [comment.partition(":") for comment in self.comments]
        return said_by_file({key.strip(): value.strip() for key, colon, value in pairs if colon})

    @cached_property
    def kinds(self) -> tuple[tuple[int, str, str], ...]:
        """Samples per frame, unit and name of each signal."""
        return tuple((one.samples_per_frame, one.unit, one.name) for one in self.signals)

    @cached_property
    def scales(self) -> tuple[NDArray[np.float64], NDArray[np.int32]]:
        """ADC counts per mV (or per unit of what is no voltage) and the count of 0, by signal."""
        per_mv = [one.gain * UNITS_PER_MV.get(one.unit.lower(), 1.0) for one in self.signals]
        return np.array(per_mv), np.array([one.baseline for one in self.signals], np.int32)

    @cached_property
    def is_plain(self) -> bool:
        """Whether all are in one file of format 16 or 516, as those of most published records."""
        first = self.signals[0]
        plain = (first.file, first.format, 0, first.offset, 1)  # without skew, one per frame
        same = all(one[:5] == plain for one in self.signals) and first.format in ("16", "516")
        return bool(same and first.file != NO_FILE and self.samples)


@lru_cache(maxsize=64)  # finding a record's files and reading it both parse its header
def parse_header(data: bytes, *, name: str) -> Header:
    """Parse the bytes of a header.

    Raises:
        UnusableError: unreadable or beyond the limits; the message contains `name`.
    """
    if len(data) > MAX_HEADER_BYTES:
        check_size(len(data), packed=len(data), name=name, most=MAX_HEADER_BYTES)
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = data.decode("latin-1")  # 'µV' of older programs
    lines: list[str] = []
    comments: list[str] = []
    for line in map(str.strip, text.splitlines()):
        if line[:1] == "#":
            comments.append(line.strip(" \t#"))
        elif line:
            lines.append(line)
    try:
        if max(map(len, lines), default=0) > MAX_LINE:
            raise ValueError(f"it has a line of more than {MAX_LINE:,} characters")
        return _header(lines, tuple(comments))
    except (ValueError, OverflowError) as error:
        raise UnusableError("unreadable", f"the header {name} is damaged: {error}") from None


def is_header(head: bytes) -> bool:
    """Whether these bytes begin a header: a record line, and below it signals or segments."""
    text = head.decode("latin-1")
    if "\0" in text:
        return False
    lines = [line for line in map(str.strip, text.splitlines()) if line and line[0] != "#"]
    if len(head) >= HEAD_BYTES:
        lines = lines[:-1]  # perhaps cut
    record = _RECORD.match(lines[0]) if len(lines) > 1 and len(lines[0]) <= MAX_LINE else None
    if record is None:
        return False
    if record[2] is not None:
        return all(_SEGMENT.fullmatch(line) for line in lines[1:])
    below = lines[1:] if len(head) < HEAD_BYTES else lines[1:][: int(record[3][:4])]
    return all(_SIGNAL_START.match(line) for line in below[: int(record[3][:4])])


def _header(lines: list[str], comments: tuple[str, ...]) -> Header:
    if not lines:
        raise ValueError("it has no record line")
    match = _RECORD.match(lines[0])
    if match is None:
        raise ValueError(f"its record line is {lines[0][:60]!r}")
    _, segments, count, rate_text, samples = match.groups()
    rate = float(rate_text) if rate_text else 250.0
    if not 0 < rate < math.inf:
        raise ValueError(f"its rate is {rate_text} Hz")
    rate = float(int(rate)) if round(rate, 8) == int(rate) else rate
    signals: tuple[Signal, ...] = ()
    parts: list[list[str]] = []
    if segments:
        _count(segments)
        parts = [line.split()[:2] for line in lines[1:]]
        if not all(len(part) == 2 and part[1].isdecimal() for part in parts):
            raise ValueError("a segment line does not give a name and a number of samples")
    else:
        signals = _signals(lines[1:])
        if len(signals) != int(count):
            raise ValueError(f"it promises {count} signals and describes {len(signals)}")
        if not signals:
            raise ValueError("it describes no signal")
    return Header(
        rate,
        _count(samples) if samples else None,
        signals,
        tuple((name, _count(frames)) for name, frames in parts),
        comments,
        _recorded_at(lines[0][match.end() :]) or _day_in(comments),
    )


def _count(text: str) -> int:
    count = int(text)
    if count > _MAX_COUNT:
        raise ValueError(f"it counts to {text:.20}")
    return count


def _recorded_at(text: str) -> str | None:
    """'11:39:16 05/02/2020', or as PhysioNet 2020 has it '05-Feb-2020 11:39:16' -> ISO 8601."""
    day = _DAY.search(text) if text else None
    if day is None:
        return None
    name = _MONTHS.find(day[2].lower())
    month = int(day[2]) if day[2].isdecimal() else name // 4 + 1
    time = _TIME.search(text)
    hour, minute, second = map(int, time.groups("0")) if time else (0, 0, 0)
    try:
        moment = datetime(int(day[3]), month, int(day[1]), hour, minute, second)
    except ValueError:
        return None  # no such date
    return moment.isoformat() if time else moment.date().isoformat()


def _day_in(comments: tuple[str, ...]) -> str | None:
    """The day in a comment 'ECG date: 01/10/1990', as PTB's headers have it."""
    own = [text for text in comments if text.lower().startswith("ecg date:")]
    return _recorded_at(own[0]) if own else None


def _signals(lines: list[str]) -> tuple[Signal, ...]:
    """All signal lines; most repeat the previous line in all but their last fields."""
    signals: list[Signal] = []
    prefix = _NO_PREFIX
    for line in lines:
        rest = _REST.match(line, len(prefix)) if line.startswith(prefix) else None
        if rest is not None:
            signals.append(Signal._make((*signals[-1][:8], rest[2], int(rest[1]))))
            continue
        signals.append(_signal(line))
        words = line.split(" ")
        whole = len(words) == 9 and words[8] == signals[-1].name and "" not in words
        prefix = " ".join(words[:5]) + " " if whole else _NO_PREFIX
    return tuple(signals)


def _signal(line: str) -> Signal:
    match = _SIGNAL.match(line)
    if match is None:
        raise ValueError(f"a signal line is {line[:60]!r}")
    file, form, frame, skew, offset, gain_text, baseline_text, unit, zero, first, name = (
        match.groups()
    )
    gain = (float(gain_text) if gain_text else 0.0) or 200.0
    baseline = int(baseline_text or zero or 0)
    if not math.isfinite(gain) or abs(baseline) > _LARGEST_INT32:
        raise ValueError(f"a gain is {gain_text}, its baseline {baseline}")
    places = _count(skew or "0"), _count(offset or "0"), _count(frame or "1")
    value = int(first) if first.lstrip("-") else 0
    initial = value if abs(value) <= _LARGEST_INT32 else 0
    return Signal(file, form, *places, gain, baseline, unit or "mV", name, initial)
