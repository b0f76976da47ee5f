"""Headers of EDF, EDF+ and BDF files: fixed fields of text."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import date, datetime, time
from typing import NamedTuple

from clocs.errors import UnusableError
from clocs.formats.source import Source
from clocs.limits import MAX_HEADER_BYTES, check_size

_FIXED = 256  # bytes before the signals' fields, and of each signal's
_MONTHS = ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"]
_UNKNOWN_DATE = date(1985, 1, 1)  # what anonymised files have
_WIDTHS = (16, 80, 8, 8, 8, 8, 8, 80, 8)  # of the signals' fields, in order
_COUNT = re.compile(rb"\d{1,8} *")


class Signal(NamedTuple):
    """One signal: what it is called, what turns its samples into a unit, where they are."""

    name: str
    transducer: str
    unit: str
    gain: float  # steps per unit; negative where the signal is upside down
    zero: float  # the digital value of zero
    filters: str
    samples: int  # per data record
    start: int  # sample of a data record


@dataclass(frozen=True, slots=True)
class Header:
    """A whole header.

    Attributes:
        bytes_per_sample: 2, or 3 in BDF.
        size: Bytes of the header.
        records: Data records that lie in the file.
        seconds: Of a data record.
        record_samples: Of all signals in a data record.
        signals: Without those of annotations.
        annotations: (first byte, last byte) of each signal of annotations in a data record.
        continuous: Whether no time passes between data records.
        patient: A code, or whatever text stands for the patient; None where unknown.
        sex: 'male', 'female' or None.
        birth: Of the patient; None where unknown.
        taken: Start of the recording; None where unknown.
        equipment: Where EDF+ names it.
    """

    bytes_per_sample: int
    size: int
    records: int
    seconds: float
    record_samples: int
    signals: tuple[Signal, ...]
    annotations: tuple[tuple[int, int], ...]
    continuous: bool
    patient: str | None
    sex: str | None
    birth: date | None
    taken: datetime | None
    equipment: str | None

    @property
    def record_bytes(self) -> int:
        return self.record_samples * self.bytes_per_sample

    @property
    def age(self) -> float | None:
        """Of the patient at the time of the recording, in whole years: more would tell the day."""
        if self.birth is None or self.taken is None:
            return None
        years = (self.taken.date() - self.birth).days / 365.25
        return float(int(years)) if 0 <= years < 130 else None


def is_edf(head: bytes) -> bool:
    """Whether these bytes begin an EDF or BDF file."""
    if head[:8] != b"0       " and head[:8] != b"\xffBIOSEMI":
        return False
    size, signals = head[184:192], head[252:256]
    if not (_COUNT.fullmatch(size) and _COUNT.fullmatch(signals)):
        return False
    return int(size) == _FIXED * (int(signals) + 1)


def read_header(source: Source, path: str) -> Header:
    """The header of a file, compared with what lies on disk.

    Raises:
        UnusableError: unreadable, truncated or beyond the limits.
    """
    head = source.head(path, _FIXED)
    if not is_edf(head):
        raise UnusableError("unreadable", f"{path} has no header of EDF")
    size = int(head[184:192])
    check_size(size, packed=size, name=path, most=MAX_HEADER_BYTES)
    data = source.head(path, size)
    if len(data) < size:
        raise UnusableError("truncated", f"{path} breaks off in its header")
    try:
        return _parsed(data, source.size(path), path)
    except (ValueError, OverflowError, ZeroDivisionError) as error:
        raise UnusableError("unreadable", f"the header of {path} is damaged: {error}") from None


def _parsed(data: bytes, held: int, path: str) -> Header:
    text = data.decode("latin-1")
    bdf = data[:1] == b"\xff"
    width = 3 if bdf else 2
    size, kind, promised, seconds = (
        len(data), text[192:236], int(text[236:244]), float(text[244:252])
    )  # fmt: skip
    if not 0 <= seconds < math.inf:
        raise ValueError(f"a data record lasts {seconds} s")
    signals, annotations, record_samples = _signals(text, int(text[252:256]), width)
    present = (held - size) // (record_samples * width) if record_samples else 0
    if promised > present:
        raise UnusableError("truncated", f"{path} has {present:,} of {promised:,} data records")
    plus = kind[:4] in ("EDF+", "BDF+")
    patient, sex, birth = _person(text[8:88], plus=plus)
    taken, equipment = _taken(text[88:168], text[168:176], text[176:184])
    return Header(
        bytes_per_sample=width,
        size=size,
        records=present if promised < 0 else promised,
        seconds=seconds,
        record_samples=record_samples,
        signals=signals,
        annotations=annotations,
        continuous=kind[:5] not in ("EDF+D", "BDF+D"),
        patient=patient,
        sex=sex,
        birth=birth,
        taken=taken,
        equipment=equipment,
    )


def _signals(
    text: str, count: int, width: int
) -> tuple[tuple[Signal, ...], tuple[tuple[int, int], ...], int]:
    fields: list[list[str]] = []
    at = _FIXED
    for size in _WIDTHS:
        fields.append([text[at + i * size : at + (i + 1) * size].strip() for i in range(count)])
        at += size * count
    signals: list[Signal] = []
    annotations: list[tuple[int, int]] = []
    start = 0
    for name, transducer, unit, *numbers, filters, samples_text in zip(*fields, strict=True):
        samples = int(samples_text)
        if samples < 0:
            raise ValueError(f"a data record has {samples} samples of {name!r}")
        if name in ("EDF Annotations", "BDF Annotations"):
            annotations.append((start * width, (start + samples) * width))
        elif samples:
            low, high, first, last = map(float, numbers)  # physical, then digital
            gain = (last - first) / (high - low)
            if not (math.isfinite(gain) and gain):
                raise ValueError(f"{name!r} goes from {low} to {high} in {last - first} steps")
            zero = first - low * gain
            signals.append(Signal(name, transducer, unit, gain, zero, filters, samples, start))
        start += samples
    return tuple(signals), tuple(annotations), start


def _person(text: str, *, plus: bool) -> tuple[str | None, str | None, date | None]:
    """Code, sex and date of birth, as EDF+ has them; else the whole text stands for the patient."""
    words = text.split()
    if not plus and not (len(words) >= 4 and words[1] in ("M", "F", "X")):
        return " ".join(words) or None, None, None
    code, sex, birth = (*words, "X", "X", "X")[:3]
    return (
        None if code == "X" else code.replace("_", " "),
        {"M": "male", "F": "female"}.get(sex),
        _date(birth),
    )


def _taken(recording: str, day: str, clock: str) -> tuple[datetime | None, str | None]:
    """The start of the recording, and the equipment, where EDF+ gives it."""
    words = recording.split()
    plus = words[:1] == ["Startdate"]
    known = (*words, "X", "X", "X", "X")
    equipment = known[4] if plus and known[4] != "X" else None
    when = _date(known[1]) if plus else _short_date(day)
    hour, minute, second = (*(clock.replace(":", ".").split(".")), "", "", "")[:3]
    if when is None:
        return None, equipment
    try:
        return datetime.combine(when, time(int(hour), int(minute), int(second))), equipment
    except ValueError:
        return datetime.combine(when, time()), equipment


def _date(text: str) -> date | None:
    """'02-MAR-2002'; None where unknown ('X')."""
    day, month, year = (*text.upper().split("-"), "", "")[:3]
    try:
        return date(int(year), _MONTHS.index(month) + 1, int(day))
    except ValueError:
        return None


def _short_date(text: str) -> date | None:
    """'02.03.02': years from 85 on are of the last century."""
    try:
        day, month, year = map(int, text.split("."))
        found = date(year + (1900 if year >= 85 else 2000), month, day)
    except ValueError:
        return None
    return None if found == _UNKNOWN_DATE else found
