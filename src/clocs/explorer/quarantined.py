"""Recordings in quarantine, read from the files that a store was prepared from.

They are read to be looked at, as far as they can be: one that breaks off up to where it does, one
without values with gaps, and whatever its labels are. As everywhere, a process with limits on
memory and time reads them.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path, PurePosixPath

from clocs.errors import ClocsError, UnusableError
from clocs.formats.addresses import Address
from clocs.formats.base import FileFormat, ReadOptions
from clocs.formats.read import FORMATS, recordings_in
from clocs.formats.source import Source, hold_files, open_source
from clocs.limits import MAX_HEADER_BYTES, ReadingLimits
from clocs.recording import Recording
from clocs.web import body_reader
from clocs.web.shield import RefusedError
from clocs.workers import EndedError, LimitedWorkers

SECONDS = 60.0  # drawn
MAX_BYTES = 64 << 20  # of a recording's files
AT_ONCE = 2  # recordings being read; a further request is refused for the moment
# At the end of the ID of an hour of a long recording: when it begins.
_STRETCH = re.compile(r"@(\d+):(\d\d):(\d\d)$")
# The first line of a WFDB header up to the rate; then follows the number of samples.
_RECORD_LINE = re.compile(rb"(?m)^([^#\s]\S*[ \t]+\d+[ \t]+\S+)[ \t]+\d+[^\r\n]*")


class NotDrawnError(ClocsError):
    """A recording that cannot be drawn.

    Attributes:
        detail: The same with names of files, which are IDs; '' where there is no more to say.
    """

    def __init__(self, message: str, detail: str = "") -> None:
        super().__init__(message)
        self.detail = detail


@dataclass(frozen=True)
class Drawn:
    """A recording, or as much of it as can be read, and what is missing."""

    recording: Recording
    note: str = ""


class QuarantinedFiles:
    """The files that a store was prepared from."""

    def __init__(self, path: Path | Address) -> None:
        self._path = path
        self._places = threading.BoundedSemaphore(AT_ONCE)

    @cached_property
    def _source(self) -> Source:
        return open_source(self._path)

    def read(self, name: str, *, detail: str, rate: float | None) -> Drawn:
        """A recording, by its ID in quarantine.

        Args:
            name: The ID.
            detail: From quarantine; names the file where several have the ID.
            rate: In Hz, of files that do not give it.

        Raises:
            NotDrawnError: It is not in the source, cannot be read, or exceeds a limit.
        """
        path, own = self._file(name, detail)
        source = self._source.only(_needed(self._source, path, own))
        size = sum(source.size(one) for one in source.names)
        if size > MAX_BYTES:
            raise NotDrawnError(
                f"its files have {size / 2**20:,.0f} MiB; recordings of up to "
                f"{MAX_BYTES >> 20} MiB are drawn"
            )
        hour = _STRETCH.search(name)
        start = (
            sum(int(n) * s for n, s in zip(hour.groups(), (3600, 60, 1), strict=True))
            if hour
            else 0
        )
        part = _STRETCH.sub("", name).partition("#")[2]
        act = _Read(source, path, own.name, ReadOptions(rate=rate, part=part, start=start))
        with self._place():
            answer = _in_process(act)
        if isinstance(answer, Drawn):
            return answer
        raise NotDrawnError("it cannot be read", answer)

    def _file(self, name: str, detail: str) -> tuple[str, FileFormat]:
        """The file that represents the recording, and its format."""
        base = _STRETCH.sub("", name).partition("#")[0]
        held = [one for one in self._source.names if _is_called(one, base)]
        found = list(recordings_in(self._source.only(held)))
        if not found:
            raise NotDrawnError("there is no readable file of it among those it was prepared from")
        named = [one for one in found if detail.startswith((f"{one[0]} ", f"{one[0]}:"))]
        return (named or found)[0]

    @contextmanager
    def _place(self) -> Iterator[None]:
        if not self._places.acquire(blocking=False):
            wait = {"retry-after": "5"}
            raise RefusedError(503, "too many files are being read; try again in a moment", wait)
        try:
            yield
        finally:
            self._places.release()


def _is_called(path: str, base: str) -> bool:
    """Whether a file's path, with or without its suffix, ends with the name."""
    whole = str(PurePosixPath(path).with_suffix(""))
    return any(one == base or one.endswith(f"/{base}") for one in (whole, path))


def _needed(source: Source, path: str, own: FileFormat) -> set[str]:
    """The files that a recording consists of."""
    folder = path[: path.rfind("/") + 1]
    try:
        beside = own.files_beside(source.read(path, MAX_HEADER_BYTES), path)
    except ClocsError:  # a damaged header; reading it says so
        beside = set()
    if beside is None:  # segments: whatever is in the folder
        return {one for one in source.names if one.startswith(folder)}
    return {path, *(folder + one for one in beside if folder + one in source)}


@dataclass(frozen=True)
class _Read:
    """Reads one recording; what is wrong with it is text."""

    source: Source
    path: str
    format: str
    options: ReadOptions

    def __call__(self, item: None) -> Drawn | str:
        try:
            return self._drawn()
        except ClocsError as error:
            return error.detail if isinstance(error, UnusableError) else str(error)
        except (OSError, MemoryError) as error:
            return str(error) or type(error).__name__

    def _drawn(self) -> Drawn:
        own = FORMATS[self.format]
        options = self.options
        if own.reads_stretches:
            options = replace(options, stop=options.start + SECONDS)
        try:
            return Drawn(_start_of(own.read(self.source, self.path, options)))
        except UnusableError as error:
            whole = _up_to_the_end(self.source, self.path) if error.reason == "truncated" else None
            if whole is None:
                raise
        return Drawn(_start_of(own.read(whole, self.path, options)), "the file breaks off here")


def _start_of(recording: Recording) -> Recording:
    return recording.between(0, min(recording.samples, round(SECONDS * recording.rate)))


def _up_to_the_end(source: Source, path: str) -> Source | None:
    """The same files, in memory, where the header promises no more than there is; or None."""
    held = {name: source.read(name, MAX_BYTES) for name in source.names}
    data, kind = held[path], path.lower().rpartition(".")[2]
    if kind == "hea":
        held[path] = _RECORD_LINE.sub(rb"\1", data, count=1)
    elif kind in ("edf", "bdf"):
        held[path] = data[:236] + b"-1      " + data[244:]  # as many data records as there are
    elif kind in ("csv", "tsv", "txt"):
        held[path] = data[: data.rstrip().rfind(b"\n") + 1]  # without the last row
    return None if held[path] == data else hold_files(held)


def _in_process(act: _Read) -> Drawn | str:
    limits = ReadingLimits(body_reader.MAX_MEMORY, body_reader.SECONDS)
    with closing(LimitedWorkers(act, lambda _, why: f"it {why}", 1, limits)) as pool:
        try:
            pool.submit([None])
            (answer,) = pool.take()
        except EndedError:
            return "the process that read it was ended"
    return answer
