"""What a file format is: one module of this package that declares one `FileFormat`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from clocs.formats.source import Source
from clocs.recording import Recording

HEAD_BYTES = 4096  # of a file, from which its format is recognized


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


def _no_segments(source: Source, path: str, head: bytes) -> set[str]:
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
        recognize: Whether a file that begins with these bytes (at most `HEAD_BYTES`) is of this
            format; None where its name alone tells.
        generic: Whether the suffix tells little, as `.csv` does, so that a file is of this format
            only where `recognize` says so too.
        parts: Lists the recordings of a file without reading their samples.
        single: Whether a file always holds one recording, whatever `parts` says about it.
        segments: Lists files in the source that are parts of the recording of this one, from its
            name and its first bytes: they would be recordings by themselves.
        reads_stretches: Whether `read` decodes only what lies between `start` and `stop` of its
            options, so that recordings of days are read in bounded memory.
        may_crash: Whether its library can end the process on a damaged file, so that `parts` is
            called in another one.
    """

    name: str
    suffix: str
    read: Callable[[Source, str, ReadOptions], Recording]
    companions: tuple[str, ...] = ()
    files_beside: Callable[[bytes, str], set[str] | None] = _no_other_files
    other_suffixes: tuple[str, ...] = ()
    recognize: Callable[[bytes], bool] | None = None
    generic: bool = False
    parts: Callable[[Source, str, ReadOptions], Sequence[Part]] = _one_part
    single: bool = False
    segments: Callable[[Source, str, bytes], set[str]] = _no_segments
    reads_stretches: bool = False
    may_crash: bool = False

    @property
    def suffixes(self) -> tuple[str, ...]:
        """Of files that represent a recording."""
        return (self.suffix, *self.other_suffixes)

    @property
    def may_hold_several(self) -> bool:
        """Whether a file can hold more than one recording."""
        return not self.single and self.parts is not _one_part

    def parts_of(self, source: Source, path: str, options: ReadOptions) -> Sequence[Part]:
        """The recordings of a file, looking into it only where there may be several."""
        return self.parts(source, path, options) if self.may_hold_several else (Part(),)
