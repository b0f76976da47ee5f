"""What preparing would make of a dataset: from all names, and from a sample of the files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, TypeVar

from clocs.datasets.base import Dataset, Listing, Quarantined, by_kind
from clocs.datasets.table import open_dataset
from clocs.store.workers import ReadRecording, read_all, start_workers

if TYPE_CHECKING:
    import polars as pl

SAMPLE = 200
_T = TypeVar("_T")
_EXAMPLES = 3


def preview(
    name: str,
    source: Path | str | None = None,
    *,
    sample: int = SAMPLE,
    workers: int | None = None,
    follow_links: bool = False,
    **options: Any,
) -> dict[str, Any]:
    """What `prepare` would make of a source, without writing anything.

    All names are listed, and up to `sample` recordings, spread over the listing, are read.

    Args:
        name: A dataset, such as 'folder'.
        source: A folder or a zip.
        sample: How many recordings to read.
        workers: Number of reading processes; by default one per core, at most 16.
        follow_links: Read also what links in the folder lead to outside of it.
        options: The dataset's own, as for `prepare`.

    Returns:
        Counts and examples, ready for JSON: `files` by format, `recordings`, `sampled`, `patients`,
        `recordings_per_patient`, `leads`, `rates`, `seconds`, `labels`, `frame`, `problems`,
        `notices`, `examples`, and the options that were used.
    """
    dataset = open_dataset(name, source, follow_links=follow_links, **options)
    return preview_dataset(dataset, sample=sample, workers=workers)


def preview_dataset(
    dataset: Dataset, *, sample: int = SAMPLE, workers: int | None = None
) -> dict[str, Any]:
    """See `preview`."""
    with closing(start_workers(dataset, workers)) as readers:
        listing = readers.list()
        entries = _spread(listing.entries, sample)
        rows: list[dict[str, Any]] = []
        lost: list[Quarantined] = []
        for batch in read_all(readers, entries):
            for one in batch:
                if isinstance(one, ReadRecording):
                    rows.append(one.row)
                else:
                    lost.append(one)
    from clocs.store.assembly import table_of

    table = table_of(rows)
    return _facts(dataset, listing, table, len(entries), lost)


def _spread(items: Sequence[_T], most: int) -> list[_T]:
    """At most so many of them, the first and the last included."""
    if len(items) <= most:
        return list(items)
    return [items[i * (len(items) - 1) // (most - 1)] for i in range(most)]


def _facts(
    dataset: Dataset, listing: Listing, table: pl.DataFrame, sampled: int, lost: list[Quarantined]
) -> dict[str, Any]:
    concluded = dataset.concluded(table) if table.height else dataset
    patients = _patients(listing, table)
    seconds = (table["samples"] / table["rate"]).to_list()
    problems = [*listing.quarantined, *lost]
    unknown = sum(one.reason == "no rate" for one in problems)
    asked = (
        f"{unknown:,} recordings do not say their sampling rate and would be in quarantine; give "
        "it in Hz as `rate`, such as `rate=500`"
    )
    return {
        "dataset": dataset.name,
        "settings": dict(dataset.settings),
        "files": dict(listing.files),
        "recordings": len(listing.entries),
        "sampled": sampled,
        "patients": len(patients),
        "recordings_per_patient": _range(patients.values()),
        "leads": _counted(lead for leads in table["leads"].to_list() for lead in leads),
        "rates": _counted(f"{rate:g}" for rate in table["rate"].to_list()),
        "seconds": _range(seconds),
        "units": _counted(table["unit"].to_list()),
        "labels": _labels(listing, table),
        "unlabeled": _unlabeled(listing, table),
        "multilabel": concluded.multilabel,
        "frame": {"seconds": concluded.frame.seconds, "samples": concluded.frame.samples},
        "folds": _counted(one.fold for one in listing.entries if one.fold is not None),
        "rows_without_recording": len(listing.rows_without_recording),
        "rows_without_recording_examples": list(listing.rows_without_recording[:_EXAMPLES]),
        "problems": _problems(problems),
        "notices": [
            *([asked] if unknown else ()),
            *listing.notices,
            *(concluded.notices if table.height else ()),
        ],
        "examples": [_example(row) for row in _spread(table.rows(named=True), _EXAMPLES)],
    }


def _patients(listing: Listing, table: pl.DataFrame) -> Counter[str]:
    """Recordings by patient: of all where names or tables tell, else of the sample."""
    read = dict(table.select("id", "patient").iter_rows())
    of_sample = any(not one.patient_is_known and one.id in read for one in listing.entries)
    if of_sample and any(read[one.id] != one.patient for one in listing.entries if one.id in read):
        return Counter(read.values())
    return Counter(one.patient for one in listing.entries)


def _has_table_labels(listing: Listing) -> bool:
    return any(one.labels is not None for one in listing.entries)


def _labels(listing: Listing, table: pl.DataFrame) -> dict[str, int]:
    """Recordings with each label: all where a table tells, else those of the sample."""
    if _has_table_labels(listing):
        return _counted(label for one in listing.entries for label in one.labels or ())
    found: list[str] = []
    for labels, episodes in table.select("labels", "episodes").iter_rows():
        found += {*labels, *(one["label"] for one in episodes)}
    return _counted(found)


def _unlabeled(listing: Listing, table: pl.DataFrame) -> int:
    if _has_table_labels(listing):
        return sum(not one.labels for one in listing.entries)
    rows = table.select("labels", "episodes").iter_rows()
    return sum(not labels and not episodes for labels, episodes in rows)


def _counted(values: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(values).items(), key=lambda item: (-item[1], item[0])))


def _range(values: Iterable[float]) -> dict[str, float]:
    found = list(values)
    if not found:
        return {}
    return {"least": min(found), "median": median(found), "most": max(found)}


def _problems(lost: Sequence[Quarantined]) -> list[dict[str, Any]]:
    """By what they say: how many, and an example."""
    return [
        {"reason": one.reason, "count": count, "examples": [one.detail]}
        for one, count in by_kind(lost)
    ]


def _example(row: Mapping[str, Any]) -> dict[str, Any]:
    kept = ("id", "patient", "leads", "rate", "labels", "age", "sex", "taken", "fold", "unit")
    seconds = row["samples"] / row["rate"]
    return {name: row[name] for name in kept} | {"seconds": seconds}
