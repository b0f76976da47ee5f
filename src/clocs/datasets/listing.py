"""From a source's file names to entries, and the refusal of a source that is something else.

Knows the four published datasets by the look of their files only.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath

from clocs.datasets.base import Entry, Quarantined
from clocs.errors import SourceError, UnusableError
from clocs.formats.source import Source, stem
from clocs.formats.wfdb_header import parse_header


def with_suffix(source: Source, suffix: str) -> list[str]:
    """Names in the source that end so, in any case."""
    return [name for name in source.names if name.lower().endswith(suffix)]


def unique(entries: Iterable[Entry]) -> tuple[list[Entry], list[Quarantined]]:
    """Entries by id, the first of each; the later ones go to quarantine."""
    first: dict[str, Entry] = {}
    later: list[Quarantined] = []
    for entry in sorted(entries, key=lambda entry: (entry.id, entry.path)):
        kept = first.setdefault(entry.id, entry)
        if kept is not entry:
            detail = f"{entry.path} has the id of {kept.path}, which is used"
            later.append(Quarantined(entry.id, "duplicate id", detail))
    return list(first.values()), later


def wfdb_entries(
    source: Source, info: Mapping[str, Mapping[str, str]]
) -> tuple[list[Entry], list[Quarantined]]:
    """An entry a header, with the label table's row; signal files without one in quarantine."""
    headers = with_suffix(source, ".hea")
    described = {name[:-4] for name in headers}
    stems = [stem(name) for name in headers]
    entries = [
        Entry(one, one, name, info.get(one, {})) for one, name in zip(stems, headers, strict=True)
    ]
    lost = [
        Quarantined(stem(name), "unreadable", f"{name} has no header beside it")
        for name in source.names
        if name.lower().endswith((".mat", ".dat")) and name[:-4] not in described
    ]
    return entries, lost


def tables(source: Source, name: str) -> list[bytes]:
    """Every table of this name in the source; of a bare zip, also the one beside it."""
    wanted = name.lower()
    inside = [found for found in source.names if found.lower().rpartition("/")[2] == wanted]
    try:
        found = [source.read(path) for path in inside]
    except UnusableError as error:
        raise SourceError(f"{name} of {source.path} cannot be read: {error.detail}") from None
    beside = None if found else source.beside(name)
    return found if beside is None else [beside]


def fingerprint(source: Source, contents: Iterable[bytes]) -> str:
    """The source's own, with the label tables', which may lie outside it."""
    marks = hashlib.sha256(source.fingerprint.encode())
    for content in contents:
        marks.update(hashlib.sha256(content).digest())
    return marks.hexdigest()[:32]


def require(source: Source, *, dataset: str, found: int, looked_for: str) -> None:
    """Refuse a source that holds nothing of this dataset, or another dataset.

    Raises:
        SourceError: With what was looked for, what is there and what to do.
    """
    other = recognise(source)
    if other is not None and other != dataset:
        raise SourceError(
            f"{source.path} looks like {other}, not {dataset} ({looked_for} were looked for, "
            f"{_summary(source)} found); prepare it as {other} or give another source"
        )
    if not found:
        raise SourceError(
            f"{source.path} holds no {dataset} recordings ({looked_for} were looked for, "
            f"{_summary(source)} found); give the dataset's folder or its zip as downloaded"
        )


def recognise(source: Source) -> str | None:
    """Which of the published datasets this looks like, if any."""
    if with_suffix(source, ".ecg"):
        return "cardiology"
    headers = with_suffix(source, ".hea")
    if not headers:
        signals = [name for name in with_suffix(source, ".csv") if stem(name).startswith("MUSE_")]
        return "chapman" if signals else None
    for name in headers[:5]:  # one may be damaged
        try:
            header = parse_header(source.read(name), name=name)
        except UnusableError:
            continue
        fields = header.fields()
        if "Rhythm" in fields or header.name.startswith("MUSE_"):
            return "chapman"
        if "Dx" in fields:
            return "physionet2020"
        if len(header.signals) == 1 and header.rate == 300:
            return "physionet2017"
    return None


def _summary(source: Source) -> str:
    counts = Counter(PurePosixPath(name).suffix.lower() or "other" for name in source.names)
    if not counts:
        return "no files"
    parts = [f"{count:,} {suffix}" for suffix, count in counts.most_common(4)]
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if parts[1:] else parts) + " files"
