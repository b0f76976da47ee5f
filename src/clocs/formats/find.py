"""Recordings among files, folders and zips that a person names; a bad one stops no other.

Knows nothing about datasets: no labels, and a recording is its own patient.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from clocs.errors import ClocsError, SourceError, UnusableError
from clocs.formats import beside, read_csv, read_ecg, read_wfdb
from clocs.formats.csv import RATE_HZ
from clocs.formats.source import Source, open_source
from clocs.parallel import ahead, alike
from clocs.recording import Recording

SUFFIXES = (".hea", ".csv", ".ecg")
_TOGETHER = 8  # files that a thread reads at once
_AHEAD = 8  # times so many read ahead of whoever takes them


@dataclass(frozen=True)
class Found:
    """A recording that can be read.

    Attributes:
        name: As a person would say it: the path given, and the name inside a zip or folder.
        member: Its name in the source, or its path.
        source: Holds it; None where it is a file of its own.
    """

    name: str
    member: str
    source: Source | None = None

    def read(self, rate: float = RATE_HZ) -> Recording:
        """The recording; `rate` is in Hz and for CSV files, which do not say theirs.

        Raises:
            ClocsError: In a sentence, why not.
        """
        path = Path(self.member)
        suffix = path.suffix.lower()
        if suffix == ".hea" and self.source is None:
            return read_wfdb(beside(path), path.name)
        if suffix == ".hea" and self.source is not None:
            return read_wfdb(self.source, self.member)
        data = path.read_bytes() if self.source is None else self.source.read(self.member)
        if suffix == ".csv":
            return read_csv(data, name=path.stem, rate=rate, rows=1)
        return read_ecg(data, name=path.stem)


def find_recordings(paths: Sequence[Path | str]) -> list[Found | tuple[str, ClocsError]]:
    """What these files, folders and zips hold, in order; what cannot be used, with its reason."""
    found: list[Found | tuple[str, ClocsError]] = []
    seen: set[str] = set()  # a header and its signal file are one recording
    for given in map(Path, paths):
        try:
            for one in _find(given):
                if one.name not in seen:
                    seen.add(one.name)
                    found.append(one)
        except (ClocsError, OSError) as error:
            found.append((str(given), _in_words(given, error)))
    return found


def read_several(
    found: Iterable[Found | tuple[str, ClocsError]], rate: float = RATE_HZ
) -> Iterator[Recording | tuple[str, ClocsError]]:
    """Each recording, or its name and what is wrong with it, in order; read ahead in threads.

    Two recordings of the same file name are told apart by the whole name given.
    """

    def one(item: Found | tuple[str, ClocsError]) -> tuple[str, Recording | ClocsError]:
        if not isinstance(item, Found):
            return item
        try:
            return item.name, item.read(rate)
        except ClocsError as error:
            return item.name, error
        except (OSError, ValueError, MemoryError) as error:
            return item.name, UnusableError("unreadable", f"{item.name}: {error}")

    taken: set[str] = set()
    groups = alike(found, lambda item: None, _TOGETHER)
    for results in ahead(lambda items: [one(item) for item in items], groups, _AHEAD):
        for name, result in results:
            if not isinstance(result, Recording):
                yield name, result
                continue
            yield replace(result, id=name, patient=name) if result.id in taken else result
            taken.add(result.id)


def _find(given: Path) -> Iterator[Found]:
    suffix = given.suffix.lower()
    if not given.exists() and given.with_name(f"{given.name}.hea").is_file():
        given, suffix = given.with_name(f"{given.name}.hea"), ".hea"  # as wfdb names a record
    if given.is_dir() or suffix == ".zip":
        source = open_source(given)
        names = [n for n in source.names if PurePosixPath(n).suffix.lower() in SUFFIXES]
        if not names:
            raise SourceError(f"{given} holds no recording ({', '.join(SUFFIXES)})")
        for name in names:
            yield Found(f"{given}/{name}", name, source)
        return
    if not given.is_file():
        raise SourceError(f"{given} does not exist; give a recording's file, a folder or a zip")
    if suffix in (".mat", ".dat", ".hea"):
        header = given.with_suffix(".hea")
        if not header.is_file():
            raise SourceError(f"{given} has no header {header.name} beside it; put it there")
        yield Found(str(header), str(header))
    elif suffix in SUFFIXES:
        yield Found(str(given), str(given))
    else:
        raise SourceError(f"{given} is of no known format; known are .hea, .mat, .dat, .csv, .ecg")


def _in_words(given: Path, error: ClocsError | OSError) -> ClocsError:
    if isinstance(error, ClocsError):
        return error
    return SourceError(f"{given} cannot be read ({error.strerror}); check its rights")
