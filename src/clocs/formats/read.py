"""Recordings in files, folders and zips, in every format of the package."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import TypeAlias, TypeVar

from clocs.errors import (
    ClocsError,
    SettingError,
    SourceError,
    UnusableError,
    first_of,
    printable,
    warn,
)
from clocs.files import MAX_HEADER_BYTES, default_processes, file_error, reading_limits
from clocs.formats.addresses import Address, parse_path_or_url
from clocs.formats.base import HEAD_BYTES, FileFormat, Part, ReadOptions
from clocs.formats.source import Source, open_files, open_source, stem
from clocs.recording import Recording
from clocs.registry import rows_in
from clocs.workers import EndedError, LimitedWorkers, UnsendableError

R = TypeVar("R")
Item: TypeAlias = "Found | tuple[str, ClocsError]"  # or a file's name and what is wrong with it

# Other modules of this package may not import from this one, which imports all of them.
FORMATS = rows_in("clocs.formats", FileFormat)

SAMPLE = "sample"  # the name of the recording inside the package
_HEADERS = tuple(one.suffix for one in FORMATS.values() if one.companions)
_MAX_NAMED = 10  # parts or files in a message
_UNKNOWN = "of no known format"
_TOGETHER = 8  # files that a process reads at a time
_SMALL = 4 << 20  # bytes


def read(
    path: str | os.PathLike[str],
    leads: Sequence[str] | None = None,
    *,
    rate: float | None = None,
    unit: str | None = None,
    lead_names: Mapping[str, str] | None = None,
    part: str | None = None,
) -> Recording:
    """Read one recording from a file.

    Args:
        path: A file of any format that clocs knows, recognized by its content: a WFDB header (.hea)
            or its signal file with the header beside it, EDF, a table (.csv) and others. Or its
            address, such as 's3://bucket/a.dcm'. 'sample' is an ECG inside the package, unless
            something here has that name.
        leads: Keep these, in this order.
        rate: Samples per second, in Hz, of a file that does not give it.
        unit: 'mV', 'µV' (or 'uV'), 'nV' or 'V', of a file that does not give it; by default guessed
            from the size of its values, which `extra["notice"]` says.
        lead_names: Standard leads by the names that the file gives them, where those are unusual:
            `{"ECG1": "II"}`.
        part: Which recording of a file that holds several.

    Raises:
        SourceError: The file is missing or of no known format.
        UnusableError: Its content cannot be used.
        SettingError: It has no such lead or part, or `rate` or `unit` is not valid.
    """
    found = _find_file(parse_path_or_url(path))
    chosen = None if leads is None else tuple(leads)
    options = ReadOptions(chosen, rate, unit, lead_names or {})
    try:
        return _chosen(found, part, options).read(options)
    except OSError as error:
        raise file_error(error, path, doing="read") from error
    except MemoryError:
        detail = f"{parse_path_or_url(path)} takes more memory to read than there is"
        raise UnusableError("exceeds limits", detail) from None


def _chosen(found: Found, part: str | None, options: ReadOptions) -> Found:
    """The recording of this name among those of a file; by default the only or nameless one."""
    parts = found.each(found.listed(options))
    chosen = [one for one in parts if one.part == (part or "")]
    if chosen or (part is None and len(parts) == 1):
        return (chosen or parts)[0]
    named = first_of([repr(one.part) for one in parts], _MAX_NAMED)
    raise SettingError(
        f"{found.name} holds {len(parts)} recordings ({named}); choose one as `part`"
    )


def format_of(
    name: str, head: bytes, formats: Collection[FileFormat] | None = None
) -> FileFormat | None:
    """The format of a file with this name that begins with these bytes; None where it has none.

    A file whose content speaks for itself is what it says, whatever its suffix; one with the
    suffix of a format, but damaged content, is of that format, so that reading says what is wrong.

    Args:
        name: Of the file.
        head: Its first `HEAD_BYTES` bytes, or all where it has fewer.
        formats: Among which to look; all by default.
    """
    formats = FORMATS.values() if formats is None else formats
    low = name.lower()
    named = [one for one in formats if low.endswith(one.suffixes)]
    if named and not head.strip():
        return named[0]  # which says that it is empty
    specific = [one for one in formats if not one.generic]
    for one in (*named, *specific):
        if one.recognize is not None and one.recognize(head):
            return one
    if by_name := next((one for one in named if one.recognize is None), None):
        return by_name  # more than a generic format's content tells
    for one in formats:
        if one.recognize is not None and one.recognize(head):
            return one
    return next((one for one in named if not one.generic), None)


def recordings_in(source: Source) -> Iterator[tuple[str, FileFormat]]:
    """The files of a source that represent recordings, in order, with their formats.

    Signal files of a header beside them, and segments of a recording, represent none.
    """
    headers = _bases(source.names, _HEADERS)
    found: dict[str, FileFormat] = {}
    segments: set[str] = set()
    alone = [
        name for name in source.names if format_beside(name) is None or _base(name) not in headers
    ]
    for name, head in source.heads(alone, HEAD_BYTES):
        if (own := format_of(name, head)) is not None:
            found[name] = own
            segments |= own.segments(source, name, head) if own.segments else set()
    yield from ((name, own) for name, own in found.items() if name not in segments)


def _bases(names: Iterable[str], suffixes: str | tuple[str, ...]) -> set[str]:
    return {_base(name) for name in names if name.lower().endswith(suffixes)}


def format_beside(name: str) -> FileFormat | None:
    """The format of which a file of this name is a companion, such as WFDB for `.dat`."""
    low = name.lower()
    return next((one for one in FORMATS.values() if low.endswith(one.companions)), None)


@dataclass(frozen=True, slots=True)
class Others:
    """Files of a source that represent no recordings.

    Attributes:
        belong: How many are parts of recordings.
        headless: Signal files without the header that tells what they hold, and their formats.
        unused: All others.
    """

    belong: int
    headless: tuple[tuple[str, FileFormat], ...]
    unused: tuple[str, ...]

    def sentence(self) -> str:
        """How many are unused and why; '' where there are none."""
        parts = []
        for known, text in ((True, "whose content is not recognized as an ECG"), (False, _UNKNOWN)):
            some = [name for name in self.unused if (_named(name) is not None) == known]
            if some:
                parts.append(f"{len(some):,} {text} ({first_of(some, _MAX_NAMED)})")
        return f"files that are not read: {'; '.join(parts)}" if parts else ""


def other_files(
    source: Source, found: Mapping[str, FileFormat], besides: Collection[str] = ()
) -> Others:
    """What the files of a source are that are not among the recordings `found` or `besides`."""
    headers = _bases(source.names, _HEADERS)
    named: set[str] = set()  # by headers, where signal files are not called like the header
    for name, own in found.items():
        base = name[: -len(own.suffix)]
        if own.files_beside and not any(base + suffix in source for suffix in own.companions):
            try:
                beside = own.files_beside(source.read(name, MAX_HEADER_BYTES), name)
            except UnusableError:
                continue
            named |= {name[: name.rfind("/") + 1] + file for file in beside or ()}
    others = [name for name in source.names if name not in found and name not in besides]
    alone = [name for name in others if _base(name) not in headers and name not in named]
    headless = tuple((name, kind) for name in alone if (kind := format_beside(name)) is not None)
    unused = tuple(name for name in alone if format_beside(name) is None)
    return Others(len(others) - len(alone), headless, unused)


def _base(name: str) -> str:
    dot = name.rfind(".")
    return name[:dot].lower() if dot > name.rfind("/") else name.lower()


def known_suffixes() -> tuple[str, ...]:
    """Suffixes of all files that some format reads, each once."""
    formats = FORMATS.values()
    return tuple(dict.fromkeys(s for one in formats for s in (*one.suffixes, *one.companions)))


@dataclass(frozen=True)
class Found:
    """A recording that can be read.

    Attributes:
        name: For messages: the path given, and the name inside a zip or folder.
        format: Of the file.
        path: The file's name in `source`; where that is None, its path or address.
        source: The folder or zip that holds it; None for a file named by itself.
        part: Of a file that holds several recordings, the name of this one.
        start: Where a stretch of a long recording begins, in seconds.
        stop: Where it ends; None for the whole recording.
        length: The duration in seconds, where listing the file's recordings told it.
    """

    name: str
    format: FileFormat
    path: str
    source: Source | None = None
    part: str = ""
    start: float = 0.0
    stop: float | None = None
    length: float | None = None

    def read(self, options: ReadOptions) -> Recording:
        """The recording, with the leads of the options."""
        if self.stop is None or self.source is not None:
            source, path = self._opened()
        else:
            source, path = _opened_once(replace(self, start=0.0, stop=None))
        options = replace(options, part=self.part) if self.part else options
        if self.stop is not None:
            options = replace(options, start=self.start, stop=self.stop)
        recording = self.format.read(source, path, options)
        return recording if options.leads is None else recording.select(options.leads)

    def seconds(self, options: ReadOptions) -> float | None:
        """The duration of a recording that is better read in stretches, by its header.

        None where its format is not read in stretches, or the file is small.
        """
        if not self.format.reads_stretches or self.format.may_hold_several:
            return self.length if self.format.reads_stretches else None
        source, path = self._opened()
        if not self.format.companions and source.size(path) < _SMALL:
            return None
        parts = self.format.parts(source, path, options)
        return next((one.seconds for one in parts if one.name == self.part), None)

    def listed(self, options: ReadOptions) -> Sequence[Part]:
        """The recordings of the file, looking into it only where there may be several."""
        if not self.format.may_hold_several:
            return (Part(),)
        return self.format.parts_of(*self._opened(), options)

    def each(self, parts: Sequence[Part]) -> list[Found]:
        """One for each of these recordings of the file."""
        named = [f"{self.name}/{one.name}" if one.name else self.name for one in parts]
        names = map(printable, named) if len(parts) > 1 else [self.name]
        return [
            replace(self, name=name, part=part.name, length=part.seconds)
            for name, part in zip(names, parts, strict=True)
        ]

    def _opened(self) -> tuple[Source, str]:
        """A source that holds the file and those it needs, and its name there."""
        if self.source is not None:
            return self.source, self.path
        file = parse_path_or_url(self.path)
        name = printable(file.name)
        if self.format.files_beside is None:
            return open_files(file.parent, [file.name]), name
        data = open_files(file.parent, [file.name]).read(name)
        beside = self.format.files_beside(data, name)
        return open_files(file.parent, None if beside is None else {file.name, *beside}), name


@lru_cache(maxsize=2)
def _opened_once(one: Found) -> tuple[Source, str]:
    """The source of a recording's stretches: what a reader remembers of it serves all of them."""
    return one._opened()


