"""EDF, EDF+ and BDF files, whole or in stretches, with the values that edfio gives.

Signals that are voltages and have the rate of the ECG are kept; others are named in a notice. The
value of zero is rounded to a whole step, so that samples stay as they are in the file.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clocs.errors import UnusableError
from clocs.formats.base import FileFormat, Part, ReadOptions
from clocs.formats.edf_header import Header, Signal, is_edf, read_header
from clocs.formats.leads import name_leads
from clocs.formats.samples import from_integers, stretch
from clocs.formats.source import Source, stem
from clocs.formats.wfdb_formats import Integers, decode
from clocs.limits import check_size
from clocs.recording import (
    STANDARD_LEADS,
    UNITS_PER_MV,
    Episode,
    Recording,
    canonical_lead,
    check_plausible,
    check_rate,
)

_OTHER_KINDS = re.compile(r"(?:EEG|EOG|EMG|ERG|MEG|ECoG|EP)\b", re.IGNORECASE)  # as EDF+ names them
_ECG = re.compile(r"ecg|ekg", re.IGNORECASE)
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


class Note(NamedTuple):
    """An annotation: when it starts and how long it lasts, in seconds, and its text."""

    onset: float
    duration: float | None
    text: str


class _Choice(NamedTuple):
    signals: list[Signal]
    names: tuple[str, ...]
    unit: str
    extra: dict[str, str]


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
    header = read_header(source, path)
    choice = _choice(header, options, path)
    per_record = choice.signals[0].samples
    rate = per_record / header.seconds
    check_rate(rate, name=path)
    notes: list[Note] | None = None
    onsets: NDArray[np.int64] | None = None
    if header.annotations:
        starts, notes = _annotations(source, path)
        onsets = None if header.continuous else _onsets(starts, header, rate, path)
    samples = header.records * per_record
    if onsets is not None:
        samples = int(onsets.max(initial=0)) + per_record
    wanted = stretch(options, rate=rate, samples=samples, name=path)
    if onsets is None:
        steps, missing = _continuous(source, path, header, choice.signals, wanted), None
    else:
        steps, missing = _scattered(source, path, header, choice.signals, wanted, onsets)
    gain = np.array([s.gain * UNITS_PER_MV.get(s.unit.lower(), 1.0) for s in choice.signals])
    zero = np.rint([s.zero for s in choice.signals])
    if (gain < 0).any():  # upside down in the file
        turn = np.where(gain < 0, -1, 1)
        steps, gain, zero = steps.astype(np.int32) * turn[:, None], gain * turn, zero * turn
    made = from_integers(steps, choice.names, gain=gain, zero=zero, missing=missing, name=path)
    episodes, said = _said(notes or [], rate, wanted, samples)
    first = choice.signals[0]
    fields = {"filters": first.filters, "transducer": first.transducer}
    fields |= {"equipment": header.equipment or "", "annotations": said}
    recording = Recording(
        id=stem(path),
        patient=header.patient or stem(path),
        leads=made.leads,
        rate=rate,
        digital=made.digital,
        gain=made.gain,
        baseline=made.baseline,
        unit=choice.unit,
        episodes=episodes,
        age=header.age,
        sex=header.sex,
        taken=None if header.taken is None else header.taken.isoformat(),
        extra=choice.extra | {key: value for key, value in fields.items() if value},
        gaps=made.gaps,
    )
    check_plausible(recording)
    return recording if options.leads is None else recording.select(options.leads)


def _choice(header: Header, options: ReadOptions, path: str) -> _Choice:
    """Voltages with the rate of the ECG, and what is named by the user."""
    if not header.signals or not header.seconds:
        raise UnusableError("unreadable", f"{path} has no signal over time")
    names, extra = name_leads([s.name for s in header.signals], options.lead_names, name=path)
    asked = {canonical_lead(lead) for lead in options.leads or ()}
    voltages = [
        i
        for i, signal in enumerate(header.signals)
        if names[i] in asked
        or (signal.unit.lower() in UNITS_PER_MV and not _OTHER_KINDS.match(signal.name))
    ]
    if not voltages:
        found = ", ".join(f"{s.name} in {s.unit!r}" for s in header.signals)
        raise UnusableError(
            "unreadable", f"none of the signals of {path} is an ECG ({found:.200}); choose by name"
        )
    ecgs = [i for i in voltages if names[i] in STANDARD_LEADS or _ECG.search(names[i])]
    leading = [i for i in voltages if names[i] in asked] or ecgs or voltages
    most = max(header.signals[i].samples for i in leading)
    kept = [i for i in voltages if header.signals[i].samples == most]
    left = [names[i] for i in range(len(names)) if i not in kept]
    if left:
        extra["notice"] = f"Signals of another kind or rate are left out: {', '.join(left)}."
    mixed = [i for i in kept if header.signals[i].unit.lower() not in UNITS_PER_MV]
    if mixed:
        extra["units"] = ", ".join(f"{names[i]}: {header.signals[i].unit}" for i in mixed)
    return _Choice(
        [header.signals[i] for i in kept],
        tuple(names[i] for i in kept),
        "mixed" if mixed else "mV",
        extra,
    )


def _records(source: Source, path: str, header: Header, first: int, count: int) -> Integers:
    """(records, samples of a record)."""
    size = count * header.record_bytes
    check_size(size, packed=size, name=path)
    start = header.size + first * header.record_bytes
    whole = not first and count == header.records
    data = source.read(path)[start : start + size] if whole else source.piece(path, start, size)
    if len(data) < size:
        raise UnusableError("truncated", f"{path} breaks off in data record {first + count}")
    form = "24" if header.bytes_per_sample == 3 else "16"
    flat = decode(form, lambda at, held: data[at : at + held], 0, count * header.record_samples)
    return flat.reshape(count, header.record_samples)


def _continuous(
    source: Source, path: str, header: Header, signals: Sequence[Signal], wanted: slice
) -> Integers:
    """(signals, samples)."""
    per_record = signals[0].samples
    first, last = wanted.start // per_record, -(-wanted.stop // per_record)
    records = _records(source, path, header, first, last - first)
    steps = np.empty((len(signals), wanted.stop - wanted.start), records.dtype)
    shift = wanted.start - first * per_record
    for row, signal in zip(steps, signals, strict=True):
        flat = records[:, signal.start : signal.start + per_record].reshape(-1)
        row[:] = flat[shift : shift + len(row)]
    return steps


def _scattered(
    source: Source,
    path: str,
    header: Header,
    signals: Sequence[Signal],
    wanted: slice,
    onsets: NDArray[np.int64],
) -> tuple[Integers, NDArray[np.bool_]]:
    """(signals, samples), and where no data record has any."""
    per_record = signals[0].samples
    touched = np.flatnonzero((onsets < wanted.stop) & (onsets + per_record > wanted.start))
    shape = (len(signals), wanted.stop - wanted.start)
    size = source.size(path)
    check_size(2 * shape[0] * shape[1], packed=size, name=path)
    kind = np.int32 if header.bytes_per_sample == 3 else np.int16
    steps, missing = np.zeros(shape, kind), np.ones(shape, np.bool_)
    for number in touched.tolist():
        record = _records(source, path, header, number, 1)[0]
        at = int(onsets[number]) - wanted.start
        low, high = max(at, 0), min(at + per_record, shape[1])
        for i, signal in enumerate(signals):
            own = record[signal.start : signal.start + per_record]
            steps[i, low:high] = own[low - at : high - at]
        missing[:, low:high] = False
    return steps, missing


def _onsets(starts: Sequence[float], header: Header, rate: float, path: str) -> NDArray[np.int64]:
    """The first sample of each data record, on the clock of the first."""
    seconds = np.array(starts)
    if len(seconds) != header.records or not np.isfinite(seconds).all() or not header.records:
        detail = f"{path} does not say when each of its data records starts"
        raise UnusableError("unreadable", detail)
    places = np.rint((seconds - seconds[0]) * rate)
    if places.min() < 0 or places.max() > 2**40:
        raise UnusableError("unreadable", f"the data records of {path} are not in order")
    found: NDArray[np.int64] = places.astype(np.int64)
    return found


@lru_cache(maxsize=2)  # stretches of one recording follow each other
def _annotations(source: Source, path: str) -> tuple[list[float], list[Note]]:
    """The start of each data record, and all annotations, relative to the first record's start."""
    header = read_header(source, path)
    starts: list[float] = []
    notes: list[Note] = []
    step = max(_AT_ONCE // header.record_bytes, 1)
    for first in range(0, header.records, step):
        count = min(step, header.records - first)
        start = header.size + first * header.record_bytes
        data = source.piece(path, start, count * header.record_bytes)
        for at in range(0, len(data), header.record_bytes):
            own: list[Note] = []
            for low, high in header.annotations:
                own += _parsed(data[at + low : at + high])
            starts.append(next((n.onset for n in own if not n.text), float("nan")))
            notes += [note for note in own if note.text]
            if len(notes) > _MAX_ANNOTATIONS:
                raise UnusableError("exceeds limits", f"{path} has more than a million annotations")
    zero = starts[0] if starts and math.isfinite(starts[0]) else 0.0
    return starts, [note._replace(onset=note.onset - zero) for note in notes]


def _parsed(data: bytes) -> Iterator[Note]:
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
            yield Note(start, lasts, text.decode("utf-8", "replace").strip())


def _said(
    notes: Sequence[Note], rate: float, wanted: slice, samples: int
) -> tuple[tuple[Episode, ...], str]:
    """Rhythms within a stretch as episodes, and the other annotations there as text."""
    timed = sorted(notes, key=lambda note: note.onset)
    rhythms = [note for note in timed if is_rhythm(note.text)]
    episodes = []
    for number, note in enumerate(rhythms):
        start = round(note.onset * rate)
        follows = rhythms[number + 1 :]
        stop = round(follows[0].onset * rate) if follows else samples
        if note.duration:
            stop = round((note.onset + note.duration) * rate)
        start, stop = max(start, wanted.start), min(stop, wanted.stop)
        if start < stop:
            label = note.text.lstrip("(").strip()
            episodes.append(Episode(start - wanted.start, stop - wanted.start, label))
    low, high = wanted.start / rate, wanted.stop / rate
    others = [
        f"{note.onset:g} s: {note.text}"
        for note in timed
        if low <= note.onset < high and not is_rhythm(note.text)
    ]
    return tuple(episodes), "; ".join(others)[:_MAX_TEXT]


def is_rhythm(text: str) -> bool:
    """Whether the text of an annotation names a rhythm: '(AFIB', 'AFIB', 'Atrial fibrillation'."""
    return text.upper() in RHYTHMS or bool(re.fullmatch(r"\([A-Z]+", text))


def _parts(source: Source, path: str, options: ReadOptions) -> Sequence[Part]:
    header = read_header(source, path)
    seconds = header.records * header.seconds
    if not header.continuous:
        starts = [start for start in _annotations(source, path)[0] if math.isfinite(start)]
        seconds = max(starts) - starts[0] + header.seconds if starts else seconds
    return (Part(seconds=seconds, patient=header.patient),)


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
