"""What a file format is: one module of this package that declares one `FileFormat`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from clocs.formats.source import Source
from clocs.recording import Recording


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What the user says about files that are to be read.

    Attributes:
        leads: Keep these, in this order; all where None.
        rate: In Hz, for formats that do not give it.
        unit: Of the samples ('mV', 'µV' …), for formats that do not give it.
    """

    leads: tuple[str, ...] | None = None
    rate: float | None = None
    unit: str | None = None


def _no_other_files(data: bytes, name: str) -> set[str]:
    return set()


@dataclass(frozen=True, slots=True)
class FileFormat:
    """A format of recordings.

    Attributes:
        name: As in messages.
        suffix: Of the file that represents a recording; lower case.
        read: Reads the recording of a file in a source, by the file's name there.
        companions: Suffixes of files that belong to such a file and are no recordings alone.
        files_beside: From the file's bytes and name, the names of the files it needs beside it;
            None where only the whole folder will do.
    """

    name: str
    suffix: str
    read: Callable[[Source, str, ReadOptions], Recording]
    companions: tuple[str, ...] = ()
    files_beside: Callable[[bytes, str], set[str] | None] = _no_other_files
