"""Which files of a tree are recordings, of which format, and under which ID."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from clocs.datasets.base import Entry, Quarantined
from clocs.errors import ClocsError, UnusableError
from clocs.formats.base import FileFormat, Part, ReadOptions
from clocs.formats.read import Found, Others, other_files, parts_apart, recordings_in
from clocs.formats.source import Source, stem

NO_RECORDING = "not a recording"
BELONGS = "part of a recording"
# No recording in fewer bytes is longer than an hour: one lead at 50 Hz has as many.
_SMALL = 180_000
_SHORTEST_PART = 2.0  # seconds: a median beat is no recording


@dataclass(frozen=True, slots=True)
class Unit:
    """One recording as a file holds it, before it is cut."""

    entry: Entry  # without a patient
    seconds: float | None  # None where only reading tells
    patient: str | None  # where the file's table of contents names one
    stretches: bool  # whether parts of it in time can be read alone


@dataclass(frozen=True, slots=True)
class Files:
    """All recordings of a source."""

    units: tuple[Unit, ...]
    lost: tuple[Quarantined, ...]
    counts: dict[str, int]  # files by format; others under `NO_RECORDING` and `BELONGS`
    notices: tuple[str, ...]
    others: Others


def find_files(
    source: Source, *, besides: Collection[str], options: ReadOptions, durations: bool
) -> Files:
    """The recordings of a source, recognized by content, and what its other files are.

    Args:
        source: The tree.
        besides: Names that are tables or options.
        options: For reading.
        durations: Whether durations are needed of every recording, not only of large files.
    """
    found = {name: own for name, own in recordings_in(source) if name not in besides}
    counts = Counter(own.name for own in found.values())
    others = other_files(source, found, besides)
    counts[BELONGS] += others.belong
    counts[NO_RECORDING] += len(others.unused)
    lost: list[Quarantined] = []
    for name, own in others.headless:
        lost.append(Quarantined(stem(name), "unreadable", f"{name} has no header beside it"))
        counts[own.name] += 1
    ids = _ids(found)
    units: list[Unit] = []
    left_out = 0
    apart = parts_apart([Found(name, own, name, source) for name, own in found.items()], options)
    for name, own in found.items():
        known = apart.get(name)
        if isinstance(known, UnusableError) and known.reason == "exceeds limits":
            lost.append(Quarantined(ids[name], known.reason, known.detail))
            continue
        if known is None:
            known = _parts(source, name, own, options, durations=durations)
        parts = (Part(),) if isinstance(known, ClocsError) else known or (Part(),)
        kept = [one for one in parts if one.seconds is None or one.seconds >= _SHORTEST_PART]
        left_out += len(parts) - len(kept or parts)
        units += _units(ids[name], name, own, kept or parts)
    notices = []
    if left_out:
        notices.append(
            f"{left_out:,} parts of files are shorter than {_SHORTEST_PART:g} s, such as median "
            "beats, and are left out"
        )
    return Files(tuple(units), tuple(lost), dict(counts), tuple(notices), others)


def _units(name: str, path: str, own: FileFormat, parts: Sequence[Part]) -> Iterator[Unit]:
    for part in parts:
        info = {"format": own.name} | ({"part": part.name} if part.name else {})
        whole = f"{name}#{part.name}" if part.name and len(parts) > 1 else name
        entry = Entry(whole, "", path, info)
        yield Unit(entry, part.seconds, part.patient, own.reads_stretches)


def _parts(
    source: Source, name: str, own: FileFormat, options: ReadOptions, *, durations: bool
) -> Sequence[Part]:
    """The recordings of a file; small files that hold one are not looked into."""
    if not (own.may_hold_several or durations or _size(source, name, own) >= _SMALL):
        return (Part(),)
    try:
        return own.parts(source, name, options) or (Part(),)
    except UnusableError:  # reading it tells why
        return (Part(),)


def _size(source: Source, name: str, own: FileFormat) -> float:
    """Bytes of a file and its companions; infinite where those have other names."""
    base = name[: -len(own.suffix)]
    beside = [base + suffix for suffix in own.companions if base + suffix in source]
    if own.companions and not beside:
        return float("inf")
    return sum(source.size(one) for one in (name, *beside))


def _ids(names: Iterable[str]) -> dict[str, str]:
    """IDs by path: file names where they are unique, else as much of the path as is needed."""
    ids: dict[str, str] = {}
    left = list(names)
    for shorten in (stem, _without_suffix, str):
        counts = Counter(map(shorten, left))
        taken = set(ids.values())
        ids |= {
            name: shorten(name)
            for name in left
            if counts[shorten(name)] == 1 and shorten(name) not in taken
        }
        left = [name for name in left if name not in ids]
    return ids


def _without_suffix(path: str) -> str:
    return path[: path.rfind("/") + 1] + stem(path)
