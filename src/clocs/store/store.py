"""Store: prepared recordings on disk, read and checked.

A store is a folder:

    signals/                     one flat int16 array in the zarr v3 layout: recordings one after
                                 another, each lead by lead
    table.parquet                one row per recording: where its samples are and all else about it
    quarantine.parquet           recordings that could not be used, and why
    rows_without_recording.json  rows of label tables that have no recording
    manifest.json                what the store is; written last
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from clocs.errors import SettingError, StoreError
from clocs.files import digest, file_error
from clocs.recording import PAPER_LEADS, Recording, canonical_lead
from clocs.store.chunks import ChunkReader, bytes_on_disk
from clocs.store.columns import (
    SINCE_FORMAT_3,
    is_sound,
    recording_of,
    table_schema,
    with_every_column,
    without_unused,
)
from clocs.store.journal import progress_of
from clocs.store.manifest import MANIFEST, Manifest

SIGNALS = "signals"
TABLE = "table.parquet"
QUARANTINE = "quarantine.parquet"
UNMATCHED = "rows_without_recording.json"
_FILES = {TABLE, QUARANTINE, UNMATCHED, f"{SIGNALS}/zarr.json"}  # in every manifest

TABLE_SCHEMA = table_schema()
QUARANTINE_SCHEMA = {"id": pl.String, "reason": pl.String, "detail": pl.String}

_AGAIN = "delete the store and run `clocs prepare` again"


def content_hash(table: pl.DataFrame) -> str:
    """The sha256 of everything that the table says, digests of the samples included, in order.

    That of recordings without gaps and folds is the same in every format of stores.
    """
    total = hashlib.sha256()
    for rows in without_unused(table).iter_slices(10_000):
        text = io.BytesIO()
        rows.write_ndjson(text)
        total.update(text.getbuffer())
    return total.hexdigest()


class Store:
    """Prepared recordings; open one with `open_store`.

    Attributes:
        path: The folder.
        manifest: What the store says about itself.
        table: One row per recording, in the order of the source's listing (see `TABLE_SCHEMA`).
    """

    def __init__(self, path: Path, manifest: Manifest, table: pl.DataFrame) -> None:
        self.path = path
        self.manifest = manifest
        self.table = table
        self._rows: dict[str, int] | None = None

    def __len__(self) -> int:
        return self.table.height

    def __repr__(self) -> str:
        return f"Store({str(self.path)!r}, {self.manifest.dataset}, {len(self)} recordings)"

    @property
    def quarantine(self) -> pl.DataFrame:
        """Recordings that could not be used: id, reason, detail."""
        return _read_parquet(self.path, self.manifest, QUARANTINE, QUARANTINE_SCHEMA)

    @property
    def rows_without_recording(self) -> tuple[str, ...]:
        """Ids in label tables that have no recording."""
        content = _read_file(self.path, self.manifest, UNMATCHED)
        try:
            return tuple(map(str, json.loads(content)))
        except (ValueError, TypeError, RecursionError) as error:
            raise _no_content(self.path / UNMATCHED) from error

    @property
    def leads(self) -> tuple[str, ...]:
        """Every lead that some recording has, in order of appearance."""
        kinds = self.table["leads"].unique(maintain_order=True).to_list()
        return tuple(dict.fromkeys(lead for leads in kinds for lead in leads))

    @property
    def bytes(self) -> int:
        """Size on disk."""
        files = sum(file.bytes for file in self.manifest.files.values())
        manifest = (self.path / MANIFEST).stat().st_size
        return files + manifest + self.manifest.signal_bytes

    def choose_leads(self, leads: Sequence[str] | None = None) -> tuple[str, ...]:
        """The leads to use: those given, else the paper's four, else all.

        By default, only leads that at least half of the recordings have count, unless there is
        none.
        """
        every = self.leads
        if leads is not None:
            wanted = tuple(canonical_lead(lead) for lead in leads)
            missing = [lead for lead in wanted if lead not in every]
            if missing or not wanted:
                raise SettingError(
                    f"{self.path} has no lead {', '.join(missing) or 'without a name'}; "
                    f"choose from {', '.join(every)}"
                )
            return wanted
        having = dict(self.table["leads"].explode().value_counts().iter_rows())
        common = tuple(lead for lead in every if 2 * having[lead] >= len(self))
        if all(lead in common for lead in PAPER_LEADS):
            return PAPER_LEADS
        return common or every

    def rows_with(self, leads: Sequence[str]) -> NDArray[np.int64]:
        """Rows of the recordings that have all of these leads."""
        has = pl.all_horizontal(pl.col("leads").list.contains(lead) for lead in leads)
        mask = self.table.select(has.alias("has"))["has"].to_numpy()
        return np.flatnonzero(mask)

    def signals(self, start: int, stop: int) -> NDArray[np.int16]:
        """(stop - start,) samples of the flat array; their recordings are checked as a whole."""
        if not 0 <= start <= stop <= self.manifest.samples:
            raise IndexError(f"samples {start} to {stop} of {self.manifest.samples}")
        offsets = self.table["offset"].to_numpy()
        first = int(np.searchsorted(offsets, start, "right")) - 1
        rows = range(first, max(first + 1, int(np.searchsorted(offsets, stop))))
        flat = np.concatenate([digital.ravel() for _, digital in self.iter_signals(rows=rows)])
        return flat[start - offsets[first] : stop - offsets[first]]

    def recording(self, which: int | str) -> Recording:
        """One recording, by row or by id, exactly as it was read from its source."""
        if isinstance(which, str):
            if self._rows is None:
                self._rows = {name: row for row, name in enumerate(self.table["id"])}
            if which not in self._rows:
                raise SettingError(f"{self.path} holds no recording {which!r}")
            which = self._rows[which]
        row = self.table.row(which, named=True)
        return self._read(self._reader(), row)

    def iter_signals(
        self, leads: Sequence[str] | None = None, rows: Iterable[int] | None = None
    ) -> Iterator[tuple[int, NDArray[np.int16]]]:
        """(row, its (leads, samples) digital samples) of all, or of some ascending, rows.

        Every chunk is decoded once and one chunk is held at a time. The leads are by name, in the
        order asked for, those that the recording has; all of them where None. StoreError names the
        recording whose samples differ from their digest.
        """
        reader = self._reader()
        places = self.table.select("id", "offset", "samples", "leads", "digest")
        orders: dict[tuple[str, ...], list[int]] = {}
        for row in range(len(self)) if rows is None else rows:
            name, offset, samples, own, expected = places.row(row)
            flat = reader.read(offset, offset + samples * len(own))
            if digest(flat) != expected:
                raise self._damaged(name)
            digital = flat.reshape(len(own), samples)
            if leads is not None:
                key = tuple(own)
                if key not in orders:
                    orders[key] = [key.index(lead) for lead in leads if lead in key]
                digital = digital[orders[key]]
            yield row, digital

    def iter_recordings(self, leads: Sequence[str] | None = None) -> Iterator[Recording]:
        """All recordings in order, in bounded memory; with these leads only, where given."""
        reader = self._reader()
        for rows in self.table.iter_slices(1000):
            for row in rows.iter_rows(named=True):
                recording = self._read(reader, row)
                yield recording if leads is None else recording.select(leads)

    def verify(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Read everything and compare it with its hashes; StoreError names the first difference.

        Opening and reading check what they read in the same way; this reads all the rest, too.
        """
        for name in self.manifest.files:
            _read_file(self.path, self.manifest, name)
        if content_hash(self.table) != self.manifest.content_hash:
            raise StoreError(f"{self.path / TABLE} is damaged (other content); {_AGAIN}")
        for row, _ in self.iter_signals():
            if progress is not None:
                progress(row + 1, len(self))

    def _read(self, reader: ChunkReader, row: dict[str, Any]) -> Recording:
        """The recording of a row, its samples compared with their digest."""
        flat = reader.read(row["offset"], row["offset"] + row["samples"] * len(row["leads"]))
        if digest(flat) != row["digest"]:
            raise self._damaged(row["id"])
        try:
            return recording_of(row, flat)
        except (ValueError, TypeError, RecursionError) as error:
            raise _no_content(self.path / TABLE) from error

    def _damaged(self, name: str) -> StoreError:
        return StoreError(
            f"{self.path} is damaged (the samples of recording {name} have changed); {_AGAIN}"
        )

    def _reader(self) -> ChunkReader:
        manifest = self.manifest
        return ChunkReader(self.path / SIGNALS, samples=manifest.samples, chunk=manifest.chunk)


