"""The files of one store's folder, each compared with what the manifest says of it.

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
from pathlib import Path
from typing import Any

import polars as pl

from clocs.errors import StoreError
from clocs.files import file_error
from clocs.store.chunks import bytes_on_disk
from clocs.store.columns import (
    SINCE_FORMAT_3,
    is_sound,
    table_schema,
    with_every_column,
    without_unused,
)
from clocs.store.manifest import MANIFEST, Manifest, again

SIGNALS = "signals"
TABLE = "table.parquet"
QUARANTINE = "quarantine.parquet"
UNMATCHED = "rows_without_recording.json"
_FILES = {TABLE, QUARANTINE, UNMATCHED, f"{SIGNALS}/zarr.json"}  # in every manifest

TABLE_SCHEMA = table_schema()
QUARANTINE_SCHEMA = {"id": pl.String, "reason": pl.String, "detail": pl.String}


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


def check_sizes(path: Path, manifest: Manifest) -> None:
    """StoreError where a file is missing, or has another size than the manifest says."""
    if set(manifest.files) != _FILES:
        raise no_content(path / MANIFEST)
    for name, file in manifest.files.items():
        _expect_size(path / name, file.bytes, path)
    try:
        size = bytes_on_disk(path / SIGNALS, manifest.chunks)
    except OSError as error:
        raise StoreError(f"{error.filename} is missing from the store; {again(path)}") from error
    if size != manifest.signal_bytes:
        raise StoreError(
            f"{path / SIGNALS} is damaged ({size} bytes instead of {manifest.signal_bytes}); "
            f"{again(path)}"
        )


def read_table(path: Path, manifest: Manifest) -> pl.DataFrame:
    """The table, every row of which can be read (see `TABLE_SCHEMA`)."""
    old = manifest.format < 3
    kinds = {n: kind for n, kind in TABLE_SCHEMA.items() if not old or n not in SINCE_FORMAT_3}
    table = _read_parquet(path, manifest, TABLE, kinds)
    table = with_every_column(table) if old else table
    if table.height != manifest.recordings or not is_sound(table):
        raise no_content(path / TABLE)
    covered = int((table["samples"] * table["leads"].list.len()).sum())
    if covered != manifest.samples:
        raise StoreError(
            f"{path} is damaged (its table covers {covered} samples, its signals hold "
            f"{manifest.samples}); {again(path)}"
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


def _expect_size(path: Path, expected: int, folder: Path) -> None:
    try:
        size = path.stat().st_size
    except OSError as error:
        raise StoreError(f"{path} is missing from the store; {again(folder)}") from error
    if size != expected:
        raise StoreError(f"{path} is damaged ({size} bytes instead of {expected}); {again(folder)}")


def read_file(folder: Path, manifest: Manifest, name: str) -> bytes:
    """The content of one of the files in the manifest, compared with its hash there."""
    path = folder / name
    try:
        content = path.read_bytes()
    except OSError as error:
        raise file_error(error, path, doing="read") from error
    if hashlib.sha256(content).hexdigest() != manifest.files[name].sha256:
        raise StoreError(f"{path} is damaged (it differs from its hash); {again(folder)}")
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
    return StoreError(f"{path} does not hold what it should; {again(path.parent)}")
