"""Uploads: the files of recordings as strangers send them, and what they say about the unit.

These functions run in processes with limits (`body_reader`). File names are never used as paths:
they are cut to their last part and looked up in memory. Amplitudes that no ECG has are a question,
never a guess.
"""

from __future__ import annotations

import io
import math
import struct
import zipfile
import zlib
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any, Self

import numpy as np
from starlette.datastructures import FormData, Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from clocs.errors import ClocsError, SourceError, UnknownUnitError, UnusableError
from clocs.formats.base import HEAD_BYTES, FileFormat, ReadOptions
from clocs.formats.read import FORMATS, format_beside, format_of, recordings_in
from clocs.formats.source import hold_files, stem
from clocs.recording import PLAUSIBLE_COUNTS_PER_MV, UNITS_PER_MV, Recording, noted, notes_of

MAX_BYTES = 64 << 20  # of all files, uncompressed
MAX_SAMPLES = 16_000_000  # leads × samples: twelve leads for 45 minutes at 500 Hz
MAX_FILES = 128  # in a form or a zip: 64 recordings of two files each
SHORTEST = 1.0  # seconds
STEPS = "steps"  # of a converter, so many of them per mV
UNITS = ("mV", "µV", STEPS)
# What the middle 99 % of an ECG's leads span, their median, in mV: wider than any real ECG needs.
PLAUSIBLE_MV = (0.03, 50.0)
_MAX_NOTICE = 300  # characters

Reading = Callable[[str | None], Recording]  # of a recording, in the unit that is given
_BAD_ZIP = (zipfile.BadZipFile, zlib.error, struct.error, EOFError)
_FILES = ("files", "file")  # either name will do
_FIELDS = ("rate", "unit", "gain", "confirmed")
_LISTED = {"type": "array", "items": {"type": "string", "format": "binary"}}

FORM: dict[str, Any] = {  # in the OpenAPI description
    "schema": {
        "type": "object",
        "properties": {
            "files": {**_LISTED, "maxItems": MAX_FILES},
            "file": {**_LISTED, "description": "The same as `files`."},
            "rate": {"type": "number", "minimum": 10, "maximum": 10_000},
            "unit": {"type": "string", "enum": list(UNITS)},
            "gain": {"type": "number", "minimum": 1, "maximum": 1_000_000},
            "confirmed": {"type": "boolean"},
        },
    }
}


@dataclass(frozen=True)
class GivenUnit:
    """What the visitor says about a recording's numbers.

    Attributes:
        unit: One of `UNITS`; None where the file, or the size of its numbers, is to tell.
        gain: Steps per mV, of 'steps'.
        confirmed: Whether it was the answer to the question: then it counts, whatever it gives.
    """

    unit: str | None = None
    gain: float | None = None
    confirmed: bool = False


class UnitQuestionError(SourceError):
    """A recording with the amplitudes of no ECG: its unit has to be given.

    Attributes:
        facts: `name` of the recording, `span` of its leads in the numbers of the file, and `mv`,
            the span in mV as it was read; None where it could not be read.
    """

    def __init__(self, name: str, span: float, mv: float | None) -> None:
        least, most = PLAUSIBLE_MV
        read = "" if mv is None else f", {mv:.3g} mV as it was read"
        super().__init__(
            f"the leads of {name} span {span:.3g}{read}; those of an ECG span {least:g} to "
            f"{most:g} mV, so say in which unit its numbers are: mV, µV, or steps with their "
            "number per mV as the gain"
        )
        self.facts: dict[str, Any] = {"name": name, "span": span, "mv": mv}

    def __reduce__(self) -> tuple[type[Self], tuple[Any, ...]]:
        return type(self), tuple(self.facts.values())  # on its way between processes


@dataclass(frozen=True)
class Posted:
    """The recordings of a body, or why one cannot be used.

    Attributes:
        recordings: In order.
        several: Whether they were sent as a batch, which gets a list of results.
        names: Of a batch of files, the name of each recording.
    """

    recordings: Sequence[Recording | ClocsError]
    several: bool = False
    names: Sequence[str] = ()


