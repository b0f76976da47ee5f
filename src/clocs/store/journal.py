"""The journal of an unfinished store: which entries are done.

While a store is being made, `progress.json` says what is being made, and `parts/` holds numbered
batches of table rows, each in a .parquet and a .json. A batch counts once its .json is there, which
is written after its rows and after the samples they point to, and holds the hashes of both files.
A damaged batch and all after it do not count: they are read from the source again. All vanish when
it is complete.
"""

from __future__ import annotations

import hashlib
import io
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import polars as pl

from clocs.datasets.base import Quarantined
from clocs.errors import StoreError
from clocs.files import write_atomic
from clocs.sealed import own_hash

PROGRESS = "progress.json"
PARTS = "parts"


@dataclass(frozen=True, slots=True)
class Done:
    """How far the batches in `parts/` reach."""

    parts: int = 0
    entries: int = 0  # of the listing
    samples: int = 0  # of the signals
    chunks: int = 0  # safely on disk; may reach beyond `samples`, into the next recording


class Journal:
    """The record of what is done of one unfinished store."""

    def __init__(self, folder: Path, job: Mapping[str, Any]) -> None:
        """Start a journal, or continue the one that is there where it is of the same job.

        Args:
            folder: Of the store.
            job: What is being made: two runs may share work only where all of this is equal.

        Raises:
            StoreError: The journal in the folder is of another job.
        """
        self._folder = folder
        known = _read_job(folder)
        if known is None:
            write_atomic(folder / PROGRESS, json.dumps(job, indent=2).encode())
        elif known != job:
            different = [name for name in job if job[name] != known.get(name)]
            raise StoreError(
                f"{folder} holds an unfinished store of something else (another "
                f"{', '.join(different)}); delete it or give another folder as `out`"
            )
        (folder / PARTS).mkdir(exist_ok=True)
        self.done = Done()
        while part := _read_part(folder, self.done.parts):
            self.done = part[0]

    def commit(self, rows: pl.DataFrame, quarantined: Sequence[Quarantined], done: Done) -> None:
        """Add a batch of rows; their samples must be on disk."""
        path, content = _part_file(self._folder, self.done.parts), parquet(rows)
        write_atomic(path.with_suffix(".parquet"), content)
        part = {
            "done": asdict(done),
            "quarantined": [asdict(one) for one in quarantined],
            "rows": hashlib.sha256(content).hexdigest(),
        }
        write_atomic(path, json.dumps(part | {"sha256": own_hash(part)}).encode())
        self.done = done

    def results(self) -> tuple[pl.DataFrame, list[Quarantined]]:
        """All table rows and all quarantined entries so far, in order."""
        tables: list[pl.DataFrame] = []
        quarantined: list[Quarantined] = []
        for number in range(self.done.parts):
            part = _read_part(self._folder, number)
            if part is None:
                path = _part_file(self._folder, number)
                raise StoreError(f"{path} has been damaged; run the same `clocs prepare` again")
            quarantined += part[1]
            tables.append(pl.read_parquet(part[2]))
        return pl.concat(tables, rechunk=True), quarantined


def progress_of(folder: Path) -> tuple[int, int] | None:
    """(entries done, entries in all) of an unfinished store; None where there is none."""
    job = _read_job(folder)
    return None if job is None else (roughly_done(folder), job["entries"])


def roughly_done(folder: Path) -> int:
    """Entries done as the newest batch says, without a check: for a bar of progress."""
    try:
        newest = max((folder / PARTS).glob("*.json"), default=None)
        return 0 if newest is None else int(json.loads(newest.read_bytes())["done"]["entries"])
    except (OSError, ValueError, KeyError, TypeError):  # perhaps removed this moment
        return 0


def remove_journal(folder: Path) -> None:
    """Remove what only an unfinished store has."""
    shutil.rmtree(folder / PARTS, ignore_errors=True)
    (folder / PROGRESS).unlink(missing_ok=True)


def parquet(frame: pl.DataFrame) -> memoryview:
    """A frame as the bytes of a parquet file."""
    buffer = io.BytesIO()
    frame.write_parquet(buffer)
    return buffer.getbuffer()


def _read_job(folder: Path) -> dict[str, Any] | None:
    path = folder / PROGRESS
    if not path.is_file():
        return None
    try:
        job = json.loads(path.read_bytes())
        if isinstance(job, dict) and isinstance(job.get("entries"), int):
            return job
    except (ValueError, RecursionError):
        pass
    raise StoreError(f"{path} is damaged; delete {folder} and run `clocs prepare` again")


def _read_part(folder: Path, number: int) -> tuple[Done, list[Quarantined], bytes] | None:
    """A batch and its rows as a parquet file; None where it is missing, damaged or of old."""
    path = _part_file(folder, number)
    try:
        part = json.loads(path.read_bytes())
        rows = path.with_suffix(".parquet").read_bytes()
        sound = part.pop("sha256") == own_hash(part)
        if not sound or part["rows"] != hashlib.sha256(rows).hexdigest():
            return None
        return Done(**part["done"]), [Quarantined(**one) for one in part["quarantined"]], rows
    except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _part_file(folder: Path, number: int) -> Path:
    return folder / PARTS / f"{number:06d}.json"
