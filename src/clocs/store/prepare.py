"""prepare, preview and from_arrays: a dataset becomes a store, in parallel and without torch.

Readers read (`readers`), the calling thread assembles the store (`assembly`, `shards`), and a
journal records progress (`journal`), so that an interrupted call is resumed. Entries are taken in
the order of the listing, so the store's content depends neither on the readers nor on
interruptions.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, TypeVar

from clocs.datasets.arrays import Arrays, OnePerRecording
from clocs.datasets.base import Dataset, Listing, Quarantined, faults_by_kind, open_dataset
from clocs.datasets.pseudonyms import KEY, Pseudonyms, folder_of, key_of, remove_unused
from clocs.errors import SettingError, StoreError, warn
from clocs.files import writing
from clocs.formats.addresses import Address, parse_path_or_url
from clocs.recording import Filters, FrameSpec, Recording
from clocs.store.manifest import MANIFEST, shards_in
from clocs.store.readers import Readers
from clocs.store.table import recording_of

if TYPE_CHECKING:
    import polars as pl

    from clocs.store.store import Store

MAX_SHARDS = 9999
PREVIEWED = 200  # recordings
_T = TypeVar("_T")
_EXAMPLES, _FAULTS = 3, 8
_CHECKED = 30.0  # seconds of each recording that a preview checks for faults
_SHOWN = ("id", "patient", "leads", "rate", "labels", "age", "sex", "taken", "fold", "unit")


def prepare(
    name: str | Dataset,
    source: Path | str | None = None,
    *,
    out: Path | str,
    workers: int | None = None,
    shards: int | None = None,
    ray: str | None = None,
    band_pass: str | None = None,
    notch: int | None = None,
    baseline: bool = False,
    follow_links: bool = False,
    limit: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    **options: Any,
) -> Store:
    """Read a dataset's published files, or a folder of one's own, into a store.

    After an interruption, the same call resumes. Recordings that cannot be used go to a quarantine
    list with their reason.

    Args:
        name: Name of the dataset: cardiology, chapman, folder (your own files), mitbih,
            physionet2017, physionet2020, physionet2021, ptbxl or synthetic. In Python also a
            dataset of your own, an object (docs/python.md).
        source: Folder or zip as downloaded, or its address, such as 's3://bucket/folder'
            (docs/scaling.md); none for synthetic.
        out: The store's folder, made where it does not exist.
        workers: Number of reading processes; by default one per core, at most 16.
        shards: Make as many stores, each with its share of the patients, that are joined and open
            as one (docs/scaling.md).
        ray: Make each shard on a Ray cluster: its HOST:PORT, or 'auto' for the one of this machine.
            All nodes must see the source and `out` under the same paths. A task has one reading
            process, or `workers`.
        band_pass: Filter recordings, in training and wherever the encoder is used: the lowest and
            highest frequency in Hz, such as '0.5-40'. The store keeps the samples unfiltered.
        notch: Remove mains interference at 50 or 60 Hz, likewise.
        baseline: Remove baseline wander, likewise.
        follow_links: Read also what links in the folder lead to outside of it.
        limit: Read only so many recordings, spread over all of them, for a first look.
        progress: Called with (recordings done, recordings in total).
        options: The dataset's own: `reference="v3"` for physionet2017; `patient`, `labels` and
            others for folder (docs/own-ecgs.md); `patients`, `seed`, `recordings`, `seconds`,
            `rate` for synthetic.
    """
    place = parse_path_or_url(out)
    if isinstance(place, Address):
        raise SettingError(
            f"`out` is {place}; stores are written to folders: give one, and copy it there after"
        )
    filters = Filters(_frequencies(band_pass), notch, baseline)
    if source is not None:
        _refuse_inside(place, parse_path_or_url(source))
    if isinstance(name, str):
        dataset = open_dataset(name, source, follow_links=follow_links, **options)
    elif source is None and not options:
        dataset = name
    else:
        given = ", ".join(f"`{one}`" for one in (*["source"][: source is not None], *options))
        raise SettingError(f"a dataset of your own has its source and options; leave out {given}")
    if ray is not None and shards is None:
        raise SettingError("`ray` makes one shard per task; say with `shards` how many")
    if limit is not None and (limit < 1 or shards is not None):
        why = "a first look needs no `shards`" if limit > 0 else "give at least 1"
        raise SettingError(f"`limit` is {limit}; {why}")
    if shards is not None and not 1 <= shards <= MAX_SHARDS:
        raise SettingError(f"`shards` is {shards}; give a number from 1 to {MAX_SHARDS:,}")
    with ExitStack() as opened:
        dataset = opened.enter_context(_with_pseudonyms(dataset, place))
        local = workers if ray is None else None  # to list, and perhaps to read who is who
        readers = opened.enter_context(closing(Readers(dataset, local)))
        # What is imported from here on has threads, after which nobody may fork.
        from clocs.store.assembly import Job, assemble, refuse_foreign

        job = Job(dataset, filters, progress or (lambda done, total: None), limit)
        if shards is None:
            refuse_foreign(place)
            listing = readers.list()
            if limit is not None:
                listing = replace(listing, entries=tuple(_spread(listing.entries, limit)))
            return assemble(job, place, listing, readers)
        from clocs.store.shards import prepare_shards

        if ray is not None:
            from clocs.ray_cluster import connect

            opened.enter_context(connect(ray))
        on_ray = None if ray is None else workers or 1
        return prepare_shards(job, place, shards, readers, on_ray=on_ray)


def _frequencies(band_pass: str | None) -> tuple[float, float] | None:
    """'0.5-40' -> (0.5, 40.0)."""
    if band_pass is None:
        return None
    try:
        low, high = map(float, band_pass.split("-"))
    except ValueError:
        raise SettingError(
            f"`band_pass` is {band_pass!r:.50}; give two frequencies in Hz, such as 0.5-40"
        ) from None
    return low, high


def _refuse_inside(out: Path, source: Path | Address) -> None:
    """A store among the files that are read would itself be read the next time."""
    folder = source.resolve() if isinstance(source, Path) and source.is_dir() else None
    if folder is not None and out.resolve().is_relative_to(folder):
        raise SettingError(
            f"`out` is {out}, which lies in the source {source}; give a folder outside of it"
        )


@contextmanager
def _with_pseudonyms(dataset: Dataset, store: Path) -> Iterator[Dataset]:
    """The dataset with the key of its patients' pseudonyms, which is made before readers start.

    Raises:
        StoreError: The key of an unfinished store is missing.
    """
    if not getattr(dataset, "is_pseudonymous", False):
        yield dataset
        return
    folder = folder_of(store)
    complete = (store / MANIFEST).is_file()
    unfinished = (store / "progress.json").is_file() or bool(shards_in(store))
    if (folder / KEY).is_file() or not (unfinished or complete):
        made = Pseudonyms(key_of(folder), folder)
    elif complete:
        made = Pseudonyms()  # it needs no key
    else:
        raise StoreError(
            f"{store} is unfinished, and the key of its pseudonyms, {folder / KEY}, is missing; "
            "put it back, or delete the store and prepare it again"
        )
    owner: Any = dataset
    try:
        yield replace(owner, pseudonyms=made)
    finally:
        if (store / MANIFEST).is_file() or not store.exists():
            remove_unused(folder)


def from_arrays(
    X: Any,
    patients: OnePerRecording,
    *,
    rate: float,
    leads: Sequence[str] | str,
    labels: Any = None,
    classes: Sequence[str] | None = None,
    ids: OnePerRecording | None = None,
    unit: str = "mV",
    ages: OnePerRecording | None = None,
    sexes: OnePerRecording | None = None,
    recorded_at: OnePerRecording | None = None,
    folds: OnePerRecording | None = None,
    name: str = "arrays",
    frame: FrameSpec | float | None = None,
    out: Path | str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Store:
    """A store of arrays: `clocs.pretrain`, `embed`, `evaluate`, `index` … take it as any other.

    The samples are written, compressed and as 16-bit integers, to a temporary folder that lives as
    long as the store that is returned, or to `out`. `X` is read one recording at a time and not
    copied as a whole; arrays that are mapped from a file, or an HDF5 dataset, stay on disk.

    A value that is not finite is a gap: it costs the frames that it touches, not the recording. A
    recording without any value, or with values that no ECG has, is in the store's `quarantine`,
    and a warning says so.

    Args:
        X: (n, leads, samples), or a list of (leads, samples) of different lengths, floating point
            or integers; of a single lead also (n, samples).
        patients: (n,) the patient of each recording, as text or numbers: the unit of splitting.
        rate: Sampling rate in Hz.
        leads: Names of the leads, in the order of `X`.
        labels: For each recording a name, a list of names, or None where unknown; or an
            (n, classes) matrix of 0 and 1, where a row of zeros means unknown. Without it nothing
            is labeled.
        classes: All label names, in order; those that occur, sorted, by default. A matrix needs
            them, unless it is a table with column names.
        ids: (n,) distinct names of the recordings; their numbers from 0 by default.
        unit: Of `X`: 'mV', 'µV', 'V' …, or 'adu' where it is unknown.
        ages: (n,) in years, None where unknown.
        sexes: (n,) 'male', 'female' or None.
        recorded_at: (n,) when each was recorded: dates, or text as in ISO 8601; None where unknown.
        folds: (n,) parts of a split of your own: 'train', 'validation' and 'test', or numbers, of
            which the last is tested on; None where there is none. Patients are split by hash
            without it.
        name: Of the dataset. Patients of the same name in two stores of one dataset are the same
            patient, also for the guard against testing on patients of the training.
        frame: Seconds of a frame, or a `clocs.FrameSpec`; 5 s by default, or half of the longest
            recording where that is less.
        out: A folder to keep the store in; `clocs.open_store` opens it again.
        progress: Called with (recordings done, recordings in total).
    """
    columns = {"ids": ids, "ages": ages, "sexes": sexes, "recorded_at": recorded_at}
    facts = {"labels": labels, "classes": classes, "unit": unit, "name": name, "frame": frame}
    facts |= columns | {"folds": folds, "fingerprint": out is not None}
    dataset = Arrays(X, patients, rate=rate, leads=leads, **facts)
    from clocs.store.assembly import Job, assemble

    job = Job(dataset, progress=progress or (lambda done, total: None))
    if out is None:
        with writing(tempfile.gettempdir()):
            folder = Path(tempfile.mkdtemp(prefix="clocs-arrays-"))
    else:
        folder = Path(out)
    try:
        with closing(Readers(dataset, threads=True)) as readers:
            store = assemble(job, folder, readers.list(), readers)
    except BaseException as error:
        if out is None:
            shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, StoreError) and out is None:
            raise SettingError(f"{error} (`unit`, `rate` and the values of `X`)") from None
        raise
    if out is None:
        weakref.finalize(store, _remove, folder, os.getpid())
    if store.manifest.quarantined:
        first = store.quarantine.row(0, named=True)
        warn(
            f"{store.manifest.quarantined} of {len(dataset.ids)} recordings cannot be used and are "
            f"left out, such as {first['id']} ({first['reason']}: {first['detail']}); see the "
            "store's `quarantine`"
        )
    return store


def _remove(folder: Path, process: int) -> None:
    """Delete a temporary store, but not from a copy of the process that made it."""
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)


def preview(
    name: str,
    source: Path | str | None = None,
    *,
    sample: int = PREVIEWED,
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
        Counts and examples, ready for JSON. These are `files` by format, `recordings`, `sampled`,
        `patients`, `recordings_per_patient`, `leads`, `rates`, `seconds`, `labels`, `frame`,
        `problems`, `notices`, `examples`, and the options that were used.
    """
    from clocs.store.assembly import table_of

    dataset = open_dataset(name, source, follow_links=follow_links, **options)
    with closing(Readers(dataset, workers)) as readers:
        listing = readers.list()
        entries = _spread(listing.entries, sample)
        rows, lost, begun = [], [], []
        for one in (one for batch in readers.read(entries) for one in batch):
            if isinstance(one, Quarantined):
                lost.append(one)
            else:
                rows.append(one[0])
                row = table_of(rows[-1:]).row(0, named=True)  # as a store has it
                first = recording_of(row, one[1]).between(0, round(_CHECKED * row["rate"]))
                begun.append(replace(first, digital=first.digital.copy()))
    facts = _facts(dataset, listing, table_of(rows), len(entries), lost)
    facts["notices"] += _faults(begun)
    return facts


