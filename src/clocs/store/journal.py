"""The journal of an unfinished store: which entries are done.

While a store is being made, `progress.json` says what is being made, and `parts/` holds numbered
batches of table rows, each in a .parquet and a .json. A batch counts once its .json is there, which
is written after its rows and after the samples they point to. All vanish when it is complete.
"""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import polars as pl

from clocs.datasets.base import Quarantined
from clocs.errors import StoreError
from clocs.files import write_atomic

PROGRESS = "progress.json"
PARTS = "parts"


@dataclass(frozen=True, slots=True)
class Job:
    """What is being made: two runs may share work only where all of this is equal."""

    format: int
    dataset: str
    settings: Mapping[str, str]
    fingerprint: str
    entries: int
    chunk: int


@dataclass(frozen=True, slots=True)
class Done:
    """How far the batches in `parts/` reach."""

    parts: int = 0
    entries: int = 0  # of the listing
    samples: int = 0  # of the signals
    chunks: int = 0  # safely on disk; may reach beyond `samples`, into the next recording


class Journal:
    """The record of what is done of one unfinished store."""

    def __init__(self, folder: Path, job: Job) -> None:
        """Start a journal, or continue the one that is there where it is of the same job."""
        self._folder = folder
        known = _read_job(folder)
        if known is None:
            write_atomic(folder / PROGRESS, json.dumps(asdict(job), indent=2).encode())
        elif known != job:
            new, old = asdict(job), asdict(known)
            different = [name for name in new if new[name] != old[name]]
            raise StoreError(
                f"{folder} holds an unfinished store of something else (another "
                f"{', '.join(different)}); delete it or give another folder as `out`"
            )
        (folder / PARTS).mkdir(exist_ok=True)
        self.done = _read_done(folder)

    def commit(self, rows: pl.DataFrame, quarantined: Sequence[Quarantined], done: Done) -> None:
        """Add a batch of rows; their samples must be on disk."""
        stem = f"{self.done.parts:06d}"
        write_atomic(self._folder / PARTS / f"{stem}.parquet", parquet(rows))
        part = {"done": asdict(done), "quarantined": [asdict(one) for one in quarantined]}
        write_atomic(self._folder / PARTS / f"{stem}.json", json.dumps(part).encode())
        self.done = done

    def rows(self) -> pl.DataFrame:
        """All table rows so far, in order."""
        paths = [self._folder / PARTS / f"{part:06d}.parquet" for part in range(self.done.parts)]
        return pl.concat([pl.read_parquet(path) for path in paths], rechunk=True)

    def quarantined(self) -> list[Quarantined]:
        """All quarantined entries so far, in order."""
        found: list[Quarantined] = []
        for part in range(self.done.parts):
            text = (self._folder / PARTS / f"{part:06d}.json").read_text(encoding="utf-8")
            found += [Quarantined(**one) for one in json.loads(text)["quarantined"]]
        return found


def progress_of(folder: Path) -> tuple[int, int] | None:
    """(entries done, entries in all) of an unfinished store; None where there is none."""
    job = _read_job(folder)
    return None if job is None else (_read_done(folder).entries, job.entries)


def remove_journal(folder: Path) -> None:
    """Remove what only an unfinished store has."""
    shutil.rmtree(folder / PARTS, ignore_errors=True)
    (folder / PROGRESS).unlink(missing_ok=True)


def parquet(frame: pl.DataFrame) -> memoryview:
    """A frame as the bytes of a parquet file."""
    buffer = io.BytesIO()
    frame.write_parquet(buffer)
    return buffer.getbuffer()


def _read_job(folder: Path) -> Job | None:
    path = folder / PROGRESS
    if not path.is_file():
        return None
    try:
        return Job(**json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise StoreError(
            f"{path} is damaged; delete {folder} and run `clocs prepare` again"
        ) from error


def _read_done(folder: Path) -> Done:
    done = Done()
    while (path := folder / PARTS / f"{done.parts:06d}.json").is_file():
        done = Done(**json.loads(path.read_text(encoding="utf-8"))["done"])
    return done