def open_store(path: Path | str) -> Store:
    """Open a complete store and check its manifest, its files' sizes and its table.

    Samples are compared with their recording's digest whenever they are read; `Store.verify` reads
    everything.

    Args:
        path: A folder made by `clocs.prepare`.
    """
    path = Path(path)
    if not (path / MANIFEST).is_file():
        raise StoreError(_why_not(path))
    manifest = Manifest.read(path)
    if set(manifest.files) != _FILES:
        raise _no_content(path / MANIFEST)
    for name, file in manifest.files.items():
        _expect_size(path / name, file.bytes)
    try:
        size = bytes_on_disk(path / SIGNALS, manifest.chunks)
    except OSError as error:
        raise StoreError(f"{error.filename} is missing from the store; {_AGAIN}") from error
    if size != manifest.signal_bytes:
        raise StoreError(
            f"{path / SIGNALS} is damaged ({size} bytes instead of {manifest.signal_bytes}); "
            f"{_AGAIN}"
        )
    old = manifest.format < 3
    kinds = {n: kind for n, kind in TABLE_SCHEMA.items() if not old or n not in SINCE_FORMAT_3}
    table = _read_parquet(path, manifest, TABLE, kinds)
    table = with_every_column(table) if old else table
    if table.height != manifest.recordings or not is_sound(table):
        raise _no_content(path / TABLE)
    covered = int((table["samples"] * table["leads"].list.len()).sum())
    if covered != manifest.samples:
        raise StoreError(
            f"{path} is damaged (its table covers {covered} samples, its signals hold "
            f"{manifest.samples}); {_AGAIN}"
        )
    return Store(path, manifest, table)


