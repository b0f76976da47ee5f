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
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clocs.errors import UnusableError
from clocs.formats import base
from clocs.formats.base import FileFormat, FileMetadata, Part, ReadOptions, truncated, unreadable
from clocs.formats.source import Source, stem
from clocs.formats.wfdb_signals import Integers, decode
from clocs.limits import MAX_HEADER_BYTES, check_size
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


class _Header(NamedTuple):
    """A whole header.

    Attributes:
        bytes_per_sample: 2, or 3 in BDF.
        size: Bytes of the header.
        records: Data records that lie in the file.
        seconds: Of a data record.
        record_samples: Of all signals in a data record.
        record_bytes: Of a data record.
        signals: Without those of annotations.
        annotations: (first byte, last byte) of each signal of annotations in a data record.
        continuous: Whether no time passes between data records.
        meta: On the patient, the time and the equipment.
    """

    bytes_per_sample: int
    size: int
    records: int
    seconds: float
    record_samples: int
    record_bytes: int
    signals: tuple[_Signal, ...]
    annotations: tuple[tuple[int, int], ...]
    continuous: bool
    meta: FileMetadata


def is_edf(head: bytes) -> bool:
    """Whether these bytes begin an EDF or BDF file."""
    if head[:8] != b"0       " and head[:8] != b"\xffBIOSEMI":
        return False
    size, signals = head[184:192], head[252:256]
    if not (_COUNT.fullmatch(size) and _COUNT.fullmatch(signals)):
        return False
    return int(size) == _FIXED * (int(signals) + 1)


def _read_header(source: Source, path: str) -> _Header:
    """The header of a file, compared with what lies on disk.

    Raises:
        UnusableError: unreadable, truncated or beyond the limits.
    """
    head = source.head(path, _FIXED)
    if not is_edf(head):
        raise unreadable(f"{path} has no header of EDF")
    size = int(head[184:192])
    check_size(size, packed=size, name=path, most=MAX_HEADER_BYTES)
    text = source.head(path, size).decode("latin-1")
    if len(text) < size:
        raise truncated(f"{path} breaks off in its header")
    width, kind = 3 if head[:1] == b"\xff" else 2, text[192:197]
    try:
        promised, seconds = int(text[236:244]), float(text[244:252])
        if not 0 <= seconds < math.inf:
            raise ValueError(f"a data record lasts {seconds} s")
        signals, annotations, samples = _signals(text, int(text[252:256]), width)
    except (ValueError, OverflowError, ZeroDivisionError) as error:
        raise unreadable(f"the header of {path} is damaged: {error}") from None
    record = samples * width
    held = (source.size(path) - size) // record if record else 0
    if promised > held:
        raise truncated(f"{path} has {held:,} of {promised:,} data records")
    continuous = kind not in ("EDF+D", "BDF+D")
    meta = _metadata(text, plus=kind[:4] in ("EDF+", "BDF+"))
    records = held if promised < 0 else promised
    sizes = width, size, records, seconds, samples, record
    return _Header(*sizes, signals, annotations, continuous, meta)


def _signals(
    text: str, count: int, width: int
) -> tuple[tuple[_Signal, ...], tuple[tuple[int, int], ...], int]:
    fields: list[list[str]] = []
    at = _FIXED
    for size in _WIDTHS:
        stop = at + size * count
        fields.append([text[i : i + size].strip() for i in range(at, stop, size)])
        at = stop
    signals: list[_Signal] = []
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
            signals.append(_Signal(name, transducer, unit, gain, zero, filters, samples, start))
        start += samples
    return tuple(signals), tuple(annotations), start


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
        hour = time(*map(int, text[176:184].replace(":", ".").split(".")[:3]))
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


