"""Store: prepared recordings on disk, read and checked.

A store is a folder, or several, its shards, in a folder with a manifest that joins them. Then
recordings and samples are numbered through, shard after shard. In the folder are

signals/                     one flat int16 array in the zarr v3 layout: recordings one after
                             another, each lead by lead
table.parquet                one row per recording: where its samples are and all else about it
quarantine.parquet           recordings that could not be used, and why
rows_without_recording.json  rows of label tables that have no recording
manifest.json                what the store is; written last

Each file is compared with what the manifest says of it.
"""

from __future__ import annotations

import hashlib
import io
import json
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from clocs.errors import SettingError, StoreError
from clocs.files import digest, file_error
from clocs.formats.addresses import Address, parse_path_or_url
from clocs.recording import PAPER_LEADS, Recording, canonical_lead, with_derived
from clocs.store import table as tables
from clocs.store.chunks import ChunkReader, bytes_on_disk
from clocs.store.journal import progress_of
from clocs.store.manifest import MANIFEST, Manifest, damaged, rebuild_hint, shards_in
from clocs.store.remote import open_copy

SIGNALS = "signals"
TABLE = "table.parquet"
QUARANTINE = "quarantine.parquet"
UNMATCHED = "rows_without_recording.json"
_FILES = {TABLE, QUARANTINE, UNMATCHED, f"{SIGNALS}/zarr.json"}  # in every manifest

TABLE_SCHEMA = tables.table_schema()
QUARANTINE_SCHEMA = {"id": pl.String, "reason": pl.String, "detail": pl.String}


