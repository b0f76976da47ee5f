"""What a file format is: one module of this package that declares one `FileFormat`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from clocs.formats.source import Source
from clocs.recording import Recording

HEAD_BYTES = 4096  # of a file, from which its format is recognised


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What the user says about files that are to be read.

    Attributes:
        leads: Keep these, in this order; all where None.
        rate: In Hz, for formats that do not give it.
        unit: Of the samples ('mV', 'µV' …), for formats that do not give it.
        lead_names: Leads by the names that files give them, where those are unusual.
        part: Which of the recordings of a file that holds several (`FileFormat.parts`).
        start: Where to begin, in seconds from the start of the recording.
        stop: Where to end, in seconds; at the end of the recording where None.
    """

    leads: tuple[str, ...] | None = None
    rate: float | None = None
    unit: str | None = None
    lead_names: Mapping[str, str] = field(default_factory=dict)
    part: str = ""
    start: float = 0.0
    stop: float | None = None


@dataclass(frozen=True, slots=True)
class Part:
    """One recording of a file, as far as is known without reading its samples.

    Attributes:
        name: Of the recording in its file; '' for the only one.
        seconds: Its duration; None where only reading it tells.
        patient: Where the file names the patient.
    """

    name: str = ""
    seconds: float | None = None
    patient: str | None = None


def _no_other_files(data: bytes, name: str) -> set[str]:
    return set()


def _one_part(source: Source, path: str, options: ReadOptions) -> Sequence[Part]:
    return (Part(),)


@dataclass(frozen=True, slots=True)
class FileFormat:
    """A format of recordings.

    Attributes:
        name: As in messages.
        suffix: Of the file that represents a recording; lower case.
        read: Reads a recording of a file in a source, by the file's name there.
        companions: Suffixes of files that belong to such a file and are no recordings alone.
        files_beside: From the file's bytes and name, the names of the files it needs beside it;
            None where only the whole folder will do.
        other_suffixes: Further ones of files that represent a recording.
        recognise: Whether a file that begins with these bytes (at most `HEAD_BYTES`) is of this
            format; None where its name alone tells.
        parts: Lists the recordings of a file without reading their samples.
        reads_stretches: Whether `read` decodes only what lies between `start` and `stop` of its
            options, so that recordings of days are read in bounded memory.
    """

    name: str
    suffix: str
    read: Callable[[Source, str, ReadOptions], Recording]
    companions: tuple[str, ...] = ()
    files_beside: Callable[[bytes, str], set[str] | None] = _no_other_files
    other_suffixes: tuple[str, ...] = ()
    recognise: Callable[[bytes], bool] | None = None
    parts: Callable[[Source, str, ReadOptions], Sequence[Part]] = _one_part
    reads_stretches: bool = False
