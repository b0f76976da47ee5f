"""Recordings in files, folders and zips, in every format of the package."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from clocs.errors import ClocsError, SettingError, SourceError, UnusableError, printable
from clocs.files import file_error
from clocs.formats.base import FileFormat, ReadOptions
from clocs.formats.source import Source, open_files, open_source
from clocs.limited_workers import EndedError, LimitedWorkers
from clocs.limits import default_processes, reading_limits
from clocs.recording import PLAUSIBLE_HZ, Recording
from clocs.registry import rows_in
from clocs.worker_messages import UnsendableError

# Other modules of this package may not import from this one, which imports all of them.
FORMATS = rows_in("clocs.formats", FileFormat)

_TOGETHER = 8  # files that a process reads at a time


def read(
    path: str | os.PathLike[str],
    leads: Sequence[str] | None = None,
    *,
    rate: float | None = None,
    unit: str | None = None,
) -> Recording:
    """Read one recording from a file.

    Args:
        path: A WFDB header (.hea) or its signal file (.mat, .dat) with the header beside it,
            a table (.csv), or an iRhythm file (.ecg).
        leads: Keep these, in this order.
        rate: Samples per second, in Hz, of a file that does not give it (.csv); without it, such a
            file must hold 10 s at 500 Hz.
        unit: 'mV', 'µV' (or 'uV'), 'nV' or 'V', of a file that does not give it (.csv); µV by
            default.

    Raises:
        SourceError: The file is missing or of no known format.
        UnusableError: Its content cannot be used.
        SettingError: It has no such lead, or `rate` or `unit` is not valid.
    """
    found = _find_file(Path(path))
    try:
        return found.read(options_of(leads=leads, rate=rate, unit=unit))
    except OSError as error:
        raise file_error(error, path, doing="read") from error
    except MemoryError:
        detail = f"{path} takes more memory to read than there is"
        raise UnusableError("exceeds limits", detail) from None


def options_of(
    *,
    leads: Sequence[str] | None = None,
    rate: float | None = None,
    unit: str | None = None,
) -> ReadOptions:
    """Options for reading, checked."""
    low, high = PLAUSIBLE_HZ
    if rate is not None and not low <= rate <= high:
        raise SettingError(
            f"`rate` is {rate}; give samples per second, {low:g} to {high:,.0f} Hz, such as 500"
        )
    return ReadOptions(None if leads is None else tuple(leads), rate, unit)


def format_of(name: str) -> FileFormat | None:
    """The format whose recordings have names like this; None where there is none."""
    low = name.lower()
    return next((one for one in FORMATS.values() if low.endswith(one.suffix)), None)


def format_beside(name: str) -> FileFormat | None:
    """The format of which a file of this name is a companion, such as WFDB for `.dat`."""
    low = name.lower()
    return next((one for one in FORMATS.values() if low.endswith(one.companions)), None)


def known_suffixes() -> tuple[str, ...]:
    """Suffixes of all files that some format reads."""
    return tuple(s for one in FORMATS.values() for s in (one.suffix, *one.companions))


@dataclass(frozen=True)
class Found:
    """A recording that can be read.

    Attributes:
        name: For messages: the path given, and the name inside a zip or folder.
        format: Of the file.
        path: The file's name in `source`; where that is None, its path.
        source: The folder or zip that holds it; None for a file named by itself.
    """

    name: str
    format: FileFormat
    path: str
    source: Source | None = None

    def read(self, options: ReadOptions) -> Recording:
        """The recording, with the leads of the options."""
        source, path = self.source, self.path
        if source is None:
            file = Path(path)
            path = printable(file.name)
            data = open_files(file.parent, [file.name]).read(path)
            beside = self.format.files_beside(data, path)
            source = open_files(file.parent, None if beside is None else {file.name, *beside})
        recording = self.format.read(source, path, options)
        return recording if options.leads is None else recording.select(options.leads)


def find_recordings(paths: Sequence[Path | str]) -> list[Found | tuple[str, ClocsError]]:
    """The recordings in these files, folders and zips, in order; what cannot be used, with why."""
    found: list[Found | tuple[str, ClocsError]] = []
    seen: set[str] = set()  # a header and its signal file are one recording
    for given in map(Path, paths):
        try:
            for one in _find(given):
                if one.name not in seen:
                    seen.add(one.name)
                    found.append(one)
        except ClocsError as error:
            found.append((printable(str(given)), error))
        except OSError as error:
            found.append((printable(str(given)), file_error(error, given, doing="read")))
    return found


def read_several(
    found: Iterable[Found | tuple[str, ClocsError]],
    rate: float | None = None,
    unit: str | None = None,
) -> Iterator[Recording | tuple[str, ClocsError]]:
    """Each recording, or its name and what is wrong with it, in order; read ahead in processes.

    Recordings with the same file name are distinguished by their whole names. `rate` and `unit`
    are those of `read`.
    """
    items = list(found)
    taken: set[str] = set()
    for name, result in _read_all(_Read(items, options_of(rate=rate, unit=unit))):
        if not isinstance(result, Recording):
            yield name, result
            continue
        yield replace(result, id=name, patient=name) if result.id in taken else result
        taken.add(result.id)


@dataclass(frozen=True)
class _Read:
    """Reads one of these items, by its number."""

    items: Sequence[Found | tuple[str, ClocsError]]
    options: ReadOptions

    def __call__(self, number: int) -> tuple[str, Recording | ClocsError]:
        item = self.items[number]
        if not isinstance(item, Found):
            return item
        try:
            return item.name, item.read(self.options)
        except ClocsError as error:
            return item.name, error
        except OSError as error:
            return item.name, file_error(error, item.name, doing="read")

    def refused(self, number: int, why: str) -> tuple[str, Recording | ClocsError]:
        item = self.items[number]
        name = item.name if isinstance(item, Found) else item[0]
        return name, UnusableError("exceeds limits", f"{name} {why}")


def _read_all(one: _Read) -> Iterator[tuple[str, Recording | ClocsError]]:
    """All items, in order, by processes with limits on memory and time."""
    starts = range(0, len(one.items), _TOGETHER)
    if not starts:
        return
    processes = min(default_processes(), len(starts))
    try:
        workers = LimitedWorkers(one, one.refused, processes, reading_limits())
    except UnsendableError:  # a format that this process alone knows: without limits
        yield from map(one, range(len(one.items)))
        return
    with closing(workers) as pool:
        try:
            for number, start in enumerate(starts):
                if number >= pool.most:
                    yield from pool.take()
                pool.submit(range(start, min(start + _TOGETHER, len(one.items))))
            for _ in range(min(pool.most, len(starts))):
                yield from pool.take()
        except EndedError:
            raise SourceError(
                "a process that reads recordings was ended from outside, perhaps for lack of "
                "memory; try again with fewer files at a time"
            ) from None


def _find(given: Path) -> Iterator[Found]:
    if given.is_dir() or given.suffix.lower() == ".zip":
        source = open_source(given)
        formats = ((name, format_of(name)) for name in source.names)
        found = [Found(f"{given}/{name}", one, name, source) for name, one in formats if one]
        if not found:
            suffixes = ", ".join(one.suffix for one in FORMATS.values())
            raise SourceError(f"{given} holds no recording ({suffixes})")
        yield from (replace(one, name=printable(one.name)) for one in found)
        return
    yield _find_file(given)


def _find_file(given: Path) -> Found:
    """The recording that a file represents or belongs to."""
    if not given.exists():
        for one in FORMATS.values():  # as wfdb names a record: without a suffix
            if one.companions and given.with_name(f"{given.name}{one.suffix}").is_file():
                return _found(given.with_name(f"{given.name}{one.suffix}"), one)
    if not given.is_file():
        raise SourceError(f"{given} does not exist or is no file; give a recording's file")
    own = format_of(given.name)
    if own is not None:
        return _found(given, own)
    needed = format_beside(given.name)
    if needed is None:
        known = ", ".join(known_suffixes())
        raise SourceError(f"{given} is of no known format; known are {known}")
    main = given.with_suffix(needed.suffix)
    if not main.is_file():
        raise SourceError(f"{given} has no header {main.name} beside it; put it there")
    return _found(main, needed)


def _found(path: Path, own: FileFormat) -> Found:
    return Found(printable(str(path)), own, str(path))
