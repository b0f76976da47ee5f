"""Assembling a store from what readers give; see `prepare`.

This imports polars, so readers are forked before it is imported.
"""

from __future__ import annotations

import shutil
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from clocs._version import __version__
from clocs.datasets import base
from clocs.datasets.base import Dataset, Entry, Listing, Quarantined
from clocs.datasets.pseudonyms import Pseudonyms
from clocs.errors import StoreError, printable, warn
from clocs.files import LOCK, leftovers, locked, writing
from clocs.formats.addresses import Address
from clocs.formats.source import Source
from clocs.recording import Filters
from clocs.store import chunks
from clocs.store.journal import PROGRESS, Done, Journal, progress_of, remove_journal
from clocs.store.manifest import FORMAT, MANIFEST, Manifest, shard_of
from clocs.store.readers import Readers, ReadResult
from clocs.store.store import SIGNALS, TABLE_SCHEMA, Store, content_hash, open_store, write_files

_COMPRESSORS = 2
# what a manifest says as the dataset does
_AS_IN_DATASET = ["labels", "multilabel", "resample", "batch_size", "skip_flat", "keep_unlabeled"]
_MAX_JOBS = 24  # chunks in memory that wait to be written


class Job(NamedTuple):
    """What to make a store of: a dataset, the filters for its manifest, and a report of progress.

    `progress` is called with (recordings done, recordings in total). `limit` is how many were taken
    of all recordings, where not all.
    """

    dataset: Dataset
    filters: Filters = Filters()
    progress: Callable[[int, int], None] = lambda done, total: None
    limit: int | None = None

    @property
    def settings(self) -> dict[str, str]:
        """The dataset's own, and the limit."""
        more = {} if self.limit is None else {"limit": str(self.limit)}
        return {**self.dataset.settings, **more}


def assemble(
    job: Job, out: Path, listing: Listing, readers: Readers, shard: tuple[int, int] | None = None
) -> Store:
    """Put together what the readers read, or return the store that is there already.

    Args:
        job: What is read.
        out: The store's folder.
        listing: Of the dataset; its entries are let go on the way, being as large as the table.
        readers: Of the dataset.
        shard: Its number and the number of all, where the store is a part of another. It may be
            empty, all its patients must be its own, and the whole store gives notices.
    """
    refuse_foreign(out)
    with writing(out):
        if (out / MANIFEST).is_file():
            return _existing(job, listing, out)
        with locked(out):
            if (out / MANIFEST).is_file():  # made by another process since
                return _existing(job, listing, out)
            entries, repeated = base.without_repeats(listing.entries)
            listing = replace(listing, entries=(), quarantined=(*listing.quarantined, *repeated))
            journal = _read_entries(job, listing, entries, out, readers, shard)
            _complete(job, listing, out, journal, is_shard=shard is not None)
    return open_store(out)


def refuse_foreign(out: Path) -> None:
    """StoreError where a folder holds something else than a store or the beginning of one."""
    if not out.exists() or (out / MANIFEST).is_file():
        return
    # A run killed while writing its very first file leaves that file's beginning.
    of_ours = {LOCK, *(path.name for path in leftovers(out / PROGRESS))}
    if not out.is_dir() or (
        progress_of(out) is None and any(path.name not in of_ours for path in out.iterdir())
    ):
        raise StoreError(f"{out} exists and is not a store; give another folder as `out`")


def _existing(job: Job, listing: Listing, out: Path) -> Store:
    store = open_store(out)
    if different := differences(store.manifest, job, listing.fingerprint):
        raise StoreError(
            f"{out} is already a complete store of something else (another {different}); delete it "
            "or give another folder as `out`"
        )
    remove_journal(out)  # left by an interruption after the very last step
    return store


def check_source(dataset: Dataset) -> None:
    """SourceError where files at an address have changed while they were read."""
    if isinstance(source := getattr(dataset, "source", None), Source):
        source.check_unchanged()


def differences(made: Manifest, job: Job, fingerprint: str) -> str:
    """What of a store is another than it would be if it were made now, in words."""
    same = {
        "dataset": made.dataset == job.dataset.name,
        "settings": dict(made.settings) == job.settings,
        "source": made.fingerprint == fingerprint,
        "filters": made.frame.filters == job.filters,
    }
    return ", ".join(name for name, equal in same.items() if not equal)


