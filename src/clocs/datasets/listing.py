"""From a source's file names to entries, and the refusal of a source that is something else."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePosixPath

from clocs.datasets.base import Entry, Listing, Quarantined
from clocs.errors import SourceError, UnusableError
from clocs.formats.source import Source, stem
from clocs.formats.wfdb import WFDB
from clocs.formats.wfdb_header import Header, parse_header
from clocs.limits import MAX_HEADER_BYTES, MAX_TABLE_BYTES


def with_suffix(source: Source, suffix: str | tuple[str, ...]) -> list[str]:
    """Names in the source with this ending (one of these), in upper or lower case."""
    return [name for name in source.names if name.lower().endswith(suffix)]


def complete(
    entries: Iterable[Entry],
    lost: Iterable[Quarantined] = (),
    *,
    rows: Iterable[str] = (),
    fingerprint: str,
) -> Listing:
    """The listing of these entries by ID, the first of each; later ones go to quarantine.

    Args:
        entries: In any order.
        lost: Recordings that are in quarantine already.
        rows: IDs in the label tables.
        fingerprint: Of the source and the label tables.
    """
    ordered = sorted(entries, key=lambda entry: (entry.id, entry.path))
    first, repeated = without_repeats(ordered)
    quarantined = (*lost, *repeated)
    known = {entry.id for entry in first} | {one.id for one in quarantined}
    unmatched = set(rows) - known
    return Listing(tuple(first), quarantined, tuple(sorted(unmatched)), fingerprint)


def without_repeats(entries: Iterable[Entry]) -> tuple[list[Entry], list[Quarantined]]:
    """The first entry of each ID, in order, and quarantine for the others."""
    first: dict[str, Entry] = {}
    repeated: list[Quarantined] = []
    for entry in entries:
        kept = first.setdefault(entry.id, entry)
        if kept is not entry:
            detail = f"{entry.path} has the ID of {kept.path}, which is used"
            repeated.append(Quarantined(entry.id, "duplicate id", detail))
    return list(first.values()), repeated


def wfdb_entries(
    source: Source, info: Mapping[str, Mapping[str, str]]
) -> tuple[list[Entry], list[Quarantined]]:
    """One entry per header, with the label table's row; signal files without one in quarantine."""
    headers = with_suffix(source, ".hea")
    described = {name[:-4] for name in headers}
    stems = [stem(name) for name in headers]
    entries = [
        Entry(one, one, name, info.get(one, {})) for one, name in zip(stems, headers, strict=True)
    ]
    lost = [
        Quarantined(stem(name), "unreadable", f"{name} has no header beside it")
        for name in source.names
        if name.lower().endswith(WFDB.companions) and name[: name.rfind(".")] not in described
    ]
    return entries, lost


def tables(source: Source, name: str) -> list[bytes]:
    """Every table of this name in the source; for a zip, else the one beside it."""
    wanted = name.lower()
    inside = [found for found in source.names if found.lower().rpartition("/")[2] == wanted]
    try:
        found = [source.read(path, MAX_TABLE_BYTES) for path in inside]
        beside = None if found else source.read_sibling(name, MAX_TABLE_BYTES)
    except UnusableError as error:
        raise SourceError(f"{name} of {source.path} cannot be read: {error.detail}") from None
    return found if beside is None else [beside]


def fingerprint(source: Source, contents: Iterable[bytes]) -> str:
    """The fingerprint of the source and of label tables, which may be outside it."""
    marks = hashlib.sha256(source.fingerprint.encode())
    for content in contents:
        marks.update(hashlib.sha256(content).digest())
    return marks.hexdigest()[:32]


def require(source: Source, *, dataset: str, found: int, looked_for: str) -> None:
    """Refuse a source that holds nothing of this dataset, or another dataset.

    Raises:
        SourceError: What was expected, what is there and what to do.
    """
    from clocs.datasets.table import DATASETS

    own = DATASETS.get(dataset)
    if own is None or not own.recognize(source):
        other = next((row.name for row in DATASETS.values() if row.recognize(source)), None)
        if other is not None:
            raise SourceError(
                f"{source.path} looks like {other}, not {dataset} ({looked_for} expected, "
                f"{summary(source)} found); prepare it as {other} or give another source"
            )
    if not found:
        raise SourceError(
            f"{source.path} holds no {dataset} recordings ({looked_for} expected, "
            f"{summary(source)} found); give the dataset's folder or its zip as downloaded"
        )


def first_headers(source: Source) -> Iterator[Header]:
    """The first WFDB headers of a source that can be read, to recognize a dataset by."""
    for name in with_suffix(source, ".hea")[:5]:
        try:
            yield parse_header(source.read(name, MAX_HEADER_BYTES), name=name)
        except UnusableError:
            continue


def summary(source: Source) -> str:
    """The files of a source by suffix, as a phrase."""
    counts = Counter(PurePosixPath(name).suffix.lower() or "other" for name in source.names)
    if not counts:
        return "no files"
    parts = [f"{count:,} {suffix}" for suffix, count in counts.most_common(4)]
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if parts[1:] else parts) + " files"
