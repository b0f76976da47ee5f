"""WFDB records and their annotations, exactly as the wfdb package reads them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from clocs.errors import UnusableError
from clocs.files import MAX_HEADER_BYTES
from clocs.formats import base
from clocs.formats.base import FileFormat, FileMetadata, Part, ReadOptions
from clocs.formats.source import Source, stem
from clocs.formats.wfdb_header import Header, is_header, parse_header
from clocs.formats.wfdb_signals import Record
from clocs.recording import Episode, Recording, check_rate

_PERSON = re.compile(r"(\d{1,3}|-1)\s+([MF])\b")  # as MIT-BIH's comments begin
# Symbols of annotations by their numbers in the file; those without one are not defined.
_SYMBOLS = dict(enumerate("NLRaVFJASEj/Q~", 1)) | {16: "|"}
_SYMBOLS |= dict(enumerate('sT*D"=pB^t+u?![]en@xf()r', 18))
BEATS = frozenset("NLRaVFJASEj/QB?!enfr")  # symbols of beats
_RHYTHM, _NOTE = "+", '"'
_SKIP, _NUM, _SUB, _CHN, _AUX = 59, 60, 61, 62, 63
_MAX_ANNOTATION_BYTES = 4 << 20  # of a file: a week of beats
_RESOLUTION = re.compile(r"## time resolution: (\d{1,9}(?:\.\d{1,9})?)")
_DEFINITION = re.compile(r"(\d{1,2}) (\S)(?: |$)")


def read_wfdb(source: Source, path: str, options: ReadOptions | None = None) -> Recording:
    """Read one record.

    Voltages with the rate of the ECG are kept; what else the record has is named in
    `extra["notice"]`, unless the options choose it as a lead.

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
    record = Record(source, path)
    header, kinds = record.header, record.described().kinds
    kept, leads, unit, notes = base.choose_signals(kinds, options, name=path)
    rate = header.rate * kinds[kept[0]][0]
    check_rate(rate, name=path)
    frames = record.frames()
    if not frames:
        raise base.truncated(f"{path} has 0 of {header.samples or 'any'} samples")
    wanted = base.stretch(options, rate=header.rate, samples=frames, name=path)
    rows = record.rows(kept, wanted.start, wanted.stop - wanted.start)
    age, sex = _person(header)
    meta = FileMetadata(
        leads=leads,
        rate=rate,
        unit=unit,
        age=age,
        sex=sex,
        recorded_at=header.recorded_at,
        extra={**header.fields, **notes},
    )
    in_mv = rows.counts.dtype.kind == "f"
    return base.make_recording(
        rows.counts,
        meta,
        per_mv=1.0 if in_mv else rows.per_mv,
        zero=rows.zero,
        missing=None if in_mv else rows.missing,
        name=path,
        recording_id=stem(path),
        select=options.leads,
    )


_NO_OPTIONS = ReadOptions()


def refuse_missing(recording: Recording) -> None:
    """Refuse a record that lacks samples, for datasets in which such records are not used.

    Raises:
        UnusableError: nan.
    """
    if recording.gaps or base.WITHOUT_VALUES in recording.extra:
        raise UnusableError("nan", f"{recording.id} has samples marked as missing")


def _person(header: Header) -> tuple[float | None, str | None]:
    """Age and sex, where comments have them: 'Age: 74', 'Sex: F', or '69 M …' as MIT-BIH."""
    fields, comments = header.fields, header.comments
    age, sex = [fields.get(key) or fields.get(key.lower(), "") for key in ("Age", "Sex")]
    if not age and not sex and comments and (match := _PERSON.match(comments[0])):
        age, sex = match.groups()
    years = float(age) if age.isdecimal() and len(age) <= 3 else None
    return years, base.SEXES.get(sex.lower())


def _parts(source: Source, path: str, options: ReadOptions) -> Sequence[Part]:
    record = Record(source, path)
    return (Part(seconds=record.frames() / record.header.rate),)


def _files_beside(data: bytes, name: str) -> set[str] | None:
    """The signal files that a header names; None where it names segments, which name others."""
    header = parse_header(data, name=name)
    if header.segments:
        return None
    return {signal.file for signal in header.signals if "/" not in signal.file}


def _segments_beside(source: Source, path: str, head: bytes) -> set[str]:
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
    return {f"{folder}{name}.hea" for name, _ in header.segments} - {path}


