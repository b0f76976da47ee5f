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

A store at an address is copied once, to the cache folder: training reads all of it, several times,
in chunks that are whole files. The copy is named by the hash of the manifest: a store that has
changed is another copy.
"""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import cached_property
from itertools import accumulate, islice
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from clocs import files
from clocs.datasets.base import Quarantined
from clocs.errors import BusyError, SettingError, StoreError, warn
from clocs.files import MAX_TABLE_BYTES
from clocs.formats import addresses
from clocs.formats.addresses import Address, MissingError, parse_path_or_url
from clocs.recording import PAPER_LEADS, Recording, canonical_lead, with_derived
from clocs.store import chunks
from clocs.store import table as tables
from clocs.store.journal import parquet, progress_of
from clocs.store.manifest import MANIFEST, FileHash, Manifest, damaged, rebuild_hint, shards_in

SIGNALS = "signals"
TABLE = "table.parquet"
QUARANTINE = "quarantine.parquet"
UNMATCHED = "rows_without_recording.json"
_BATCH = 1024  # files at an address whose names are in memory
_WAIT_S = 0.2
_FILES = (TABLE, QUARANTINE, UNMATCHED, f"{SIGNALS}/zarr.json")  # in every manifest

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
        if not self.shards:
            return self._read_table()
        pairs = zip(self.shards, self._starts, strict=True)
        return pl.concat(one.table.with_columns(pl.col("offset") + at) for one, at in pairs)

    def __len__(self) -> int:
        return self.manifest.recordings if self.shards else self.table.height

    def __repr__(self) -> str:
        return f"Store({str(self.path)!r}, {self.manifest.dataset}, {len(self)} recordings)"

    @property
    def quarantine(self) -> pl.DataFrame:
        """Recordings that could not be used: id, reason, detail."""
        return pl.concat(one._parquet(QUARANTINE, QUARANTINE_SCHEMA) for one in self._pieces)

    @property
    def rows_without_recording(self) -> tuple[str, ...]:
        """IDs in label tables that have no recording."""
        found: list[str] = []
        for one in self._pieces:
            try:
                found += map(str, json.loads(_read(one, UNMATCHED)))
            except (ValueError, TypeError, RecursionError) as error:
                raise no_content(one.path / UNMATCHED) from error
        return tuple(found)

    @property
    def leads(self) -> tuple[str, ...]:
        """Every lead that some recording has, in order of appearance."""
        if self.shards:
            return self.manifest.leads
        return leads_in_order(self.table["leads"])

    @property
    def bytes(self) -> int:
        """Size on disk."""
        own = sum(file.bytes for file in self.manifest.files.values())
        manifest = (self.path / MANIFEST).stat().st_size
        shards = sum(one.bytes for one in self.shards)
        return own + manifest + (shards if self.shards else self.manifest.signal_bytes)

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

    def recording(self, which: int | str) -> Recording:
        """One recording, by row or by id, exactly as it was read from its source."""
        if isinstance(which, str):
            if self._rows is None:
                self._rows = {name: row for row, name in enumerate(self.table["id"])}
            if which not in self._rows:
                raise SettingError(f"{self.path} holds no recording {which!r}")
            which = self._rows[which]
        return self._recording(self._reader(), self.table.row(which, named=True))

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
            facts = places.row(row, named=True)
            digital = self._samples(reader, facts).reshape(len(facts["leads"]), -1)
            if leads is not None:
                key = tuple(facts["leads"])
                if key not in orders:
                    orders[key] = [key.index(lead) for lead in leads if lead in key]
                digital = digital[orders[key]]
            yield row, digital

    def iter_recordings(self, rows: NDArray[np.int64] | None = None) -> Iterator[Recording]:
        """All recordings in order, or those of some ascending rows, in bounded memory."""
        reader = self._reader()
        for some in (self.table if rows is None else self.table[rows]).iter_slices(1000):
            for row in some.iter_rows(named=True):
                yield self._recording(reader, row)

    def verify(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Read everything and compare it with its hashes; StoreError names the first difference.

        Opening and reading check what they read in the same way; this reads all the rest, too.
        """
        for one in self._pieces:
            for name in one.manifest.files:
                _read(one, name)
            if content_hash(one.table) != one.manifest.content_hash:
                raise damaged(one.path / TABLE, "other content", one.path)
        for row, _ in self.iter_signals():
            if progress is not None:
                progress(row + 1, len(self))

    def _reader(self) -> chunks.SampleReader:
        pieces = zip(self._starts, self._pieces, strict=True)
        return chunks.SampleReader(
            [(at, one.path / SIGNALS, one.manifest.chunk) for at, one in pieces]
        )

    def _samples(self, reader: chunks.SampleReader, row: dict[str, Any]) -> NDArray[np.int16]:
        """The samples of a row's recording, compared with their digest."""
        flat = reader.read(row["offset"], row["offset"] + row["samples"] * len(row["leads"]))
        if files.digest(flat) != row["digest"]:
            path = self._folder(row["offset"])
            raise damaged(path, f"the samples of recording {row['id']} have changed")
        return flat

    def _recording(self, reader: chunks.SampleReader, row: dict[str, Any]) -> Recording:
        flat = self._samples(reader, row)
        try:
            return tables.recording_of(row, flat)
        except (ValueError, TypeError, RecursionError) as error:
            raise no_content(self._folder(row["offset"]) / TABLE) from error

    def _folder(self, offset: int) -> Path:
        """The folder that holds this sample."""
        return self._pieces[bisect_right(self._starts, offset) - 1].path

    def _read_table(self) -> pl.DataFrame:
        """The table of a folder whose files have the sizes that the manifest says."""
        path, manifest = self.path, self.manifest
        if set(manifest.files) != set(_FILES):
            raise no_content(path / MANIFEST)
        sizes = {name: file.bytes for name, file in manifest.files.items()}
        try:
            found = {name: (path / name).stat().st_size for name in sizes}
            found[SIGNALS] = chunks.bytes_on_disk(path / SIGNALS, manifest.chunks)
        except OSError as error:
            raise StoreError(
                f"{error.filename} is missing from the store; {rebuild_hint(path)}"
            ) from error
        for name, size in {**sizes, SIGNALS: manifest.signal_bytes}.items():
            if found[name] != size:
                raise damaged(path / name, f"{found[name]} bytes instead of {size}", path)
        table = self._parquet(TABLE, TABLE_SCHEMA)
        if table.height != manifest.recordings or not tables.is_sound(table):
            raise no_content(path / TABLE)
        covered = int((table["samples"] * table["leads"].list.len()).sum())
        if covered != manifest.samples:
            raise damaged(
                path, f"its table covers {covered} samples, its signals hold {manifest.samples}"
            )
        return table

    def _parquet(self, name: str, schema: Any) -> pl.DataFrame:
        content = _read(self, name)
        try:
            table = pl.read_parquet(content)
        except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
            raise no_content(self.path / name) from error
        if dict(table.schema) != schema:
            raise no_content(self.path / name)
        return table