def read_edf(source: Source, path: str, options: ReadOptions | None = None) -> Recording:
    """Read one file.

    Args:
        source: Holds the file.
        path: Its name in the source.
        options: `leads`, `lead_names`, `start` and `stop` count.

    Raises:
        UnusableError: truncated, unreadable, nan, implausible or beyond the limits.
    """
    options = options or ReadOptions()
    header = _read_header(source, path)
    if not header.signals or not header.seconds:
        raise unreadable(f"{path} has no signal over time")
    kinds = tuple((one.samples, one.unit, one.name) for one in header.signals)
    kept, leads, unit, extra = base.choose_signals(kinds, options, name=path)
    signals = [header.signals[i] for i in kept]
    per_record = signals[0].samples
    rate = per_record / header.seconds
    check_rate(rate, name=path)
    notes: list[_Note] = []
    onsets: NDArray[np.int64] | None = None
    if header.annotations:
        starts, notes = _annotations(source, path)
        onsets = None if header.continuous else _onsets(starts, header, rate, path)
    samples = header.records * per_record
    if onsets is not None:
        samples = int(onsets.max(initial=0)) + per_record
    wanted = base.stretch(options, rate=rate, samples=samples, name=path)
    counts, missing = _counts(source, path, header, signals, wanted, onsets)
    per_mv = np.array([s.gain * UNITS_PER_MV.get(s.unit.lower(), 1.0) for s in signals])
    zero = np.rint([s.zero for s in signals])
    if (per_mv < 0).any():  # upside down in the file
        turn = np.where(per_mv < 0, -1, 1)
        counts, per_mv, zero = counts.astype(np.int32) * turn[:, None], per_mv * turn, zero * turn
    episodes, others = _within(notes, rate, wanted, samples)
    extra = {**extra, "filters": signals[0].filters, "transducer": signals[0].transducer}
    extra |= {**header.meta.extra, "annotations": others}
    meta = replace(
        header.meta,
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
    source: Source,
    path: str,
    header: _Header,
    signals: Sequence[_Signal],
    wanted: slice,
    onsets: NDArray[np.int64] | None,
) -> tuple[Integers, NDArray[np.bool_] | None]:
    """(signals, samples), and where no data record has any."""
    per_record = signals[0].samples
    first, last = wanted.start // per_record, -(-wanted.stop // per_record)
    if onsets is not None:
        touched = np.flatnonzero((onsets < wanted.stop) & (onsets + per_record > wanted.start))
        first, last = int(touched.min(initial=header.records)), int(touched.max(initial=-1)) + 1
    count = max(last - first, 0)
    start, size = header.size + first * header.record_bytes, count * header.record_bytes
    check_size(size, packed=size, name=path)
    whole = not first and count == header.records
    data = source.read(path)[start : start + size] if whole else source.piece(path, start, size)
    if len(data) < size:
        raise truncated(f"{path} breaks off in data record {first + count}")
    flat: Integers = (
        np.frombuffer(data, "<i2")
        if header.bytes_per_sample == 2
        else decode("24", lambda at, held: data[at : at + held], 0, size // 3)
    )
    records = flat.reshape(count, header.record_samples)
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


def _onsets(starts: Sequence[float], header: _Header, rate: float, path: str) -> NDArray[np.int64]:
    """The first sample of each data record, on the clock of the first."""
    seconds = np.array(starts)
    if len(seconds) != header.records or not np.isfinite(seconds).all() or not header.records:
        raise unreadable(f"{path} does not say when each of its data records starts")
    places = np.rint((seconds - seconds[0]) * rate)
    if places.min() < 0 or places.max() > 2**40:
        raise unreadable(f"the data records of {path} are not in order")
    return np.asarray(places, np.int64)


@lru_cache(maxsize=2)  # stretches of one recording follow each other
def _annotations(source: Source, path: str) -> tuple[list[float], list[_Note]]:
    """The start of each data record, and all annotations, relative to the first record's start."""
    header = _read_header(source, path)
    starts: list[float] = []
    notes: list[_Note] = []
    step = max(_AT_ONCE // header.record_bytes, 1)
    for first in range(0, header.records, step):
        count = min(step, header.records - first)
        start = header.size + first * header.record_bytes
        data = source.piece(path, start, count * header.record_bytes)
        for at in range(0, len(data), header.record_bytes):
            own: list[_Note] = []
            for low, high in header.annotations:
                own += _parsed(data[at + low : at + high])
            starts.append(next((n.onset for n in own if not n.text), float("nan")))
            notes += [note for note in own if note.text]
            if len(notes) > _MAX_ANNOTATIONS:
                raise UnusableError("exceeds limits", f"{path} has more than a million annotations")
    zero = starts[0] if starts and math.isfinite(starts[0]) else 0.0
    return starts, [note._replace(onset=note.onset - zero) for note in notes]


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


def _parts(source: Source, path: str, options: ReadOptions) -> Sequence[Part]:
    header = _read_header(source, path)
    seconds = header.records * header.seconds
    if not header.continuous:
        starts = [start for start in _annotations(source, path)[0] if math.isfinite(start)]
        seconds = max(starts) - starts[0] + header.seconds if starts else seconds
    return (Part(seconds=seconds, patient=header.meta.patient),)


EDF = FileFormat(
    "EDF",
    ".edf",
    read_edf,
    other_suffixes=(".bdf",),
    recognize=is_edf,
    parts=_parts,
    single=True,
    reads_stretches=True,
)
