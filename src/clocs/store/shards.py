"""Stores in shards: the recordings of a patient are in one of them, which a hash of the ID decides.

A shard is a store like any other, with a journal, a lock and a quarantine of its own, and is read
from the part of the source's listing that is its own. The listing is made once. A manifest joins
the shards when all are complete.

This imports polars, so workers are forked before it is imported.
"""

from __future__ import annotations

import hashlib
import shutil
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any, cast

import polars as pl

from clocs._version import __version__
from clocs.datasets.base import Dataset, Entry, Listing, Quarantined, said_by_kind
from clocs.datasets.listing import without_repeats
from clocs.errors import ClocsWarning, StoreError
from clocs.files import LOCK, file_error, leftovers, locked
from clocs.recording import Filters
from clocs.store.assembly import assemble, check_source, differences, source_name
from clocs.store.manifest import (
    JOINED,
    MANIFEST,
    VECTORS,
    Manifest,
    ShardHash,
    shard_name,
    shards_in,
)
from clocs.store.store import Store, open_store
from clocs.store.workers import ReadRecording, ReadResult, Workers, read_all

Progress = Callable[[int, int], None]
# Makes the missing shards: of these folders from these listings.
MakeShards = Callable[[Sequence[Path], Sequence[Listing]], None]


@lru_cache(maxsize=64)  # a patient's recordings are usually read one after the other
def shard_of(patient: str, count: int) -> int:
    """Which of `count` shards holds a patient: the first 8 bytes of sha256("shard:ID") modulo it.

    The hash is another than that of splits, so every shard has its share of each part.
    """
    key = hashlib.sha256(f"shard:{patient}".encode(errors="surrogatepass")).digest()[:8]
    return int.from_bytes(key, "big") % count


def divided(listing: Listing, count: int, patients: Iterable[str]) -> list[Listing]:
    """The listing of each shard, in order; what has no patient goes by its ID.

    Args:
        listing: Without repeated IDs.
        count: Of shards.
        patients: The patient of each entry.
    """
    entries: list[list[Entry]] = [[] for _ in range(count)]
    for entry, patient in zip(listing.entries, patients, strict=True):
        entries[shard_of(patient, count)].append(entry)
    return [
        Listing(
            entries=tuple(own),
            quarantined=tuple(q for q in listing.quarantined if shard_of(q.id, count) == k),
            rows_without_recording=tuple(
                name for name in listing.rows_without_recording if shard_of(name, count) == k
            ),
            fingerprint=f"{listing.fingerprint} shard {k} of {count}",
        )
        for k, own in enumerate(entries)
    ]


def prepare_shards(
    dataset: Dataset,
    out: Path,
    count: int,
    readers: Workers,
    make: MakeShards,
    filters: Filters,
) -> Store:
    """Make the shards that are missing, and join all of them."""
    _refuse_foreign(out, count)
    listing = readers.list()
    try:
        if (store := _already(dataset, listing, out, filters)) is not None:
            return store
        with locked(out):
            entries, repeated = without_repeats(listing.entries)
            listing = replace(
                listing, entries=tuple(entries), quarantined=(*listing.quarantined, *repeated)
            )
            listings = divided(listing, count, _patients(listing, readers))
            folders = [out / shard_name(k, count) for k in range(count)]
            make(folders, listings)
            check_source(dataset)
            _join(dataset, listing, out, folders, filters)
    except OSError as error:
        raise file_error(error, out, doing="written") from error
    return open_store(out)


def make_shard(
    dataset: Dataset,
    folder: Path,
    listing: Listing,
    readers: Workers,
    progress: Progress | None,
    filters: Filters,
) -> None:
    """One shard, or what is left to do of it."""
    own = cast("Dataset", _OfShard(dataset))
    assemble(own, folder, _ShardReaders(readers, folder.name, listing), progress, filters)


def one_after_another(
    dataset: Dataset, readers: Workers, progress: Progress | None, filters: Filters
) -> MakeShards:
    """Makes the shards on this machine, each with all readers."""

    def make(folders: Sequence[Path], listings: Sequence[Listing]) -> None:
        ends = list(accumulate(len(one.entries) for one in listings))
        for folder, listing, end in zip(folders, listings, ends, strict=True):
            before, total = end - len(listing.entries), ends[-1]

            def report(done: int, _: int, before: int = before, total: int = total) -> None:
                if progress is not None:
                    progress(before + done, total)

            make_shard(dataset, folder, listing, readers, report, filters)

    return make


class _OfShard:
    """A dataset as a shard sees it: it may be empty, and the store that it is in gives notices."""

    notices: tuple[str, ...] = ()
    may_be_empty = True

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dataset, name)

    def concluded(self, table: pl.DataFrame) -> _OfShard:
        return self if table.is_empty() else _OfShard(self._dataset.concluded(table))


class _ShardReaders:
    """Workers that read the entries of one shard, whose patients must be its own."""

    def __init__(self, readers: Workers, name: str, listing: Listing) -> None:
        self._readers, self._listing = readers, listing
        self._number, self._count = map(int, name.removeprefix("shard-").split("-of-"))
        self.most = readers.most

    def list(self) -> Listing:
        return self._listing

    def submit(self, entries: Sequence[Entry]) -> None:
        self._readers.submit(entries)

    def take(self) -> Sequence[ReadResult]:
        results = self._readers.take()
        for one in results:
            if not isinstance(one, ReadRecording):
                continue
            if shard_of(one.row["patient"], self._count) != self._number:
                raise StoreError(
                    f"the recording {one.row['id']} is of patient {one.row['patient']}, but was "
                    "listed with another, so its shard is unknown before reading; prepare without "
                    "`shards`, or say in the listing that reading tells (`patients_by_reading`)"
                )
        return results

    def close(self) -> None:
        """The readers are others' to close."""


