"""Assembling a store from what workers read; see `prepare`."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import polars as pl

from clocs._version import __version__
from clocs.datasets.base import Dataset, Entry, Listing, Quarantined
from clocs.errors import StoreError, printable
from clocs.files import file_error, partial_path, write_atomic
from clocs.locks import LOCK, locked
from clocs.store import chunks
from clocs.store.journal import PROGRESS, Job, Journal, parquet, progress_of, remove_journal
from clocs.store.manifest import FORMAT, MANIFEST, FileHash, Manifest
from clocs.store.store import (
    QUARANTINE,
    QUARANTINE_SCHEMA,
    SIGNALS,
    TABLE,
    UNMATCHED,
    Store,
    content_hash,
    open_store,
)
from clocs.store.workers import Workers, read_all
from clocs.store.writer import Writer


def assemble(
    dataset: Dataset,
    out: Path,
    workers: Workers,
    progress: Callable[[int, int], None] | None,
) -> Store:
    """Put together what the workers read, or return the store that is there already."""
    _refuse_foreign(out)
    listing = dataset.list()
    try:
        if (out / MANIFEST).is_file():
            return _already(dataset, listing, out)
        with locked(out):
            if (out / MANIFEST).is_file():  # made by another process since
                return _already(dataset, listing, out)
            _write(dataset, listing, out, workers, progress)
    except OSError as error:
        raise file_error(error, out, doing="written") from error
    return open_store(out)


def _refuse_foreign(out: Path) -> None:
    if not out.exists() or (out / MANIFEST).is_file():
        return
    # A run killed while writing its very first file leaves that file's beginning.
    of_ours = {LOCK, partial_path(out / PROGRESS).name}
    if not out.is_dir() or (
        progress_of(out) is None and any(path.name not in of_ours for path in out.iterdir())
    ):
        raise StoreError(f"{out} exists and is not a store; give another folder as `out`")


def _already(dataset: Dataset, listing: Listing, out: Path) -> Store:
    store = open_store(out)
    made = store.manifest
    same = {
        "dataset": made.dataset == dataset.name,
        "settings": dict(made.settings) == dict(dataset.settings),
        "source": made.fingerprint == listing.fingerprint,
    }
    if not all(same.values()):
        different = ", ".join(name for name, equal in same.items() if not equal)
        raise StoreError(
            f"{out} is already a complete store of something else (another {different}); delete it "
            "or give another folder as `out`"
        )
    remove_journal(out)  # left by an interruption after the very last step
    return store


def _write(
    dataset: Dataset,
    listing: Listing,
    out: Path,
    workers: Workers,
    progress: Callable[[int, int], None] | None,
) -> None:
    entries, repeated = _without_repeats(listing.entries)
    job = Job(
        format=FORMAT,
        dataset=dataset.name,
        settings=dict(dataset.settings),
        fingerprint=listing.fingerprint,
        entries=len(entries),
        chunk=chunks.CHUNK_SAMPLES,
    )
    journal = Journal(out, job)
    (out / SIGNALS / "c").mkdir(parents=True, exist_ok=True)
    todo = entries[journal.done.entries :]
    with Writer(out / SIGNALS, journal) as writer:
        done = journal.done.entries
        if progress is not None:
            progress(done, len(entries))
        for batch in read_all(workers, todo):
            for result in batch:
                writer.add(result)
            done += len(batch)
            if progress is not None:
                progress(done, len(entries))
        writer.finish()
    _complete(dataset, listing, out, journal, [*listing.quarantined, *repeated])


def _without_repeats(entries: Sequence[Entry]) -> tuple[list[Entry], list[Quarantined]]:
    seen: dict[str, Entry] = {}
    repeated: list[Quarantined] = []
    for entry in entries:
        first = seen.setdefault(entry.id, entry)
        if first is not entry:
            repeated.append(
                Quarantined(entry.id, "duplicate id", f"{entry.path} repeats {first.path}")
            )
    return list(seen.values()), repeated


def _complete(
    dataset: Dataset,
    listing: Listing,
    out: Path,
    journal: Journal,
    quarantined: list[Quarantined],
) -> None:
    """Turn a journal whose every entry is done into a store."""
    table = journal.rows()
    quarantined += journal.quarantined()
    if table.is_empty():
        _remove(out)
        reasons = Counter(one.reason for one in quarantined).most_common()
        counts = ", ".join(f"{reason}: {count}" for reason, count in reasons) or "it is empty"
        raise StoreError(
            f"no recording of {dataset.name} is usable ({counts}); check that the source is what "
            "it should be"
        )
    samples = journal.done.samples
    rows = [asdict(one) for one in quarantined]
    contents: dict[str, bytes | memoryview] = {
        TABLE: parquet(table),
        QUARANTINE: parquet(pl.DataFrame(rows, schema=QUARANTINE_SCHEMA)),
        UNMATCHED: json.dumps(listing.rows_without_recording, ensure_ascii=False).encode(),
    }
    for name, content in contents.items():
        write_atomic(out / name, content)
    chunks.write_header(out / SIGNALS, samples=samples, chunk=chunks.CHUNK_SAMPLES)
    names = (*contents, f"{SIGNALS}/zarr.json")
    Manifest(
        dataset=dataset.name,
        source=_source_name(dataset),
        settings=dict(dataset.settings),
        fingerprint=listing.fingerprint,
        labels=dataset.labels,
        multilabel=dataset.multilabel,
        frame=dataset.frame,
        segment_frame=dataset.segment_frame,
        resample=dataset.resample,
        batch_size=dataset.batch_size,
        recordings=table.height,
        patients=table["patient"].n_unique(),
        quarantined=len(quarantined),
        rows_without_recording=len(listing.rows_without_recording),
        samples=samples,
        chunk=chunks.CHUNK_SAMPLES,
        signal_bytes=chunks.bytes_on_disk(out / SIGNALS, journal.done.chunks),
        files={name: FileHash.of(out / name) for name in names},
        content_hash=content_hash(table),
        clocs=__version__,
    ).write(out)
    remove_journal(out)


def _source_name(dataset: Dataset) -> str:
    """What was read, without its place on this machine; empty for datasets without a source."""
    source = getattr(dataset, "source", None)
    path = getattr(source, "path", source)
    return printable(Path(path).name) if isinstance(path, str | Path) else ""


def _remove(out: Path) -> None:
    """Take back an unfinished store, so that the folder is free for another attempt."""
    for file in (out / SIGNALS / "c").iterdir():
        file.unlink()
    (out / SIGNALS / "c").rmdir()
    (out / SIGNALS).rmdir()
    remove_journal(out)
    (out / LOCK).unlink(missing_ok=True)
    out.rmdir()