def find_recordings(
    paths: Sequence[Path | str], options: ReadOptions | None = None, *, follow_links: bool = False
) -> list[Item]:
    """The recordings in these files, folders and zips, in order; what cannot be used, with why.

    Files are recognized by their content; one that holds several recordings is found several times.
    A warning names files of folders and zips that are not recognized as recordings.

    Args:
        paths: Files, folders and zips, here or at addresses.
        options: As they will be read with.
        follow_links: Read also what links in folders lead to outside of them.
    """
    options = options or ReadOptions()
    found: list[Item] = []
    for given in map(parse_path_or_url, paths):
        try:
            found += _find(given, follow_links)
        except ClocsError as error:
            found.append((printable(str(given)), error))
        except OSError as error:
            found.append((printable(str(given)), file_error(error, str(given), doing="read")))
    # A header and its signal file are one recording.
    items = {one.name if isinstance(one, Found) else i: one for i, one in enumerate(found)}
    apart = parts_apart([one for one in items.values() if isinstance(one, Found)], options)
    every: list[Item] = []
    for one in items.values():
        if not isinstance(one, Found):
            every.append(one)
            continue
        parts = apart[one.name] if one.name in apart else _do(Found.listed, [one], options, 0)
        every += [(one.name, parts)] if isinstance(parts, ClocsError) else one.each(parts)
    return every