def _patients(listing: Listing, readers: Workers) -> list[str]:
    """The patient of each entry; where only the files tell, each of those is read for it."""
    if not listing.patients_by_reading:
        return [entry.patient for entry in listing.entries]
    unknown = [entry for entry in listing.entries if not entry.patient_is_known]
    warnings.warn(
        f"{len(unknown):,} files are read once more, before the shards are made, because only "
        "they tell their patients; `patient` may name a rule or a column that does",
        ClocsWarning,
        stacklevel=2,
    )
    results = (one for batch in read_all(readers, unknown) for one in batch)
    return [
        entry.patient
        if entry.patient_is_known or not isinstance(read := next(results), ReadRecording)
        else str(read.row["patient"])
        for entry in listing.entries
    ]


def _refuse_foreign(out: Path, count: int) -> None:
    shards = shards_in(out)
    if any(found != count for _, found in shards):
        raise StoreError(
            f"{out} holds a store in {shards[0][1]} shards, not {count}; give as many as `shards`, "
            "delete it, or give another folder as `out`"
        )
    unfinished = leftovers(out / MANIFEST)
    ours = {
        LOCK,
        MANIFEST,
        VECTORS,
        *(one.name for one in (*unfinished, *(path for path, _ in shards))),
    }
    if (out / MANIFEST).is_file() and not shards:
        raise StoreError(
            f"{out} is already a store in one piece; delete it or give another folder as `out`"
        )
    if out.exists() and (not out.is_dir() or any(one.name not in ours for one in out.iterdir())):
        raise StoreError(f"{out} exists and is not a store; give another folder as `out`")


def _already(dataset: Dataset, listing: Listing, out: Path, filters: Filters) -> Store | None:
    """The complete store that is there; None where something of it must be made again."""
    with suppress(StoreError):
        store = open_store(out)
        _ = store.table  # so that each shard is looked into
        if not differences(store.manifest, dataset, listing.fingerprint, filters):
            return store
    return None


def _join(
    dataset: Dataset, listing: Listing, out: Path, folders: Sequence[Path], filters: Filters
) -> None:
    """Write the manifest that makes complete shards one store."""
    shards = [Store(folder, Manifest.read(folder)) for folder in folders]
    manifests = [one.manifest for one in shards]
    quarantined = sum(one.quarantined for one in manifests)
    if not any(one.recordings for one in manifests):
        rows = (row for one in shards for row in one.quarantine.iter_rows(named=True))
        said = said_by_kind(Quarantined(**row) for row in rows)
        for folder in folders:
            shutil.rmtree(folder)
        raise StoreError(
            f"no recording of {dataset.name} is usable ({said}); check that the source is what it "
            "should be"
        )
    contents = [one.content_hash for one in manifests]
    joined = Manifest(
        dataset=dataset.name,
        source=source_name(dataset),
        settings=dict(dataset.settings),
        fingerprint=listing.fingerprint,
        labels=(),
        multilabel=False,
        frame=manifests[0].frame,
        segment_frame=manifests[0].segment_frame,
        resample=dataset.resample,
        batch_size=dataset.batch_size,
        recordings=sum(one.recordings for one in manifests),
        patients=sum(one.patients for one in manifests),
        quarantined=quarantined,
        rows_without_recording=sum(one.rows_without_recording for one in manifests),
        samples=sum(one.samples for one in manifests),
        chunk=manifests[0].chunk,
        signal_bytes=sum(one.signal_bytes for one in manifests),
        files={},
        content_hash=hashlib.sha256("\n".join(contents).encode()).hexdigest(),
        clocs=__version__,
        skip_flat=getattr(dataset, "skip_flat", False),
        keep_unlabeled=getattr(dataset, "keep_unlabeled", False),
        shards=tuple(map(ShardHash, (folder.name for folder in folders), contents)),
        format=JOINED,
    )
    table = Store(out, joined, shards=shards).table
    repeated = table["id"].filter(table["id"].is_duplicated())
    if len(repeated):
        raise StoreError(
            f"{out} holds the recording {repeated[0]} in two shards; each needs an ID of its own"
        )
    concluded = dataset.concluded(table)
    for notice in (*listing.notices, *concluded.notices):
        warnings.warn(notice, ClocsWarning, stacklevel=2)
    replace(
        joined,
        labels=concluded.labels,
        multilabel=concluded.multilabel,
        frame=replace(concluded.frame, filters=filters),
        segment_frame=replace(concluded.segment_frame, filters=filters),
        leads=_leads(table, (one.recordings for one in manifests), listing),
    ).write(out)


def _leads(table: pl.DataFrame, recordings: Iterable[int], listing: Listing) -> tuple[str, ...]:
    """Every lead, in the order of a store in one piece: that of the listing's recordings."""
    first: dict[str, tuple[str, ...]] = {}  # of each kind of leads in each shard
    at = 0
    for count in recordings:
        kinds = table[at : at + count].unique("leads", keep="first", maintain_order=True)
        first |= {name: tuple(leads) for name, leads in kinds.select("id", "leads").iter_rows()}
        at += count
    places = {entry.id: n for n, entry in enumerate(listing.entries) if entry.id in first}
    ordered = sorted(first, key=lambda name: places.get(name, len(listing.entries)))
    return tuple(dict.fromkeys(lead for name in ordered for lead in first[name]))
