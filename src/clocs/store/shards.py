"""Stores in shards: the recordings of a patient are in one of them, which a hash of the ID decides.

A shard is a store like any other, with a journal, a lock and a quarantine of its own, and is read
from the part of the source's listing that is its own, here or in a task on a Ray cluster. The
listing is made once. A manifest joins the shards when all are complete.

This imports polars, so readers are forked before it is imported.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from clocs.datasets.base import Dataset, Entry, Listing, Quarantined, without_repeats
from clocs.errors import StoreError, warn
from clocs.files import LOCK, leftovers, locked, once_free, writing
from clocs.formats.source import Source, stem
from clocs.recording import Filters
from clocs.store import assembly, manifest
from clocs.store.assembly import Job
from clocs.store.journal import roughly_done
from clocs.store.readers import Readers
from clocs.store.store import Store, leads_in_order, open_store

_LOOK = 2.0  # seconds between two looks at the journals of tasks


def prepare_shards(
    job: Job, out: Path, count: int, readers: Readers, *, on_ray: int | None = None
) -> Store:
    """Make the shards that are missing, and join all of them.

    Args:
        job: What to read; on Ray, every node sees its source under the same path.
        out: The store's folder.
        count: Of shards.
        readers: Of the dataset.
        on_ray: Reading processes of a task on the cluster that this process is connected to; None
            to make the shards here, one after the other.
    """
    _refuse_foreign(out, count)
    listing = readers.list()
    with writing(out):
        if (store := _existing(job, listing, out)) is not None:
            return store
        with locked(out):
            entries, repeated = without_repeats(listing.entries)
            listing = replace(
                listing, entries=tuple(entries), quarantined=(*listing.quarantined, *repeated)
            )
            listings = _divided(listing, count, _patients(listing, readers))
            folders = [out / manifest.shard_name(k, count) for k in range(count)]
            if on_ray is not None:
                _make_on_ray(job, folders, listings, on_ray)
            else:
                _make_here(job, folders, listings, readers)
            assembly.check_source(job.dataset)
            _join(job, listing, out, folders)
    return open_store(out)


def _divided(listing: Listing, count: int, patients: Iterable[str]) -> list[Listing]:
    """The listing of each shard, in order; what has no patient goes by its ID."""

    def shard(name: str) -> int:
        return manifest.shard_of(name, count)

    entries: list[list[Entry]] = [[] for _ in range(count)]
    for entry, patient in zip(listing.entries, patients, strict=True):
        entries[shard(patient)].append(entry)
    rows = listing.rows_without_recording
    return [
        Listing(
            entries=tuple(own),
            quarantined=tuple(q for q in listing.quarantined if shard(q.id) == k),
            rows_without_recording=tuple(name for name in rows if shard(name) == k),
            fingerprint=f"{listing.fingerprint} shard {k} of {count}",
        )
        for k, own in enumerate(entries)
    ]


def _patients(listing: Listing, readers: Readers) -> list[str]:
    """The patient of each entry; where only the files tell, each of those is read for it."""
    unknown = [entry for entry in listing.entries if not entry.patient_is_known]
    if unknown:
        warn(
            f"{len(unknown):,} files are read once more, before the shards are made, because only "
            "they tell their patients; `patient` may name a rule or a column that does"
        )
    results = (one for batch in readers.read(unknown) for one in batch)
    return [
        entry.patient
        if entry.patient_is_known or isinstance(read := next(results), Quarantined)
        else str(read[0]["patient"])
        for entry in listing.entries
    ]


def _make_here(
    job: Job, folders: Sequence[Path], listings: Sequence[Listing], readers: Readers
) -> None:
    total = sum(len(listing.entries) for listing in listings)
    before = 0
    for number, (folder, listing) in enumerate(zip(folders, listings, strict=True)):

        def report(done: int, _: int, before: int = before) -> None:
            job.progress(before + done, total)

        own = job._replace(progress=report)
        assembly.assemble(own, folder, listing, readers, (number, len(folders)))
        before += len(listing.entries)


def _make_on_ray(
    job: Job, folders: Sequence[Path], listings: Sequence[Listing], workers: int
) -> None:
    """One task per shard; a lost worker's shard goes on from its journal."""
    from clocs.ray_cluster import Resources, Tasks, check_fits

    needs = Resources(cpus=workers)
    check_fits(needs)
    source = getattr(job.dataset, "source", None)
    files = files_of_shards(source, listings) if isinstance(source, Source) else None
    sizes = [len(listing.entries) for listing in listings]
    done = [0] * len(folders)
    with Tasks[int]() as tasks:
        for number, (folder, listing) in enumerate(zip(folders, listings, strict=True)):
            own: Any = job.dataset
            if files is not None:
                own = replace(own, source=own.source.only(files[number]))
            # other nodes may have another working folder
            task = (own, job.filters, folder.absolute(), listing, workers, (number, len(folders)))
            tasks.start(number, _make_shard, *task, needs=needs)
        while len(tasks):
            for number, result in tasks.finished(_LOOK):
                result()
                done[number] = sizes[number]
            for number, folder in enumerate(folders):
                done[number] = max(done[number], roughly_done(folder))
            job.progress(sum(done), sum(sizes))