def read_upload(
    files: Mapping[str, bytes],
    rate: float | None = None,
    unit: GivenUnit | None = None,
    *,
    most: int = 1,
) -> Posted:
    """The recordings in these files, or a ClocsError with a sentence for the visitor.

    Args:
        files: By name: those of recordings, in any format that clocs knows, or zips of them.
        rate: Sampling rate in Hz of files that do not give it.
        unit: What the visitor says about the unit of their numbers.
        most: Recordings, beyond which they are refused.

    Raises:
        UnitQuestionError: Amplitudes are those of no ECG, and the visitor was not asked yet.
        UnknownRateError: A rate is missing.
    """
    found = _recordings(_unpacked(files), ReadOptions(rate=rate), most=most)
    unit = unit or GivenUnit()
    if len(found) == 1:
        return Posted([_checked(in_given_unit(found[0][1], unit))])
    made = [_read_or_why(read, unit) for _, read in found]
    return Posted(made, several=True, names=[name for name, _ in found])


def read_posted(facts: Mapping[str, Any], body: bytes, *, most: int = 1) -> Posted:
    """The recordings in a form of at most `most` of them; `facts` holds its content `type`."""
    form = read_form(body, facts["type"], most_files=max(MAX_FILES, 2 * most))
    return read_upload(*form, most=most)


def read_arrays(data: bytes, options: ReadOptions, *, most: int) -> Posted:
    """The recordings in the bytes of an `.npz` file."""
    found = _recordings({"arrays.npz": data}, options, most=most)
    made = [_read_or_why(read, GivenUnit(options.unit)) for _, read in found]
    return Posted(made, several=len(made) > 1)


def _recordings(
    files: Mapping[str, bytes], options: ReadOptions, *, most: int = 1
) -> list[tuple[str, Reading]]:
    """The name of each recording in these files, and what reads it in a unit."""
    source = hold_files(files)

    def reading(file_format: FileFormat, name: str, part: str) -> Reading:
        return lambda unit: file_format.read(source, name, replace(options, part=part, unit=unit))

    found = [
        (f"{stem(name)} {part.name}".rstrip(), reading(file_format, name, part.name))
        for name, file_format in recordings_in(source)
        for part in file_format.parts_of(source, name, options)
    ]
    if len(found) > most:
        names = ", ".join(name for name, _ in found)[:80]
        few = "one at a time" if most == 1 else f"at most {most} at once"
        raise SourceError(f"found {len(found)} recordings ({names}); upload {few}")
    if found:
        return found
    if incomplete := next(filter(None, map(format_beside, files)), None):
        raise SourceError(
            f"a {incomplete.name} signal file needs its header; upload the {incomplete.suffix} "
            "file together with it"
        )
    known = [
        f"{one.suffix} with {' or '.join(one.companions)}" if one.companions else one.suffix
        for one in FORMATS.values()
    ]
    raise SourceError(
        f"cannot read {', '.join(files)[:80] or 'an empty upload'} as a recording; upload one "
        f"of {', '.join(dict.fromkeys(known))}, or a zip of it"
    )


def _read_or_why(read: Reading, unit: GivenUnit) -> Recording | ClocsError:
    try:
        return _checked(in_given_unit(read, unit))
    except ClocsError as error:
        return error


