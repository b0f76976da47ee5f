"""Tables that are made once of a store and kept beside it: measurements, predictions.

    STORE/kept/NAME-KEY.parquet

The key stands for everything that a table depends on. Where the store cannot be written to, the
cache folder takes its place. Deleting the folder is safe at any time.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path

import polars as pl

from clocs.files import cache_folder, replacing, write_beside
from clocs.sealed import is_sealed, seal_parquet
from clocs.store.manifest import KEPT
from clocs.store.store import Store


class KeptTable:
    """One table of a store, perhaps not made yet.

    Args:
        store: What it is made of.
        name: Of the kind of table.
        about: What it depends on besides the store's content.
    """

    def __init__(self, store: Store, name: str, *about: str) -> None:
        whole = "\0".join((store.manifest.content_hash, *about))
        key = hashlib.blake2b(whole.encode(), digest_size=12).hexdigest()
        self._folders = [store.path / KEPT, cache_folder() / KEPT]
        self._file = f"{name}-{key}.parquet"

    def read(self) -> pl.DataFrame | None:
        """As it was written; None where there is none, or a damaged one."""
        for folder in self._folders:
            with suppress(OSError), (folder / self._file).open("rb") as file:
                if is_sealed(file):
                    return pl.read_parquet(folder / self._file)
        return None

    def write(self, table: pl.DataFrame) -> None:
        """Keep it, if there is a place for it."""

        def write(folder: Path) -> None:
            with replacing(folder / self._file) as temporary:
                table.write_parquet(temporary)
                seal_parquet(temporary)

        write_beside(self._folders, write)