class Store:
    """Prepared recordings; open one with `open_store`.

    Attributes:
        path: The folder.
        manifest: What the store says about itself.
        shards: The stores that it consists of; none where it is in one piece.
        table: One row per recording, in the order of the source's listing, or of each shard's part
            of it (see `TABLE_SCHEMA`). That of a store in shards is read when first asked for.
    """

    def __init__(self, path: Path, manifest: Manifest, shards: Iterable[Store] = ()) -> None:
        self.path = path
        self.manifest = manifest
        self.shards = tuple(shards)
        ends = accumulate((one.manifest.samples for one in self._pieces), initial=0)
        self._starts = list(ends)[:-1]  # of each folder among all samples
        self._rows: dict[str, int] | None = None

    @cached_property
    def table(self) -> pl.DataFrame:
        found = []
        for one in self._pieces:
            check_sizes(one.path, one.manifest)
            found.append(read_table(one.path, one.manifest))
        if not self.shards:
            return found[0]
        pairs = zip(found, self._starts, strict=True)
        return pl.concat(table.with_columns(pl.col("offset") + start) for table, start in pairs)

    def __len__(self) -> int:
        return self.manifest.recordings if self.shards else self.table.height

    def __repr__(self) -> str:
        return f"Store({str(self.path)!r}, {self.manifest.dataset}, {len(self)} recordings)"

    @property
    def quarantine(self) -> pl.DataFrame:
        """Recordings that could not be used: id, reason, detail."""
        return pl.concat(read_quarantine(one.path, one.manifest) for one in self._pieces)

    @property
    def rows_without_recording(self) -> tuple[str, ...]:
        """Ids in label tables that have no recording."""
        found = (read_unmatched(one.path, one.manifest) for one in self._pieces)
        return tuple(name for names in found for name in names)

    @property
    def leads(self) -> tuple[str, ...]:
        """Every lead that some recording has, in order of appearance."""
        if self.shards:
            return self.manifest.leads
        kinds = self.table["leads"].unique(maintain_order=True).to_list()
        return tuple(dict.fromkeys(lead for leads in kinds for lead in leads))

    @property
    def bytes(self) -> int:
        """Size on disk."""
        files = sum(file.bytes for file in self.manifest.files.values())
        manifest = (self.path / MANIFEST).stat().st_size
        shards = sum(one.bytes for one in self.shards)
        return files + manifest + (shards if self.shards else self.manifest.signal_bytes)

    @property
    def _pieces(self) -> tuple[Store, ...]:
        """The folders that hold recordings."""
        return self.shards or (self,)

    def choose_leads(self, leads: Sequence[str] | None = None) -> tuple[str, ...]:
        """The leads to use: those given, else the paper's four, else all.

        Those given may be limb leads that are derived from I and II. By default, only leads that
        at least half of the recordings have count, unless there is none.
        """
        every = self.leads
        if leads is not None:
            wanted = tuple(canonical_lead(lead) for lead in leads)
            missing = [lead for lead in wanted if lead not in with_derived(every)]
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
        """Rows of the recordings that have all of these leads, recorded or derived."""
        wanted = set(leads)
        has = [wanted <= set(with_derived(own)) for own in self.table["leads"]]
        return np.flatnonzero(has)

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
        return self._read(_SampleReader(self._pieces, self._starts), row)

    def iter_signals(
        self, leads: Sequence[str] | None = None, rows: Iterable[int] | None = None
    ) -> Iterator[tuple[int, NDArray[np.int16]]]:
        """(row, its (leads, samples) digital samples) of all, or of some ascending, rows.

        Every chunk is decoded once and one chunk is held at a time. The leads are by name, in the
        order asked for, those that the recording has; all of them where None. StoreError names the
        recording whose samples differ from their digest.
        """
        reader = _SampleReader(self._pieces, self._starts)
        places = self.table.select("id", "offset", "samples", "leads", "digest")
        orders: dict[tuple[str, ...], list[int]] = {}
        for row in range(len(self)) if rows is None else rows:
            name, offset, samples, own, expected = places.row(row)
            flat = reader.read(offset, offset + samples * len(own))
            if digest(flat) != expected:
                raise self._damaged(name, offset)
            digital = flat.reshape(len(own), samples)
            if leads is not None:
                key = tuple(own)
                if key not in orders:
                    orders[key] = [key.index(lead) for lead in leads if lead in key]
                digital = digital[orders[key]]
            yield row, digital

    def iter_recordings(self, leads: Sequence[str] | None = None) -> Iterator[Recording]:
        """All recordings in order, in bounded memory; with these leads only, where given."""
        reader = _SampleReader(self._pieces, self._starts)
        for rows in self.table.iter_slices(1000):
            for row in rows.iter_rows(named=True):
                recording = self._read(reader, row)
                yield recording if leads is None else recording.select(leads)

    def verify(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Read everything and compare it with its hashes; StoreError names the first difference.

        Opening and reading check what they read in the same way; this reads all the rest, too.
        """
        for one in self._pieces:
            for name in one.manifest.files:
                read_file(one.path, one.manifest, name)
            table = self.table if one is self else read_table(one.path, one.manifest)
            if content_hash(table) != one.manifest.content_hash:
                raise damaged(one.path / TABLE, "other content", one.path)
        for row, _ in self.iter_signals():
            if progress is not None:
                progress(row + 1, len(self))

    def _read(self, reader: _SampleReader, row: dict[str, Any]) -> Recording:
        """The recording of a row, its samples compared with their digest."""
        flat = reader.read(row["offset"], row["offset"] + row["samples"] * len(row["leads"]))
        if digest(flat) != row["digest"]:
            raise self._damaged(row["id"], row["offset"])
        try:
            return tables.recording_of(row, flat)
        except (ValueError, TypeError, RecursionError) as error:
            raise no_content(self._piece(row["offset"]).path / TABLE) from error

    def _damaged(self, name: str, offset: int) -> StoreError:
        path = self._piece(offset).path
        return damaged(path, f"the samples of recording {name} have changed")

    def _piece(self, offset: int) -> Store:
        """The folder that holds this sample."""
        return self._pieces[bisect_right(self._starts, offset) - 1]


class _SampleReader:
    """Reads stretches of one folder's samples each, and holds a chunk of the last one."""

    def __init__(self, pieces: Sequence[Store], starts: Sequence[int]) -> None:
        self._pieces, self._starts = pieces, starts
        self._last: tuple[int, ChunkReader] | None = None

    def read(self, start: int, stop: int) -> NDArray[np.int16]:
        which = bisect_right(self._starts, start) - 1
        if self._last is None or self._last[0] != which:
            folder, manifest = self._pieces[which].path / SIGNALS, self._pieces[which].manifest
            made = ChunkReader(folder, samples=manifest.samples, chunk=manifest.chunk)
            self._last = (which, made)
        first = self._starts[which]
        return self._last[1].read(start - first, stop - first)


def open_store(path: Path | Address | str) -> Store:
    """Open a complete store and check its manifest, its files' sizes and its table.

    Of a store in shards, the manifests are compared here, the rest when its table is first used.
    Samples are compared with their recording's digest whenever they are read; `Store.verify` reads
    everything.

    Args:
        path: A folder made by `clocs.prepare`; or its address, such as 's3://bucket/store', which
            is copied once to the cache folder and compared with all its digests.
    """
    place = parse_path_or_url(path)
    if isinstance(place, Address):
        copy: Store = open_copy(place, open_store)
        return copy
    path = place
    if not (path / MANIFEST).is_file():
        raise StoreError(_why_not(path))
    manifest = Manifest.read(path)
    if manifest.shards:
        return Store(path, manifest, shards=_shards(path, manifest))
    opened = Store(path, manifest)
    _ = opened.table
    return opened


def _shards(path: Path, manifest: Manifest) -> Iterator[Store]:
    """The shards that a manifest names, unless one is missing or another than was joined."""
    for known in manifest.shards:
        folder = path / known.folder
        if not (folder / MANIFEST).is_file():
            left = progress_of(folder)
            what = "is missing" if left is None else f"is incomplete ({left[0]} of {left[1]})"
            raise StoreError(
                f"the shard {folder} {what}; run the same `clocs prepare` again to make it"
            )
        own = Manifest.read(folder)
        same = {
            "content": own.content_hash == known.content_hash,
            "dataset": own.dataset == manifest.dataset,
            "settings": own.settings == manifest.settings,
            "filters": own.frame.filters == manifest.frame.filters,
        }
        if not all(same.values()):
            different = ", ".join(name for name, equal in same.items() if not equal)
            raise StoreError(
                f"the shard {folder} is not the one that was joined (another {different}); "
                f"{rebuild_hint(folder)}"
            )
        yield Store(folder, own)


def _why_not(path: Path) -> str:
    if not path.exists():
        return f"{path} does not exist; make a store with `clocs prepare`"
    progress, what = progress_of(path), "recordings"
    if progress is None and (shards := shards_in(path)):
        done = sum((folder / MANIFEST).is_file() for folder, _ in shards)
        progress, what = (done, shards[0][1]), "shards"
    if progress is None:
        return (
            f"{path} is not a store (it has no {MANIFEST}); give a folder made by `clocs prepare`"
        )
    done, total = progress
    return (
        f"{path} is incomplete: {done} of {total} {what}; run the same `clocs prepare` again "
        "to finish"
    )


def as_store(store: Store | Path | Address | str) -> Store:
    """The store, opened where it is a path."""
    return store if isinstance(store, Store) else open_store(store)


def expect_different_stores(stores: Sequence[Store]) -> None:
    """Refuse a store that is given twice, also under another path or as a shard of another."""
    seen: dict[str, Store] = {}
    for store in stores:
        own = [one.manifest.content_hash for one in store.shards if one.manifest.recordings]
        contents = (store.manifest.content_hash, *own)
        twice = next((seen[content] for content in contents if content in seen), None)
        if twice is not None:
            same = "" if twice.path == store.path else f", which equals {twice.path},"
            raise SettingError(f"the store {store.path}{same} is given twice; give it once")
        seen |= dict.fromkeys(contents, store)


def content_hash(table: pl.DataFrame) -> str:
    """The sha256 of everything that the table says, digests of the samples included, in order.

    That of recordings without gaps and folds is the same in every format of stores.
    """
    total = hashlib.sha256()
    for rows in tables.without_unused(table).iter_slices(10_000):
        text = io.BytesIO()
        rows.write_ndjson(text)
        total.update(text.getbuffer())
    return total.hexdigest()


def check_sizes(path: Path, manifest: Manifest) -> None:
    """StoreError where a file is missing, or has another size than the manifest says."""
    if set(manifest.files) != _FILES:
        raise no_content(path / MANIFEST)
    try:
        for name, file in manifest.files.items():
            size = (path / name).stat().st_size
            if size != file.bytes:
                raise damaged(path / name, f"{size} bytes instead of {file.bytes}", path)
        size = bytes_on_disk(path / SIGNALS, manifest.chunks)
    except OSError as error:
        raise StoreError(
            f"{error.filename} is missing from the store; {rebuild_hint(path)}"
        ) from error
    if size != manifest.signal_bytes:
        raise damaged(path / SIGNALS, f"{size} bytes instead of {manifest.signal_bytes}", path)


def read_table(path: Path, manifest: Manifest) -> pl.DataFrame:
    """The table, every row of which can be read (see `TABLE_SCHEMA`)."""
    table = _read_parquet(path, manifest, TABLE, TABLE_SCHEMA)
    if table.height != manifest.recordings or not tables.is_sound(table):
        raise no_content(path / TABLE)
    covered = int((table["samples"] * table["leads"].list.len()).sum())
    if covered != manifest.samples:
        raise damaged(
            path, f"its table covers {covered} samples, its signals hold {manifest.samples}"
        )
    return table


def read_quarantine(path: Path, manifest: Manifest) -> pl.DataFrame:
    """Recordings that could not be used: id, reason, detail."""
    return _read_parquet(path, manifest, QUARANTINE, QUARANTINE_SCHEMA)


def read_unmatched(path: Path, manifest: Manifest) -> tuple[str, ...]:
    """Ids in label tables that have no recording."""
    content = read_file(path, manifest, UNMATCHED)
    try:
        return tuple(map(str, json.loads(content)))
    except (ValueError, TypeError, RecursionError) as error:
        raise no_content(path / UNMATCHED) from error


def read_file(folder: Path, manifest: Manifest, name: str) -> bytes:
    """The content of one of the files in the manifest, compared with its hash there."""
    path = folder / name
    try:
        content = path.read_bytes()
    except OSError as error:
        raise file_error(error, path, doing="read") from error
    if hashlib.sha256(content).hexdigest() != manifest.files[name].sha256:
        raise damaged(path, "it differs from its hash", folder)
    return content


def _read_parquet(folder: Path, manifest: Manifest, name: str, schema: Any) -> pl.DataFrame:
    content = read_file(folder, manifest, name)
    try:
        table = pl.read_parquet(content)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise no_content(folder / name) from error
    if dict(table.schema) != schema:
        raise no_content(folder / name)
    return table


def no_content(path: Path) -> StoreError:
    """Of a file that is as its manifest says, but not as `prepare` writes it."""
    return StoreError(f"{path} does not hold what it should; {rebuild_hint(path.parent)}")
