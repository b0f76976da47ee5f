"""EDF, EDF+ and BDF files, whole or in stretches, with the values that edfio gives.

Signals that are voltages and have the rate of the ECG are kept; others are named in a notice. The
value of zero is rounded to a whole count, so that samples stay unchanged.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import date, datetime, time
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clocs.errors import UnusableError
from clocs.files import MAX_HEADER_BYTES, check_size
from clocs.formats import base
from clocs.formats.base import FileMetadata, Part, ReadOptions, truncated, unreadable
from clocs.formats.source import Source, stem
from clocs.formats.wfdb_signals import Integers, decode
from clocs.recording import UNITS_PER_MV, Episode, Recording, check_rate

_FIXED = 256  # bytes before the signals' fields, and of each signal's
_MONTHS = ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"]
_UNKNOWN_DATE = date(1985, 1, 1)  # what anonymized files have
_WIDTHS = (16, 80, 8, 8, 8, 8, 8, 80, 8)  # of the signals' fields, in order
_COUNT = re.compile(rb"\d{1,8} *")
_AT_ONCE = 8 << 20  # bytes, where only annotations are looked for
_MAX_TEXT = 2000  # characters of annotations in `extra`
_MAX_ANNOTATIONS = 1_000_000
# Texts of annotations that name a rhythm, in upper case; one letter could be a beat.
RHYTHMS = frozenset(
    {
        *("AB", "AF", "AFIB", "AFL", "BII", "IVR", "NOD", "NSR", "PREX", "SB", "SBR", "SR", "ST"),
        *("SVT", "SVTA", "VF", "VFL", "VT", "SINUS RHYTHM", "NORMAL SINUS RHYTHM"),
        *("SINUS BRADYCARDIA", "SINUS TACHYCARDIA", "ATRIAL FIBRILLATION", "ATRIAL FLUTTER"),
        *("VENTRICULAR TACHYCARDIA", "PACED RHYTHM"),
    }
)


class _Note(NamedTuple):
    """An annotation: when it starts and how long it lasts, in seconds, and its text."""

    onset: float
    duration: float | None
    text: str


class _Signal(NamedTuple):
    """One signal: what it is called, what turns its samples into a unit, where they are."""

    name: str
    transducer: str
    unit: str
    gain: float  # ADC counts per unit; negative where the signal is upside down
    zero: float  # the digital value of zero
    filters: str
    samples: int  # per data record
    start: int  # sample of a data record


def is_edf(head: bytes) -> bool:
    """Whether these bytes begin an EDF or BDF file."""
    if head[:8] != b"0       " and head[:8] != b"\xffBIOSEMI":
        return False
    size, signals = head[184:192], head[252:256]
    if not (_COUNT.fullmatch(size) and _COUNT.fullmatch(signals)):
        return False
    return int(size) == _FIXED * (int(signals) + 1)


class _EdfFile(base.OpenFile):
    """A file whose header was compared with what lies on disk.

    Raises:
        UnusableError: unreadable, truncated or beyond the limits.
    """

    names = ("",)
    stays = True  # stretches of one recording follow each other

    def __init__(self, source: Source, path: str, options: ReadOptions) -> None:
        head = source.head(path, _FIXED)
        if not is_edf(head):
            raise unreadable(f"{path} has no header of EDF")
        size = int(head[184:192])
        check_size(size, packed=size, name=path, most=MAX_HEADER_BYTES)
        text = source.head(path, size).decode("latin-1")
        if len(text) < size:
            raise truncated(f"{path} breaks off in its header")
        self._source, self._path, self._start = source, path, size
        self._width = 3 if head[:1] == b"\xff" else 2  # bytes of a sample
        self._signals: list[_Signal] = []  # without those of annotations
        self._spans: list[tuple[int, int]] = []  # bytes of a data record that hold annotations
        try:
            promised, self._seconds = int(text[236:244]), float(text[244:252])
            if not 0 <= self._seconds < math.inf:
                raise ValueError(f"a data record lasts {self._seconds} s")
            self._samples = self._describe(text, int(text[252:256]))  # of a data record
        except (ValueError, OverflowError, ZeroDivisionError) as error:
            raise unreadable(f"the header of {path} is damaged: {error}") from None
        self._record = self._samples * self._width  # bytes
        held = (source.size(path) - size) // self._record if self._record else 0
        if promised > held:
            raise truncated(f"{path} has {held:,} of {promised:,} data records")
        self._records = held if promised < 0 else promised
        self._continuous = text[192:197] not in ("EDF+D", "BDF+D")
        self._meta = _metadata(text, plus=text[192:196] in ("EDF+", "BDF+"))

    def _describe(self, text: str, count: int) -> int:
        """Add the signals and annotations of a header; returns the samples of a data record."""
        fields: list[list[str]] = []
        at = _FIXED
        for size in _WIDTHS:
            stop = at + size * count
            fields.append([text[i : i + size].strip() for i in range(at, stop, size)])
            at = stop
        start = 0
        for name, transducer, unit, *numbers, filters, samples_text in zip(*fields, strict=True):
            samples = int(samples_text)
            if samples < 0:
                raise ValueError(f"a data record has {samples} samples of {name!r}")
            if name in ("EDF Annotations", "BDF Annotations"):
                self._spans.append((start * self._width, (start + samples) * self._width))
            elif samples:
                low, high, first, last = map(float, numbers)  # physical, then digital
                gain = (last - first) / (high - low)
                if not (math.isfinite(gain) and gain):
                    raise ValueError(f"{name!r} goes from {low} to {high} in {last - first} steps")
                zero = first - low * gain
                signal = _Signal(name, transducer, unit, gain, zero, filters, samples, start)
                self._signals.append(signal)
            start += samples
        return start

    def parts(self, options: ReadOptions) -> list[Part]:
        """The recording, with its duration."""
        seconds = self._records * self._seconds
        if not self._continuous:
            starts = [start for start in self._annotations[0] if math.isfinite(start)]
            seconds = max(starts) - starts[0] + self._seconds if starts else seconds
        return [Part(seconds=seconds, patient=self._meta.patient)]

    def read(self, options: ReadOptions) -> Recording:
        """The recording; `leads`, `lead_names`, `start` and `stop` of the options count."""
        path = self._path
        if not self._signals or not self._seconds:
            raise unreadable(f"{path} has no signal over time")
        kinds = tuple((one.samples, one.unit, one.name) for one in self._signals)
        kept, leads, unit, notes = base.choose_signals(kinds, options, name=path)
        signals = [self._signals[i] for i in kept]
        per_record = signals[0].samples
        rate = per_record / self._seconds
        check_rate(rate, name=path)
        samples, onsets = self._records * per_record, None
        if not self._continuous and self._spans:
            onsets = self._onsets(rate)
            samples = int(onsets.max(initial=0)) + per_record
        wanted = base.stretch(options, rate=rate, samples=samples, name=path)
        counts, missing = self._counts(signals, wanted, onsets)
        per_mv = np.array([s.gain * UNITS_PER_MV.get(s.unit.lower(), 1.0) for s in signals])
        zero = np.rint([s.zero for s in signals])
        if (per_mv < 0).any():  # upside down in the file
            turn = np.where(per_mv < 0, -1, 1)
            counts, per_mv, zero = (
                counts.astype(np.int32) * turn[:, None],
                per_mv * turn,
                zero * turn,
            )
        episodes, others = _within(self._annotations[1], rate, wanted, samples)
        extra = {**notes, "filters": signals[0].filters, "transducer": signals[0].transducer}
        extra |= {**self._meta.extra, "annotations": others}
        meta = replace(
            self._meta,
            leads=leads,
            rate=rate,
            unit=unit,
            episodes=episodes,
            extra={key: value for key, value in extra.items() if value},
        )
        return base.make_recording(
            counts,
            meta,
            per_mv=per_mv,
            zero=zero,
            missing=missing,
            name=path,
            recording_id=stem(path),
            select=options.leads,
        )

    def _counts(
        self, signals: Sequence[_Signal], wanted: slice, onsets: NDArray[np.int64] | None
    ) -> tuple[Integers, NDArray[np.bool_] | None]:
        """(signals, samples), and where no data record has any."""
        source, path, per_record = self._source, self._path, signals[0].samples
        first, last = wanted.start // per_record, -(-wanted.stop // per_record)
        if onsets is not None:
            touched = np.flatnonzero((onsets < wanted.stop) & (onsets + per_record > wanted.start))
            first, last = int(touched.min(initial=self._records)), int(touched.max(initial=-1)) + 1
        count = max(last - first, 0)
        start, size = self._start + first * self._record, count * self._record
        check_size(size, packed=size, name=path)
        whole = not first and count == self._records
        data = source.read(path)[start : start + size] if whole else source.piece(path, start, size)
        if len(data) < size:
            raise truncated(f"{path} breaks off in data record {first + count}")
        flat: NDArray[Any] = (
            np.frombuffer(data, "<i2")
            if self._width == 2
            else decode("24", lambda at, held: data[at : at + held], 0, size // 3)
        )
        records = flat.reshape(count, self._samples)
        shape = (len(signals), wanted.stop - wanted.start)
        rows = [records[:, one.start : one.start + per_record].reshape(-1) for one in signals]
        if onsets is None:
            skipped = wanted.start - first * per_record
            return np.stack([row[skipped : skipped + shape[1]] for row in rows]), None
        check_size(2 * shape[0] * shape[1], packed=source.size(path), name=path)
        places = (onsets[first:last, None] - wanted.start + np.arange(per_record)).reshape(-1)
        inside = (places >= 0) & (places < shape[1])
        counts, missing = np.zeros(shape, records.dtype), np.ones(shape, np.bool_)
        missing[:, places[inside]] = False
        for i, row in enumerate(rows):
            counts[i, places[inside]] = row[inside]
        return counts, missing

    def _onsets(self, rate: float) -> NDArray[np.int64]:
        """The first sample of each data record, on the clock of the first."""
        seconds = np.array(self._annotations[0])
        if len(seconds) != self._records or not self._records or not np.isfinite(seconds).all():
            raise unreadable(f"{self._path} does not say when each of its data records starts")
        places = np.rint((seconds - seconds[0]) * rate)
        if places.min() < 0 or places.max() > 2**40:
            raise unreadable(f"the data records of {self._path} are not in order")
        return np.asarray(places, np.int64)

    @cached_property
    def _annotations(self) -> tuple[list[float], list[_Note]]:
        """The start of each data record, and all annotations, relative to the first one's start."""
        starts: list[float] = []
        notes: list[_Note] = []
        step = max(_AT_ONCE // max(self._record, 1), 1)
        for first in range(0, self._records if self._spans else 0, step):
            size = min(step, self._records - first) * self._record
            data = self._source.piece(self._path, self._start + first * self._record, size)
            for at in range(0, len(data), self._record):
                own = [one for a, b in self._spans for one in _parsed(data[at + a : at + b])]
                starts.append(next((note.onset for note in own if not note.text), math.nan))
                notes += [note for note in own if note.text]
                if len(notes) > _MAX_ANNOTATIONS:
                    text = f"{self._path} has more than a million annotations"
                    raise UnusableError("exceeds limits", text)
        zero = starts[0] if starts and math.isfinite(starts[0]) else 0.0
        return starts, [note._replace(onset=note.onset - zero) for note in notes]


def _metadata(text: str, *, plus: bool) -> FileMetadata:
    """What the fixed fields say; plain EDF has one text for the patient."""
    person = text[8:88].split()
    code, sex, birth = (*person, "X", "X", "X")[:3]
    if not plus and not (len(person) >= 4 and sex in ("M", "F", "X")):
        code, sex, birth = " ".join(person) or "X", "X", "X"
    else:
        code = code.replace("_", " ")
    words = (*text[88:168].split(), "X", "X", "X", "X", "X")
    plus = words[0] == "Startdate"
    day, born = _date(words[1]) if plus else _short_date(text[168:176]), _date(birth)
    try:
        hours, minutes, seconds = map(int, text[176:184].replace(":", ".").split(".")[:3])
        hour = time(hours, minutes, seconds)
    except ValueError:
        hour = time()
    return FileMetadata(
        patient=None if code == "X" else code,
        sex=base.SEXES.get(sex.lower()),
        age=base.age_on(day, born),
        recorded_at=None if day is None else datetime.combine(day, hour).isoformat(),
        extra={"equipment": words[4]} if plus and words[4] != "X" else {},
    )


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


def _parsed(data: bytes) -> Iterator[_Note]:
    """The annotations in one data record: onset, 21, duration, 20, text, 20, text, 20, 0."""
    for one in data.split(b"\0"):
        time, _, texts = one.partition(b"\x14")
        onset, _, duration = time.partition(b"\x15")
        try:
            start, lasts = float(onset), float(duration) if duration else None
        except ValueError:
            continue
        if not (abs(start) < 1e9 and (lasts is None or 0 <= lasts < 1e9)):
            continue
        for text in texts.split(b"\x14")[:-1]:
            yield _Note(start, lasts, text.decode("utf-8", "replace").strip())


def _within(
    notes: Sequence[_Note], rate: float, wanted: slice, samples: int
) -> tuple[tuple[Episode, ...], str]:
    """Rhythms within a stretch as episodes, and the other annotations there as text."""
    timed = sorted(notes, key=lambda note: note.onset)
    rhythms = [note for note in timed if is_rhythm(note.text)]
    ends = [*(round(note.onset * rate) for note in rhythms[1:]), samples]
    episodes = []
    for note, following in zip(rhythms, ends, strict=False):
        lasts = round((note.onset + note.duration) * rate) if note.duration else following
        start, stop = max(round(note.onset * rate), wanted.start), min(lasts, wanted.stop)
        if start < stop:
            label = note.text.lstrip("(").strip()
            episodes.append(Episode(start - wanted.start, stop - wanted.start, label))
    low, high = wanted.start / rate, wanted.stop / rate
    others = [note for note in timed if low <= note.onset < high and not is_rhythm(note.text)]
    text = "; ".join(f"{note.onset:g} s: {note.text}" for note in others)
    return tuple(episodes), text[:_MAX_TEXT]


def is_rhythm(text: str) -> bool:
    """Whether the text of an annotation names a rhythm: '(AFIB', 'AFIB', 'Atrial fibrillation'."""
    return text.upper() in RHYTHMS or bool(re.fullmatch(r"\([A-Z]+", text))


EDF = base.format_of_several(
    "EDF", (".edf", ".bdf"), _EdfFile, recognize=is_edf, single=True, reads_stretches=True
)