def _why_not(path: Path) -> str:
    if not path.exists():
        return f"{path} does not exist; make a store with `clocs prepare`"
    progress = progress_of(path)
    if progress is None:
        return (
            f"{path} is not a store (it has no {MANIFEST}); give a folder made by `clocs prepare`"
        )
    done, total = progress
    return (
        f"{path} is incomplete: {done} of {total} recordings; run the same `clocs prepare` again "
        "to finish"
    )


def _expect_size(path: Path, expected: int) -> None:
    try:
        size = path.stat().st_size
    except OSError as error:
        raise StoreError(f"{path} is missing from the store; {_AGAIN}") from error
    if size != expected:
        raise StoreError(f"{path} is damaged ({size} bytes instead of {expected}); {_AGAIN}")


def _read_file(folder: Path, manifest: Manifest, name: str) -> bytes:
    """The content of one of the files in the manifest, compared with its hash there."""
    path = folder / name
    try:
        content = path.read_bytes()
    except OSError as error:
        raise file_error(error, path, doing="read") from error
    if hashlib.sha256(content).hexdigest() != manifest.files[name].sha256:
        raise StoreError(f"{path} is damaged (it differs from its hash); {_AGAIN}")
    return content


def _read_parquet(folder: Path, manifest: Manifest, name: str, schema: Any) -> pl.DataFrame:
    content = _read_file(folder, manifest, name)
    try:
        table = pl.read_parquet(content)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise _no_content(folder / name) from error
    if dict(table.schema) != schema:
        raise _no_content(folder / name)
    return table


def _no_content(path: Path) -> StoreError:
    """Of a file that is as its manifest says, but not as `prepare` writes it."""
    return StoreError(f"{path} does not hold what it should; {_AGAIN}")


def as_store(store: Store | Path | str) -> Store:
    """The store, opened where it is a path."""
    return store if isinstance(store, Store) else open_store(store)


def expect_different_stores(stores: Sequence[Store]) -> None:
    """Refuse a store that is given twice, also under another path."""
    seen: dict[str, Store] = {}
    for store in stores:
        first = seen.get(store.manifest.content_hash)
        if first is not None:
            same = "" if first.path == store.path else f", which equals {first.path},"
            raise SettingError(f"the store {store.path}{same} is given twice; give it once")
        seen[store.manifest.content_hash] = store