WFDB = FileFormat(
    "WFDB",
    ".hea",
    read_wfdb,
    companions=(".dat", ".mat", ".flac"),
    files_beside=_files_beside,
    recognize=is_header,
    parts=_parts,
    single=True,
    segments=_segments_beside,
    reads_stretches=True,
)


class Annotation(NamedTuple):
    """One annotation: its sample, its symbol, and the text that goes with it."""

    sample: int
    symbol: str
    text: str = ""


@dataclass(frozen=True)
class Annotations:
    """All annotations of a recording by one annotator.

    Attributes:
        notes: In the order of time.
        samples: Of the recording.
    """

    notes: tuple[Annotation, ...]
    samples: int

    @cached_property
    def rhythms(self) -> tuple[Episode, ...]:
        """From each change, such as '(AFIB', to the next or to the end of the recording."""
        changes = [
            (note.sample, note.text[1:].strip())
            for note in self.notes
            if note.symbol == _RHYTHM and note.text.startswith("(") and note.sample < self.samples
        ]
        stops = [start for start, _ in changes[1:]] + [self.samples]
        return tuple(
            Episode(start, stop, label)
            for (start, label), stop in zip(changes, stops, strict=False)
            if start < stop and label
        )

    @cached_property
    def beats(self) -> tuple[tuple[int, str], ...]:
        """Sample and symbol of each beat within the recording."""
        return tuple(
            (note.sample, note.symbol)
            for note in self.notes
            if note.symbol in BEATS and note.sample < self.samples
        )


def read_annotations(source: Source, path: str, extension: str = "atr") -> Annotations:
    """The annotations beside a record.

    Args:
        source: Holds the header and the annotations.
        path: The header's name in the source.
        extension: Of the annotations' file, without a dot; it says whose they are.

    Raises:
        UnusableError: no label, where there is no such file; unreadable.
    """
    name = f"{path[: path.rfind('.')]}.{extension}"
    if name not in source:
        raise UnusableError("no label", f"{path} has no annotations {name} beside it")
    record = Record(source, path)
    header = record.header
    rate, notes = _decode(source.read(name, _MAX_ANNOTATION_BYTES), name=name)
    if rate and rate != header.rate:  # a clock of its own
        notes = [note._replace(sample=round(note.sample * header.rate / rate)) for note in notes]
    notes = sorted((note for note in notes if note.sample >= 0), key=lambda note: note.sample)
    return Annotations(tuple(notes), record.frames())


def _decode(data: bytes, *, name: str) -> tuple[float | None, list[Annotation]]:
    """The rate, where the file gives one, and its annotations."""
    notes: list[Annotation] = []
    codes: list[int] = []
    place, sample, whole = 0, 0, len(data) - 1
    while place < whole:
        pair = data[place] | data[place + 1] << 8
        code, value = pair >> 10, pair & 0x3FF
        place += 2
        if not pair:
            break  # the end; what follows fills a block
        if code == _SKIP:
            if place + 4 > len(data):
                raise base.unreadable(f"{name} breaks off in a leap of time")
            high, low = data[place : place + 2], data[place + 2 : place + 4]
            sample += int.from_bytes(low + high, "little", signed=True)
            place += 4
        elif code == _AUX:
            if place + value > len(data):
                raise base.unreadable(f"{name} breaks off in a text")
            if notes:
                text = data[place : place + value].decode("latin-1").rstrip("\0")
                notes[-1] = notes[-1]._replace(text=text)
            place += value + (value & 1)
        elif code not in (_NUM, _SUB, _CHN):
            sample += value
            if code:  # 0 only moves the time
                codes.append(code)
                notes.append(Annotation(sample, _SYMBOLS.get(code, "")))
    return _without_definitions(notes, codes)


def _without_definitions(
    notes: list[Annotation], codes: list[int]
) -> tuple[float | None, list[Annotation]]:
    """Take the file's own rate and symbols from the notes that define them."""
    rate, symbols, within = None, dict[int, str](), False
    kept: list[Annotation] = []
    for note, code in zip(notes, codes, strict=True):
        text = note.text
        comment = note.symbol == _NOTE and note.sample == 0
        if comment and (found := _RESOLUTION.match(text)):
            rate = float(found[1]) or None
        elif comment and text.startswith("## annotation type definitions"):
            within = True
        elif comment and text.startswith("## end of definitions"):
            within = False
        elif within and comment and (defined := _DEFINITION.match(text)):
            symbols[int(defined[1])] = defined[2]
        else:
            kept.append(note._replace(symbol=symbols.get(code, note.symbol)))
    return rate, kept