def _read_entries(
    job: Job,
    listing: Listing,
    entries: list[Entry],
    out: Path,
    readers: Readers,
    shard: tuple[int, int] | None,
) -> Journal:
    """Write samples and journal of all entries, which are taken out of the list."""
    dataset, total = job.dataset, len(entries)
    made = {
        "format": FORMAT,
        "dataset": dataset.name,
        "settings": job.settings,
        "fingerprint": listing.fingerprint,
        "entries": total,
        "chunk": chunks.CHUNK_SAMPLES,
    }
    journal = Journal(out, made)
    (out / SIGNALS / "c").mkdir(parents=True, exist_ok=True)
    done = journal.done.entries
    job.progress(done, total)
    del entries[:done]
    entries.reverse()
    pseudonyms = getattr(dataset, "pseudonyms", Pseudonyms())
    with closing(_Writer(out, journal, pseudonyms)) as writer:
        for batch in readers.read(entries.pop() for _ in range(len(entries))):
            for result in batch:
                if shard is not None and not isinstance(result, Quarantined):
                    _expect_own_patient(result[0], *shard)
                writer.add(result)
            done += len(batch)
            job.progress(done, total)
        writer.finish()
    return journal


def _expect_own_patient(row: dict[str, Any], number: int, count: int) -> None:
    if shard_of(row["patient"], count) != number:
        raise StoreError(
            f"the recording {row['id']} is of patient {row['patient']}, but was listed with "
            "another, so its shard is unknown before reading; prepare without `shards`, or say in "
            "its entry that only reading tells (`patient_is_known=False`)"
        )


def _complete(job: Job, listing: Listing, out: Path, journal: Journal, *, is_shard: bool) -> None:
    """Turn a journal whose every entry is done into a store."""
    dataset = job.dataset
    table, found = journal.results()
    quarantined = [*listing.quarantined, *found]
    if not is_shard:
        check_source(dataset)
        if table.is_empty():  # take it back, so that the folder is free for another attempt
            shutil.rmtree(out / SIGNALS)
            remove_journal(out)
            (out / LOCK).unlink(missing_ok=True)
            out.rmdir()
            raise no_usable(dataset, quarantined)
    if not table.is_empty():
        dataset = dataset.with_inferred_schema(table)
    if not is_shard:
        give_notices(dataset, listing)
    samples = journal.done.samples
    manifest_of(
        job._replace(dataset=dataset),
        listing,
        recordings=table.height,
        patients=table["patient"].n_unique(),
        quarantined=len(quarantined),
        samples=samples,
        chunk=chunks.CHUNK_SAMPLES,
        signal_bytes=chunks.bytes_on_disk(out / SIGNALS, journal.done.chunks),
        files=write_files(out, table, quarantined, listing.rows_without_recording, samples),
        content_hash=content_hash(table),
    ).write(out)
    remove_journal(out)


def no_usable(dataset: Dataset, quarantined: Sequence[Quarantined]) -> StoreError:
    """The error of a source of which every recording is in quarantine."""
    return StoreError(
        f"no recording of {dataset.name} is usable ({base.describe_faults(quarantined)}); check "
        "that the source is what it should be"
    )


def give_notices(dataset: Dataset, listing: Listing) -> None:
    """Warn of what the listing and the dataset, once all is read, have to say."""
    for notice in (*listing.notices, *dataset.notices):
        warn(notice)


def manifest_of(job: Job, listing: Listing, **counted: Any) -> Manifest:
    """The manifest of a store: what the dataset says, and what was counted."""
    dataset, filters = job.dataset, job.filters
    source = getattr(dataset, "source", None)
    path = getattr(source, "path", source)
    path = Path(path) if isinstance(path, str) else path
    return Manifest(
        dataset=dataset.name,
        source=printable(path.name) if isinstance(path, Path | Address) else "",
        settings=job.settings,
        fingerprint=listing.fingerprint,
        frame=replace(dataset.frame, filters=filters),
        segment_frame=replace(dataset.segment_frame, filters=filters),
        rows_without_recording=len(listing.rows_without_recording),
        clocs=__version__,
        **{name: getattr(dataset, name) for name in _AS_IN_DATASET},
        **counted,
    )