def _faults(recordings: Iterable[Recording]) -> list[str]:
    """What may be wrong with electrodes and units, each sentence once."""
    from clocs.measurements.check import check

    found = Counter(one.sentence for recording in recordings for one in check(recording))
    most = found.most_common(_FAULTS)
    said = [f"{words} ({count:,} of those read)" for words, count in most]
    more = found.total() - sum(count for _, count in most)
    return [*said, f"{more:,} more of those read may have other faults"] if more else said


def _spread(items: Sequence[_T], most: int) -> list[_T]:
    """At most so many of them, the first and the last included."""
    if len(items) <= most:
        return list(items)
    return [items[i * (len(items) - 1) // max(most - 1, 1)] for i in range(most)]


def _facts(
    dataset: Dataset, listing: Listing, table: pl.DataFrame, sampled: int, lost: list[Quarantined]
) -> dict[str, Any]:
    whole = dataset.with_inferred_schema(table) if table.height else dataset
    patients = _patients(listing, table)
    labeled: Sequence[Iterable[str]]  # by the label table where there is one, else of the sample
    if any(one.labels is not None for one in listing.entries):
        labeled = [one.labels or () for one in listing.entries]
    else:
        rows = table.select("labels", "episodes").iter_rows()
        labeled = [{*own, *(one["label"] for one in episodes)} for own, episodes in rows]
    problems = [*listing.quarantined, *lost]
    notices = [*listing.notices, *(whole.notices if table.height else ())]
    if unknown := sum(one.reason == "no rate" for one in problems):
        asked = (
            f"{unknown:,} of the recordings would be in quarantine, without a sampling rate; "
            "give it in Hz as `rate`, such as `rate=500`"
        )
        notices = [asked, *notices]
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
        "seconds": _range((table["samples"] / table["rate"]).to_list()),
        "units": _counted(table["unit"].to_list()),
        "labels": _counted(label for own in labeled for label in own),
        "unlabeled": sum(not own for own in labeled),
        "multilabel": whole.multilabel,
        "frame": {"seconds": whole.frame.seconds, "samples": whole.frame.samples},
        "folds": _counted(one.fold for one in listing.entries if one.fold is not None),
        "rows_without_recording": len(listing.rows_without_recording),
        "rows_without_recording_examples": list(listing.rows_without_recording[:_EXAMPLES]),
        "problems": [
            {"reason": one.reason, "count": count, "examples": [one.detail]}
            for one, count in faults_by_kind(problems)
        ],
        "notices": notices,
        "examples": [
            {name: row[name] for name in _SHOWN} | {"seconds": row["samples"] / row["rate"]}
            for row in _spread(table.rows(named=True), _EXAMPLES)
        ],
    }


def _patients(listing: Listing, table: pl.DataFrame) -> Counter[str]:
    """Recordings by patient: of all where names or tables tell, else of the sample."""
    read = dict(table.select("id", "patient").iter_rows())
    unknown = [one for one in listing.entries if not one.patient_is_known and one.id in read]
    if any(read[one.id] != one.patient for one in unknown):
        return Counter(read.values())
    return Counter(one.patient for one in listing.entries)


def _counted(values: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(values).items(), key=lambda item: (-item[1], item[0])))


def _range(values: Iterable[float]) -> dict[str, float]:
    found = list(values)
    return {"least": min(found), "median": median(found), "most": max(found)} if found else {}