def _read(store: Store, name: str) -> bytes:
    """The content of one of the files in the manifest, compared with its hash there."""
    path = store.path / name
    try:
        content = path.read_bytes()
    except OSError as error:
        raise files.file_error(error, path, doing="read") from error
    if hashlib.sha256(content).hexdigest() != store.manifest.files[name].sha256:
        raise damaged(path, "it differs from its hash", store.path)
    return content


def leads_in_order(column: pl.Series) -> tuple[str, ...]:
    """Every lead of a table's column, in order of appearance."""
    kinds = column.unique(maintain_order=True).to_list()
    return tuple(dict.fromkeys(lead for leads in kinds for lead in leads))


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
        return _open_copy(place)
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
        if own.content_hash != known.content_hash:
            raise StoreError(
                f"the shard {folder} is not the one that was joined; {rebuild_hint(folder)}"
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


def write_files(
    folder: Path,
    table: pl.DataFrame,
    quarantined: Iterable[Quarantined],
    unmatched: Sequence[str],
    samples: int,
) -> dict[str, FileHash]:
    """Write all files of a store but its chunks and its manifest; their hashes by name."""
    rows = pl.DataFrame([asdict(one) for one in quarantined], schema=QUARANTINE_SCHEMA)
    files.write_atomic(folder / TABLE, parquet(table))
    files.write_atomic(folder / QUARANTINE, parquet(rows))
    names = json.dumps(unmatched, ensure_ascii=False)
    files.write_atomic(folder / UNMATCHED, names.encode())
    chunks.write_header(folder / SIGNALS, samples=samples, chunk=chunks.CHUNK_SAMPLES)
    return {name: FileHash.from_file(folder / name) for name in _FILES}


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


def no_content(path: Path) -> StoreError:
    """Of a file that is as its manifest says, but not as `prepare` writes it."""
    return StoreError(f"{path} does not hold what it should; {rebuild_hint(path.parent)}")


def _open_copy(address: Address) -> Store:
    """A copy of the store at an address, made where there is none yet, or a damaged one.

    Another process that asks for the same one waits for it.
    """
    folder = _local_copy(address)
    try:
        return open_store(folder)
    except StoreError:  # damaged since it was made
        shutil.rmtree(folder)
        return open_store(_local_copy(address))


def _local_copy(address: Address) -> Path:
    content = _manifest_at(address)
    files.private_cache(files.cache_folder())
    files.private_folder(files.cache_folder() / "stores")
    folder = files.cache_folder() / "stores" / hashlib.sha256(content).hexdigest()[:32]
    work = folder.with_name(f"{folder.name}.new")
    while not (folder / MANIFEST).is_file():
        try:
            with files.locked(work):
                if not (folder / MANIFEST).is_file():  # not made by another process since
                    _copy(address, content, work / "store")
                    shutil.rmtree(folder, ignore_errors=True)
                    (work / "store").rename(folder)
        except BusyError:
            time.sleep(_WAIT_S)
    with suppress(OSError):
        work.rmdir()
    return folder


def _manifest_at(address: Address) -> bytes:
    try:
        return addresses.remote_file(address / MANIFEST).read(MAX_TABLE_BYTES)
    except MissingError:
        raise StoreError(
            f"{address} is no complete store (it has no {MANIFEST}); make one with `clocs prepare`"
        ) from None


def _copy(address: Address, content: bytes, folder: Path) -> None:
    files.private_folder(folder)
    files.write_atomic(folder / MANIFEST, content)
    try:
        shards = [shard.folder for shard in Manifest.read(folder).shards]
        for shard in shards:
            _fetch(address, folder, f"{shard}/{MANIFEST}")
        pieces = {name: Manifest.read(folder / name) for name in shards or [""]}
        size = sum(
            one.signal_bytes + sum(file.bytes for file in one.files.values())
            for one in pieces.values()
        )
        notice = f"{address} ({size / 1e6:,.1f} MB) is copied to {folder.parents[1]}, once"
        warn(notice)
        names = (name for piece in pieces.items() for name in _file_names(folder, *piece))
        while batch := list(islice(names, _BATCH)):
            addresses.each(batch, lambda name: _fetch(address, folder, name))
        open_store(folder).verify()
    except StoreError as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise StoreError(str(error).replace(str(folder), str(address))) from None
    if _manifest_at(address) != content:
        raise StoreError(f"{address} has changed while it was copied; try again")


def _file_names(folder: Path, shard: str, manifest: Manifest) -> Iterator[str]:
    """Every file of a store or of its shard but the manifest, by what that says."""
    inner = f"{shard}/" if shard else ""
    paths = map(PurePosixPath, manifest.files)
    if any(".." in path.parts or path.is_absolute() for path in paths):
        where = folder / inner / MANIFEST
        raise StoreError(f"{where} names files outside of the store; do not use it")
    yield from (inner + name for name in manifest.files)
    yield from (f"{inner}{SIGNALS}/c/{number}" for number in range(manifest.chunks))


def _fetch(address: Address, folder: Path, name: str) -> None:
    path = folder / name
    if path.is_file():  # by an attempt that was interrupted
        return
    with files.writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.partial")
        try:
            with addresses.translate_fsspec_errors(address / name):
                system, remote = (address / name).system()
                system.get_file(remote, str(partial))
        except MissingError:
            raise StoreError(f"{path} is missing from the store; {rebuild_hint(folder)}") from None
        partial.replace(path)