def parts_apart(
    found: Sequence[Found], options: ReadOptions
) -> dict[str, Sequence[Part] | ClocsError]:
    """The recordings of files whose format may crash, by name, or what is wrong with a file.

    They are listed in a process, so that a file that crashes it spoils only itself.
    """
    some = [one for one in found if one.format.may_crash]
    listed = _in_processes(Found.listed, some, options)
    return {one.name: parts for one, parts in zip(some, listed, strict=True)}


def read_several(
    found: Iterable[Item], options: ReadOptions | None = None
) -> Iterator[Recording | tuple[str, ClocsError]]:
    """Each recording, or its name and what is wrong with it, in order; read ahead in processes.

    Recordings with the same file name are distinguished by their whole names.
    """
    items = list(found)
    used: set[str] = set()
    ids: dict[str, str] = {}  # by name: stretches of one recording have one id
    names = [_name(item) for item in items]
    results = _in_processes(Found.read, items, options or ReadOptions())
    for name, short, result in zip(names, without_folders(names), results, strict=True):
        if not isinstance(result, Recording):
            yield name, result
            continue
        if name not in ids:
            ids[name] = short if result.id in used else result.id
            used.add(result.id)
        own = ids[name]
        yield result if own == result.id else replace(result, id=own, patient=own)


def without_folders(names: Sequence[str]) -> list[str]:
    """Names of files without the folders that whole paths share: those are of this machine."""
    whole = [os.path.dirname(name) for name in names if os.path.isabs(name)]  # noqa: PTH117, PTH120
    shared = os.path.commonpath(whole).rstrip("/") + "/" if whole else "/"
    return [name.removeprefix(shared) for name in names]


def _name(item: Item) -> str:
    return item.name if isinstance(item, Found) else item[0]