def _make_shard(
    dataset: Dataset,
    filters: Filters,
    folder: Path,
    listing: Listing,
    workers: int,
    shard: tuple[int, int],
) -> None:
    """Runs on a node. The process that was lost may hold the folder for a moment."""
    with closing(Readers(dataset, workers, to_list=False)) as readers:
        job = Job(dataset, filters)
        once_free(partial(assembly.assemble, job, folder, listing, readers, shard))


def files_of_shards(source: Source, listings: Sequence[Listing]) -> list[list[str]]:
    """The files that each shard needs: those of its recordings, and all that are of no recording.

    A file is of the recording that has its name but for the suffix. Without this, every task, and
    every reading process, would hold the names of all files of the source.
    """
    owner: dict[str, int] = {}
    for number, listing in enumerate(listings):
        for entry in listing.entries:
            base = _base(entry.path)
            if owner.setdefault(base, number) != number:
                owner[base] = -1  # recordings of several shards
    own: list[list[str]] = [[] for _ in listings]
    common: list[str] = []
    for name in source.names:
        number = owner.get(_base(name), -1)
        (common if number < 0 else own[number]).append(name)
    return [[*common, *names] for names in own]


def _base(path: str) -> str:
    return path[: path.rfind("/") + 1] + stem(path).lower()


def _refuse_foreign(out: Path, count: int) -> None:
    shards = manifest.shards_in(out)
    if any(found != count for _, found in shards):
        raise StoreError(
            f"{out} holds a store in {shards[0][1]} shards, not {count}; give as many as `shards`, "
            "delete it, or give another folder as `out`"
        )
    if (out / manifest.MANIFEST).is_file() and not shards:
        raise StoreError(
            f"{out} is already a store in one piece; delete it or give another folder as `out`"
        )
    paths = (*leftovers(out / manifest.MANIFEST), *(path for path, _ in shards))
    ours = {LOCK, manifest.MANIFEST, manifest.VECTORS, manifest.KEPT}
    ours |= {path.name for path in paths}
    if out.exists() and (not out.is_dir() or any(one.name not in ours for one in out.iterdir())):
        raise StoreError(f"{out} exists and is not a store; give another folder as `out`")


def _existing(job: Job, listing: Listing, out: Path) -> Store | None:
    """The complete store that is there; None where something of it must be made again."""
    with suppress(StoreError):
        store = open_store(out)
        _ = store.table  # so that each shard is looked into
        if not assembly.differences(store.manifest, job, listing.fingerprint):
            return store
    return None


def _join(job: Job, listing: Listing, out: Path, folders: Sequence[Path]) -> None:
    """Write the manifest that makes complete shards one store."""
    shards = [Store(folder, manifest.Manifest.read(folder)) for folder in folders]
    manifests = [one.manifest for one in shards]
    if not any(one.recordings for one in manifests):
        rows = [row for one in shards for row in one.quarantine.iter_rows(named=True)]
        for folder in folders:
            shutil.rmtree(folder)
        raise assembly.no_usable(job.dataset, [Quarantined(**row) for row in rows])
    table = Store(out, manifests[0], shards=shards).table
    repeated = table["id"].filter(table["id"].is_duplicated())
    if len(repeated):
        raise StoreError(
            f"{out} holds the recording {repeated[0]} in two shards; each needs an ID of its own"
        )
    job = job._replace(dataset=job.dataset.with_inferred_schema(table))
    assembly.give_notices(job.dataset, listing)
    contents = [one.content_hash for one in manifests]
    totals = ("recordings", "patients", "quarantined", "samples", "signal_bytes")
    assembly.manifest_of(
        job,
        listing,
        **{name: sum(getattr(one, name) for one in manifests) for name in totals},
        chunk=manifests[0].chunk,
        files={},
        content_hash=hashlib.sha256("\n".join(contents).encode()).hexdigest(),
        shards=tuple(map(manifest.ShardHash, (folder.name for folder in folders), contents)),
        leads=_leads(table, listing),
        format=manifest.JOINED,
    ).write(out)


def _leads(table: pl.DataFrame, listing: Listing) -> tuple[str, ...]:
    """Every lead, in the order of a store in one piece: that of the listing's recordings."""
    places = pl.DataFrame({"id": [entry.id for entry in listing.entries]}).with_row_index()
    ordered = table.select("id", "leads").join(places, on="id", how="left").sort("index")
    return leads_in_order(ordered["leads"])
