"""WFDB records, exactly as the wfdb package reads them.

The layouts of nearly all published 12-lead sets (one file of format 16, plain or in a MATLAB v4
file, or of FLAC format 516) take a short way; all others, and stretches, a general one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clocs.errors import UnusableError
from clocs.formats.base import FileFormat, Part, ReadOptions
from clocs.formats.flac import decode_flac
from clocs.formats.leads import name_leads
from clocs.formats.samples import WITHOUT_VALUES, Samples, from_floats, from_integers, stretch
from clocs.formats.source import Source, stem
from clocs.formats.wfdb_header import Header, Signal, is_header, parse_header
from clocs.formats.wfdb_segments import (
    frames_of_record,
    record_rows,
    segments_beside,
    signals_of_record,
)
from clocs.formats.wfdb_signals import beside
from clocs.limits import MAX_HEADER_BYTES
from clocs.recording import (
    UNITS_PER_MV,
    Recording,
    canonical_lead,
    check_plausible,
    check_rate,
)

_MISSING = -32768  # a sample in formats 16 and 516
_PERSON = re.compile(r"(\d{1,3}|-1)\s+([MF])\b")  # as MIT-BIH's comments begin
_SEXES = {"male": "male", "m": "male", "female": "female", "f": "female"}


def read_wfdb(source: Source, path: str, options: ReadOptions | None = None) -> Recording:
    """Read one record.

    Voltages are kept, and of those the ones with the most samples per second; what else the record
    has is named in `extra["notice"]`, unless the options choose it as a lead.

    Args:
        source: Holds the header and the files it names.
        path: The header's name in the source.
        options: `leads`, `lead_names`, `start` and `stop` count.

    Returns:
        The recording under its file name as id and patient; `#Name: value` comments in `extra`.

    Raises:
        UnusableError: truncated, unreadable, nan, implausible or beyond the limits.
    """
    options = options or _NO_OPTIONS
    header = parse_header(source.read(path, MAX_HEADER_BYTES), name=path)
    first = header.signals[0] if header.signals else None
    whole = not options.start and options.stop is None
    if first is not None and whole and _is_plain(header, first):
        check_rate(header.rate, name=path)
        recording = _read_plain(source, path, header, first, options)
    else:
        recording = _read_any(source, path, header, options)
    recording = recording if options.leads is None else recording.select(options.leads)
    check_plausible(recording)
    return recording


_NO_OPTIONS = ReadOptions()


def refuse_missing(recording: Recording) -> None:
    """Refuse a record that lacks samples, for datasets in which such records are not used.

    Raises:
        UnusableError: nan.
    """
    if recording.gaps or WITHOUT_VALUES in recording.extra:
        raise UnusableError("nan", f"{recording.id} has samples marked as missing")


def _is_plain(header: Header, first: Signal) -> bool:
    if first.format not in ("16", "516") or (first.format == "516" and first.offset):
        return False
    for signal in header.signals:
        if (
            signal.file != first.file
            or signal.format != first.format
            or signal.samples_per_frame != 1
            or signal.skew
            or signal.offset != first.offset
        ):
            return False
    return first.file != "~" and (first.format == "16" or bool(header.samples))


def _read_plain(
    source: Source, path: str, header: Header, first: Signal, options: ReadOptions
) -> Recording:
    data = source.read(beside(path, first.file, source))
    frames = (_decode_16 if first.format == "16" else _decode_516)(header, data, path)
    choice = _choice(header.signals, options, path)
    if frames.min() == _MISSING or choice.kept is not None:
        rows = frames.T if choice.kept is None else frames.T[list(choice.kept)]
        samples = from_integers(
            rows,
            choice.names,
            gain=np.array(choice.gain),
            zero=np.array(choice.baseline, np.float64),
            missing=rows == _MISSING,
            name=path,
        )
    else:
        samples = Samples(
            choice.names,
            np.ascontiguousarray(frames.T),
            np.array(choice.gain),
            np.array(choice.baseline, np.int32),
        )
    return _recording(header, path, choice, samples, header.rate)


def _decode_16(header: Header, data: bytes, path: str) -> NDArray[np.int16]:
    """(samples, signals) of little-endian int16."""
    signals, offset = len(header.signals), header.signals[0].offset
    held = max(len(data) - offset, 0) // (2 * signals)
    samples = header.samples or held  # 0 means that the file tells
    if held < samples or not samples:
        raise _truncated(path, held, header.samples)
    flat = np.frombuffer(data, "<i2", count=samples * signals, offset=offset)
    return flat.reshape(samples, signals)


def _decode_516(header: Header, data: bytes, path: str) -> NDArray[np.int16]:
    """(samples, signals) of a FLAC stream of 8 or 16 bits, one channel per signal."""
    signals, samples = len(header.signals), header.samples or 0
    decoded = decode_flac(data, channels=signals, samples=samples, bits=(8, 16), path=path)
    if len(decoded) < samples or not samples:
        raise _truncated(path, len(decoded), header.samples)
    return decoded


def _truncated(path: str, held: int, promised: int | None) -> UnusableError:
    return UnusableError("truncated", f"{path} has {held} of {promised or 'any'} samples")


def _read_any(source: Source, path: str, header: Header, options: ReadOptions) -> Recording:
    """Any layout, segments and stretches included."""
    every = signals_of_record(source, path, header)
    choice = _choice(every, options, path)
    kept = range(len(every)) if choice.kept is None else choice.kept
    frames = frames_of_record(source, path, header)
    if not frames:
        raise _truncated(path, 0, header.samples)
    wanted = stretch(options, rate=header.rate, samples=frames, name=path)
    rate = header.rate * every[kept[0]].samples_per_frame
    check_rate(rate, name=path)
    count = wanted.stop - wanted.start
    rows = record_rows(source, path, header, every, kept, first=wanted.start, count=count)
    if rows.physical is not None:
        samples = from_floats(rows.physical, choice.names, name=path)
    else:
        samples = from_integers(
            rows.steps,
            choice.names,
            gain=np.array(rows.gain),
            zero=np.array(rows.zero, np.float64),
            missing=rows.missing,
            name=path,
        )
    return _recording(header, path, choice, samples, rate)


class _Choice(NamedTuple):
    """Which signals of a record are kept, and what they are called."""

    kept: tuple[int, ...] | None  # None for all
    names: tuple[str, ...]
    gain: tuple[float, ...]  # steps per mV, or per unit of what is no voltage
    baseline: tuple[int, ...]
    unit: str
    extra: tuple[tuple[str, str], ...]


class _Kind(NamedTuple):
    """What a signal is; most records of a dataset have the same ones."""

    samples_per_frame: int
    gain: float
    baseline: int
    unit: str
    name: str


def _choice(signals: Sequence[Signal], options: ReadOptions, path: str) -> _Choice:
    mapped = tuple(options.lead_names.items()) if options.lead_names else ()
    try:
        return _chosen(tuple([one[4:9] for one in signals]), options.leads, mapped)
    except UnusableError as error:
        raise UnusableError(error.reason, f"{path}: {error.detail}") from None


@lru_cache(maxsize=256)
def _chosen(
    kinds: tuple[tuple[int, float, int, str, str], ...],
    leads: tuple[str, ...] | None,
    mapped: tuple[tuple[str, str], ...],
) -> _Choice:
    """From the fields of `_Kind` of all signals."""
    every = [_Kind(*kind) for kind in kinds]
    names, extra = name_leads([kind.name for kind in every], dict(mapped), name="it")
    factors = [UNITS_PER_MV.get(kind.unit.lower()) for kind in every]
    wanted = {canonical_lead(lead) for lead in leads or ()}
    chosen = [i for i, factor in enumerate(factors) if factor is not None or names[i] in wanted]
    if not chosen:
        found = ", ".join(
            f"{name} in {kind.unit!r}" for name, kind in zip(names, every, strict=True)
        )
        detail = f"none of its signals is a voltage ({found:.200}); choose leads by name"
        raise UnusableError("unreadable", detail)
    asked = [i for i in chosen if names[i] in wanted] or chosen
    fastest = max(every[i].samples_per_frame for i in asked)
    kept = [i for i in chosen if every[i].samples_per_frame == fastest]
    others = [names[i] for i in chosen if i not in kept]
    left = [f"{names[i]} ({every[i].unit})" for i in range(len(every)) if i not in chosen]
    notice = []
    if left:
        notice.append(f"Signals that are no voltages are left out: {', '.join(left)}.")
    if others:
        notice.append(f"Signals of another rate are left out: {', '.join(others)}.")
    if notice:
        extra["notice"] = " ".join(notice)
    mixed = any(factors[i] is None for i in kept)
    if mixed:  # chosen by name: another channel takes the place of a lead
        units = ((names[i], "mV" if factors[i] else every[i].unit) for i in kept)
        extra["units"] = ", ".join(f"{name}: {unit}" for name, unit in units)
    return _Choice(
        kept=None if len(kept) == len(every) else tuple(kept),
        names=tuple(names[i] for i in kept),
        gain=tuple(every[i].gain * (factors[i] or 1.0) for i in kept),
        baseline=tuple(every[i].baseline for i in kept),
        unit="mixed" if mixed else "mV",
        extra=tuple(extra.items()),
    )


def _recording(
    header: Header, path: str, choice: _Choice, samples: Samples, rate: float
) -> Recording:
    extra = header.fields()
    age, sex = _person(extra, header.comments)
    extra.update(choice.extra)
    if len(samples.leads) < len(choice.names):
        lost = [name for name in choice.names if name not in samples.leads]
        extra[WITHOUT_VALUES] = ", ".join(lost)
    name = stem(path)
    return Recording(
        id=name,
        patient=name,
        leads=samples.leads,
        rate=rate,
        digital=samples.digital,
        gain=samples.gain,
        baseline=samples.baseline,
        unit=choice.unit,
        age=age,
        sex=sex,
        taken=header.taken,
        extra=extra,
        gaps=samples.gaps,
    )


def _person(fields: dict[str, str], comments: Sequence[str]) -> tuple[float | None, str | None]:
    """Age and sex, where comments have them: 'Age: 74', 'Sex: F', or '69 M …' as MIT-BIH."""
    age, sex = (fields.get(key) or fields.get(key.lower(), "") for key in ("Age", "Sex"))
    if not age and not sex and comments and (match := _PERSON.match(comments[0])):
        age, sex = match.groups()
    years = float(age) if age.isdecimal() and len(age) <= 3 else None
    return years, _SEXES.get(sex.lower())


def _parts(source: Source, path: str, options: ReadOptions) -> Sequence[Part]:
    header = parse_header(source.read(path, MAX_HEADER_BYTES), name=path)
    return (Part(seconds=frames_of_record(source, path, header) / header.rate),)


def _files_beside(data: bytes, name: str) -> set[str] | None:
    """The signal files that a header names; None where it names segments, which name others."""
    header = parse_header(data, name=name)
    if header.segment_names:
        return None
    return {signal.file for signal in header.signals if "/" not in signal.file}


WFDB = FileFormat(
    "WFDB",
    ".hea",
    read_wfdb,
    companions=(".dat", ".mat", ".flac"),
    files_beside=_files_beside,
    recognize=is_header,
    parts=_parts,
    single=True,
    segments=segments_beside,
    reads_stretches=True,
)