class _Writer:
    """Appends results: samples to chunks, in a few threads, and rows to the journal."""

    def __init__(self, store: Path, journal: Journal, pseudonyms: Pseudonyms) -> None:
        self._folder, self._journal = store / SIGNALS, journal
        self._remember = partial(pseudonyms.remember, store.name)
        self._named: dict[str, str] = {}  # what the files say of patients, by pseudonyms
        self._pool = ThreadPoolExecutor(_COMPRESSORS, thread_name_prefix="compress")
        self._jobs: deque[Future[None]] = deque()
        self._position = journal.done.samples  # where the next recording starts
        self._index = journal.done.chunks  # of the chunk being filled
        self._buffer = np.empty(chunks.CHUNK_SAMPLES, dtype=np.int16)
        self._waiting: deque[tuple[int, dict[str, Any] | Quarantined]] = deque()

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    def add(self, result: ReadResult) -> None:
        """Append a recording, or note that an entry is in quarantine."""
        if isinstance(result, Quarantined):
            self._waiting.append((self._position, result))
            return
        row, flat = result
        if "named" in row:
            self._named[row["patient"]] = row.pop("named")
        row["offset"] = self._position
        self._append(flat)
        self._waiting.append((self._position, row))
        per_part = chunks.CHUNKS_PER_PART
        if self._index // per_part > self._journal.done.chunks // per_part:
            self._commit()

    def finish(self) -> None:
        """Write and commit everything."""
        filled = self._position - self._index * chunks.CHUNK_SAMPLES
        if filled > 0:
            self._buffer[filled:] = 0
            self._flush()
        self._commit()

    def _append(self, flat: NDArray[np.int16]) -> None:
        size = chunks.CHUNK_SAMPLES
        stop = self._position + flat.size
        # After resuming, the first recording may begin in a chunk that is on disk already.
        at = max(self._position, self._index * size)
        while at < stop:
            inside = at - self._index * size
            taken = min(size - inside, stop - at)
            begin = at - self._position
            self._buffer[inside : inside + taken] = flat[begin : begin + taken]
            at += taken
            if inside + taken == size:
                self._flush()
        self._position = stop

    def _flush(self) -> None:
        job = self._pool.submit(chunks.write_chunk, self._folder, self._index, self._buffer)
        self._jobs.append(job)
        if len(self._jobs) > _MAX_JOBS:
            self._jobs.popleft().result()
        self._buffer = np.empty_like(self._buffer)
        self._index += 1

    def _commit(self) -> None:
        """Commit everything that lies in whole chunks; the rest waits for the next time."""
        rows: list[dict[str, Any]] = []
        quarantined: list[Quarantined] = []
        before = self._journal.done
        samples = before.samples
        while self._waiting and self._waiting[0][0] <= self._index * chunks.CHUNK_SAMPLES:
            samples, result = self._waiting.popleft()
            if isinstance(result, Quarantined):
                quarantined.append(result)
            else:
                rows.append(result)
        while self._jobs:  # rows may only point to samples that are written
            self._jobs.popleft().result()
        self._remember(self._named)
        self._named.clear()
        entries = before.entries + len(rows) + len(quarantined)
        done = Done(before.parts + 1, entries, samples, self._index)
        self._journal.commit(table_of(rows), quarantined, done)


def table_of(rows: Sequence[dict[str, Any]]) -> pl.DataFrame:
    """A store's table of these rows."""
    columns = {
        name: _repeating([row[name] for row in rows], dtype)
        if isinstance(dtype, pl.List)
        else pl.Series([row[name] for row in rows], dtype=dtype)
        for name, dtype in TABLE_SCHEMA.items()
    }
    return pl.DataFrame(columns)


def _repeating(values: Sequence[Hashable], dtype: pl.List) -> pl.Series:
    """A column of tuples: leads, gains and labels repeat, and a list is slow to hand to polars."""
    index: dict[Hashable, int] = {}
    places = [index.setdefault(value, len(index)) for value in values]
    lists = [
        [asdict(one) if hasattr(one, "__dataclass_fields__") else one for one in value]  # type: ignore[attr-defined]
        for value in index
    ]
    return pl.Series(lists, dtype=dtype).gather(places)