def _unpacked(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """All files by the last part of their names, including the members of zip files."""
    found: dict[str, bytes] = {}
    for name, data in files.items():
        zipped = data[:4] == b"PK\x03\x04" or name.lower().endswith(".zip")
        zipped &= format_of(name, data[:HEAD_BYTES]) is None  # .npz is a zip, too
        more = _members(name, data) if zipped else {_last(name): data}
        if twice := found.keys() & more.keys():
            raise SourceError(f"two files are called {min(twice)}; upload one recording at a time")
        found |= more
        if sum(map(len, found.values())) > MAX_BYTES:
            raise SourceError(
                f"the files exceed {MAX_BYTES >> 20} MiB uncompressed; upload one recording"
            )
    return found


def _members(name: str, data: bytes) -> dict[str, bytes]:
    file = _last(name)
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            listed = [one for one in archive.infolist() if not _is_junk(one.filename)]
            named = {_last(one.filename): one for one in listed}
            if len(listed) > MAX_FILES:
                raise SourceError(f"{file} contains too many files; zip one recording")
            if len(named) < len(listed):
                raise SourceError(f"{file} has two files of the same name; zip one recording")
            if sum(one.file_size for one in listed) > MAX_BYTES:
                raise SourceError(
                    f"{file} exceeds {MAX_BYTES >> 20} MiB uncompressed; zip one recording"
                )
            # no more than a member's stated size, which its checksum then refuses if that is wrong
            return {last: archive.open(one).read(one.file_size) for last, one in named.items()}
    except (*_BAD_ZIP, ValueError, OSError, RuntimeError, LookupError) as error:
        raise SourceError(
            f"{file} cannot be unpacked ({error}); zip one recording, without a password"
        ) from None


def _is_junk(name: str) -> bool:
    """Folders, and what systems add to them."""
    return name.endswith("/") or "__MACOSX" in name or _last(name).startswith(".")


def _last(name: str) -> str:
    last = PurePosixPath(name.replace("\\", "/")).name
    return "".join(c for c in last if c.isprintable())[-100:] or "file"


def _checked(recording: Recording) -> Recording:
    """It, with short names, and with nothing that a server does not need."""
    name, digital, problem = recording.id, recording.digital, ""
    if not recording.samples or digital.size > MAX_SAMPLES:
        problem = f"has {digital.size:,} samples; upload a shorter recording"
    elif recording.seconds < SHORTEST:
        problem = f"lasts {recording.seconds:.2f} s; at least {SHORTEST:g} s is needed"
    elif (digital == digital[:, :1]).all():
        problem = "is flat in every lead; check the recording"
    if problem:
        raise SourceError(f"{name} {problem}")
    short = {lead: lead[:24] for lead in recording.leads}
    notice = "; ".join(notes_of(recording.extra))[:_MAX_NOTICE]
    return Recording(
        id=name[:60],
        patient=name[:60],
        leads=tuple(short.values()),
        rate=recording.rate,
        digital=digital,
        gain=recording.gain,
        baseline=recording.baseline,
        unit=recording.unit,
        gaps=tuple(replace(gap, lead=short[gap.lead]) for gap in recording.gaps),
        extra={"notice": notice} if notice else {},
    )


class _Parser(MultiPartParser):
    spool_max_size = 1 << 40  # the body is in memory already


def read_form(
    body: bytes, kind: str, *, most_files: int = MAX_FILES
) -> tuple[dict[str, bytes], float | None, GivenUnit]:
    """The files, sampling rate and unit of a form; anything else in it is refused.

    Args:
        body: All of it.
        kind: Its content type, with the boundary.
        most_files: Beyond which it is refused.
    """

    async def stream() -> AsyncGenerator[bytes, None]:
        yield body

    limits = {"max_files": most_files, "max_fields": len(_FIELDS)}
    parsing = _Parser(Headers({"content-type": kind}), stream(), **limits).parse()
    try:
        parsing.send(None)  # it never waits: all is in memory
    except StopIteration as done:
        form: FormData = done.value
    except MultiPartException as error:
        raise SourceError(f"the form cannot be read: {error.message}") from None
    else:
        raise RuntimeError("the form was not parsed at once")
    received: dict[str, bytes] = {}
    for field_name, value in form.multi_items():
        if field_name in _FIELDS:
            continue
        if field_name not in _FILES:
            known = ", ".join((*_FILES, *_FIELDS))
            raise SourceError(f"the form has a field {field_name[:100]!r}; it may have {known}")
        if not isinstance(value, UploadFile):
            raise SourceError(f"`{field_name}` must contain files with their names")
        name = value.filename or "file"
        if name in received:
            raise SourceError(f"two files are called {name[:100]}; give each another name")
        received[name] = value.file.read()
    if not received:
        raise SourceError("the form contains no file; upload a recording as `files`")
    rate, unit, gain = _number(form, "rate"), form.get("unit") or None, _number(form, "gain")
    if rate is not None and not 10 <= rate <= 10_000:
        raise SourceError("the sampling rate must be between 10 and 10,000 Hz")
    if isinstance(unit, UploadFile) or unit not in (None, *UNITS):
        raise SourceError(f"the unit must be one of {', '.join(UNITS)}")
    low, high = PLAUSIBLE_COUNTS_PER_MV
    if unit == STEPS and (gain is None or not low <= gain <= high):
        raise SourceError(f"steps need a gain of {low:g} to {high:,.0f} of them per mV")
    given = GivenUnit(unit, gain if unit == STEPS else None, form.get("confirmed") == "true")
    return received, rate, given


def _number(form: FormData, name: str) -> float | None:
    """NaN where it is none."""
    given = form.get(name) or None
    try:
        return float(given) if isinstance(given, str) else None
    except ValueError:
        return math.nan


def in_given_unit(read: Reading, given: GivenUnit) -> Recording:
    """The recording that `read` gives for a unit, scaled as the visitor says.

    Raises:
        UnitQuestionError: Its amplitudes are those of no ECG, and the visitor was not asked yet.
    """
    if given.unit == STEPS:
        recording = _in_steps(read, given.gain or 1.0)
    else:
        try:
            recording = read(given.unit)
        except UnusableError as error:
            unclear = error.reason == "implausible" or isinstance(error, UnknownUnitError)
            if not unclear or (held := _numbers(read)) is None:
                raise
            name = held[0].id
            if given.confirmed:
                raise
            raise UnitQuestionError(name, span_mv(held[0]) * held[1], None) from None
        if given.confirmed and given.unit is not None and _says_its_unit(read):
            # the file's own unit is wrong: what it calls mV are these
            scale = UNITS_PER_MV[given.unit.lower()]
            recording = replace(recording, gain=recording.gain * scale)
    mv = span_mv(recording)
    if recording.unit != "mV" or not mv or PLAUSIBLE_MV[0] <= mv <= PLAUSIBLE_MV[1]:
        return recording
    if not given.confirmed:
        held = None if _says_its_unit(read) else _numbers(read)
        span = mv if held is None else span_mv(held[0]) * held[1]
        raise UnitQuestionError(recording.id, span, mv)
    notice = f"its leads span {mv:.3g} mV in the unit that was given, which is no ECG's amplitude"
    return replace(recording, extra=noted(recording.extra, notice))


def span_mv(recording: Recording) -> float:
    """The median over the leads that vary of what their middle 99 % span; 0 where none does."""
    step = max(1, recording.samples // 5000)
    digital = recording.digital[:, ::step].astype(np.float64)
    low, high = np.percentile(digital, (0.5, 99.5), axis=1)
    spans = (high - low) / recording.gain
    return float(np.median(spans[spans > 0])) if (spans > 0).any() else 0.0


def _numbers(read: Reading) -> tuple[Recording, float] | None:
    """The recording in a unit that makes its numbers readable, and how many of it make a mV."""
    for unit in ("mV", "µV", "nV"):
        try:
            recording = read(unit)
        except UnusableError:
            continue
        if span_mv(recording):
            return recording, UNITS_PER_MV[unit.lower()]
    return None


def _says_its_unit(read: Reading) -> bool:
    """Whether the file says it, so that what the visitor says has no effect on reading it."""
    try:
        return bool(np.array_equal(read("mV").signal, read("µV").signal, equal_nan=True))
    except UnusableError:
        return False


def _in_steps(read: Reading, gain: float) -> Recording:
    """Of a file that says its unit, the samples as they are stored; of others, their numbers."""
    if _says_its_unit(read):
        recording = read(None)
        return replace(recording, gain=np.full(len(recording.leads), gain), unit="mV")
    held = _numbers(read)
    if held is None:
        return read(None)  # which says what is wrong
    recording, per_mv = held
    return replace(recording, gain=recording.gain * (gain / per_mv))
