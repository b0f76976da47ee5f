"""Annotations of WFDB records: beats, and rhythms from one change to the next."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from clocs.errors import UnusableError
from clocs.formats.source import Source
from clocs.formats.wfdb_header import parse_header
from clocs.formats.wfdb_segments import frames_of_record
from clocs.limits import MAX_HEADER_BYTES
from clocs.recording import Episode

# Symbols by their numbers in the file; those without one are not defined.
_SYMBOLS = dict(enumerate("NLRaVFJASEj/Q~", 1)) | {16: "|"}
_SYMBOLS |= dict(enumerate('sT*D"=pB^t+u?![]en@xf()r', 18))
BEATS = frozenset("NLRaVFJASEj/QB?!enfr")  # symbols of beats
_RHYTHM, _NOTE = "+", '"'
_SKIP, _NUM, _SUB, _CHN, _AUX = 59, 60, 61, 62, 63
_MAX_BYTES = 4 << 20  # of a file: a week of beats
_RESOLUTION = re.compile(r"## time resolution: (\d{1,9}(?:\.\d{1,9})?)")
_DEFINITION = re.compile(r"(\d{1,2}) (\S)(?: |$)")


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
    header = parse_header(source.read(path, MAX_HEADER_BYTES), name=path)
    rate, notes = _decode(source.read(name, _MAX_BYTES), name=name)
    if rate and rate != header.rate:  # a clock of its own
        notes = [note._replace(sample=round(note.sample * header.rate / rate)) for note in notes]
    notes = sorted((note for note in notes if note.sample >= 0), key=lambda note: note.sample)
    return Annotations(tuple(notes), frames_of_record(source, path, header))


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
                raise UnusableError("unreadable", f"{name} breaks off in a leap of time")
            high, low = data[place : place + 2], data[place + 2 : place + 4]
            sample += int.from_bytes(low + high, "little", signed=True)
            place += 4
        elif code == _AUX:
            if place + value > len(data):
                raise UnusableError("unreadable", f"{name} breaks off in a text")
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