def _do(
    act: Callable[[Found, ReadOptions], R], items: Sequence[Item], options: ReadOptions, number: int
) -> R | ClocsError:
    """What the act gives for one of the items, or what is wrong with that."""
    item = items[number]
    if not isinstance(item, Found):
        return item[1]
    try:
        return act(item, options)
    except ClocsError as error:
        return error
    except OSError as error:
        return file_error(error, item.name, doing="read")


def _is_small(item: Item) -> bool:
    """Whether it is a small file here, of a format that cannot crash the process."""
    if not isinstance(item, Found) or item.source is not None or item.format.may_crash:
        return False
    file = Path(item.path)
    return item.stop is None and file.is_file() and file.stat().st_size <= _SMALL


def _in_processes(
    act: Callable[[Found, ReadOptions], R], items: Sequence[Item], options: ReadOptions
) -> Iterator[R | ClocsError]:
    """Results of all items, in order, by processes with limits on memory and time."""
    batches: list[range] = []  # several files, or one stretch of a long recording
    together = False
    for number, item in enumerate(items):
        whole = getattr(item, "stop", None) is None
        if together and whole and len(batches[-1]) < _TOGETHER:
            batches[-1] = range(batches[-1].start, number + 1)
        else:
            batches.append(range(number, number + 1))
        together = whole
    if not batches:
        return

    def refuse(number: int, why: str) -> ClocsError:
        return UnusableError("exceeds limits", f"{_name(items[number])} {why}")

    one = partial(_do, act, items, options)
    if len(items) == 1 and _is_small(items[0]):  # as `read` does: no other file is lost with it
        yield one(0)
        return
    processes = min(default_processes(), len(batches))
    try:
        workers = LimitedWorkers(one, refuse, processes, reading_limits())
    except UnsendableError:  # a format that this process alone knows: without limits
        yield from map(one, range(len(items)))
        return
    with closing(workers) as pool:
        try:
            for number, batch in enumerate(batches):
                if number >= pool.most:
                    yield from pool.take()
                pool.submit(batch)
            for _ in range(min(pool.most, len(batches))):
                yield from pool.take()
        except EndedError:
            raise SourceError(
                "a process that reads recordings was ended from outside, perhaps for lack of "
                "memory; try again with fewer files at a time"
            ) from None


def _find(given: Path | Address, follow_links: bool) -> list[Item]:
    if given.suffix.lower() != ".zip" and not given.is_dir():
        return [_find_file(given)]
    source = open_source(given, follow_links=follow_links)
    files = dict(recordings_in(source))
    others = other_files(source, files)
    if not files and not others.headless:
        why = others.sentence() or "it is empty"
        raise SourceError(f"{given} holds no recording ({why}); give another folder or zip")
    if others.unused:
        warn(f"{given} holds {others.sentence()}; give one of them by its own name to see why")
    found: list[Item] = []
    for name, own in files.items():
        found.append(Found(printable(f"{given}/{name}"), own, name, source))
    for name, own in others.headless:
        whole = printable(f"{given}/{name}")
        why = f"{whole} has no header ({own.suffix}) beside it; put it there"
        found.append((whole, SourceError(why)))
    return found


def _find_file(given: Path | Address) -> Found:
    """The recording that a file represents or belongs to."""
    if not given.exists():
        for one in FORMATS.values():  # as wfdb names a record: without a suffix
            if one.companions and given.with_name(f"{given.name}{one.suffix}").is_file():
                return _found(given.with_name(f"{given.name}{one.suffix}"), one)
        if str(given) == SAMPLE:  # unless there is a file, a folder or a record of that name
            return replace(_find_file(Path(__file__).with_name(f"{SAMPLE}.hea")), name=SAMPLE)
    if not given.is_file():
        raise SourceError(f"{given} does not exist or is no file; give a recording's file")
    needed = format_beside(given.name)
    main = None if needed is None else given.with_name(stem(given.name) + needed.suffix)
    if needed is not None and main is not None and main.is_file():
        return _found(main, needed)
    head = open_files(given.parent, [given.name]).head(printable(given.name), HEAD_BYTES)
    own = format_of(given.name, head) or _named(given.name)
    if own is not None:
        return _found(given, own)
    if main is None:
        known = ", ".join(known_suffixes())
        raise SourceError(f"{given} is {_UNKNOWN}; known are {known}")
    raise SourceError(f"{given} has no header {main.name} beside it; put it there")


def _named(name: str) -> FileFormat | None:
    """The format that a file's name alone promises: what is asked for by name must be one."""
    low = name.lower()
    return next((one for one in FORMATS.values() if low.endswith(one.suffixes)), None)


def _found(path: Path | Address, own: FileFormat) -> Found:
    return Found(printable(str(path)), own, path.url if isinstance(path, Address) else str(path))
