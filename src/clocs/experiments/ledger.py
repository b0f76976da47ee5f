"""Ledger: every run of a folder in one crash-safe place (SQLite, write-ahead log).

A run is a row: its settings, its state and its result. A process that works on a run holds a lock
on a file of its own; the system releases the lock when the process ends, so a killed process leaves
only a row that can be claimed again.

Each row has a digest of itself, which is compared whenever it is read; opening lets SQLite check
its own structure. A file of an earlier version gets what it lacks when it is first opened.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import sqlite3
import struct
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from clocs._version import __version__
from clocs.errors import BusyError, ClocsError, SettingError, StoreError
from clocs.files import file_error, flock, once_free

RunState = Literal["waiting", "running", "done", "failed"]
FILE = "runs.sqlite"
Draws = NDArray[np.float64]  # (draws,) of the AUC of one result
NO_DRAW = 65535  # its code
_HEAD = struct.Struct("<II")  # of packed draws: vectors, and values in each
_SCALE = struct.Struct("<dd")  # the lowest value, and one step
_SMALLEST = 512  # bytes of a page


@dataclass(frozen=True)
class Run:
    """One row; `result`, `settings` and `versions` are kept as JSON."""

    name: str
    kind: str  # pretrain, or a cell's task
    settings: dict[str, Any]
    seeds: int
    state: RunState
    result: dict[str, Any] | None  # scores, curves, distances, or training metrics
    error: str | None
    checkpoint: str | None  # folder below the ledger's own
    seconds: float | None
    versions: dict[str, Any]  # clocs, torch, device …
    attempts: int
    began: float | None
    ended: float | None


# columns of each table; the draws of results are apart, as they are large and only a report reads
# them
_TABLES = {
    "facts": ("name", "value"),
    "runs": tuple(column.name for column in fields(Run)),
    "draws": ("name", "packed"),
}
_VERSION = 3  # of the file: 1 has no table of draws; 1 and 2 have a table `seal`


def _digest(*values: Any) -> str:
    return hashlib.blake2b(repr(values).encode(), digest_size=16).hexdigest()


class Ledger:
    """The runs of one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / FILE
        (folder / "locks").mkdir(parents=True, exist_ok=True)
        try:
            self._db = sqlite3.connect(self.path, timeout=60, isolation_level=None)
        except sqlite3.Error as error:
            raise self._problem(error) from error
        try:
            self._db.create_function("digest_of", -1, _digest, deterministic=True)
            # of a new file that another is writing, SQLite refuses this without waiting
            once_free(lambda: self._execute("PRAGMA journal_mode=WAL"))
            self._execute("PRAGMA synchronous=FULL")  # a run takes seconds; its row can take 10 ms
            with self._transaction():
                self._check()
        except BaseException:
            self._db.close()
            raise

    def close(self) -> None:
        self._db.close()

    def require_fact(self, name: str, value: Any) -> None:
        """Record a fact that must hold for all runs of this folder, or refuse a different value."""
        text = json.dumps(value, sort_keys=True)
        self._insert("facts", {"name": name, "value": text})
        if self.facts()[name] != json.loads(text):
            raise SettingError(
                f"{self.folder} holds runs that differ in the {name}; give a new folder as `out`"
            )

    def facts(self) -> dict[str, Any]:
        rows = self._rows("facts", "ORDER BY name")
        return {row["name"]: self._parsed(row["value"]) for row in rows}

    def add(self, name: str, kind: str, settings: Mapping[str, Any], seeds: int) -> None:
        """Make sure that a run has a row; an existing one stays."""
        text = json.dumps(settings, sort_keys=True)
        given = {"name": name, "kind": kind, "settings": text, "seeds": seeds}
        self._insert("runs", {**given, "state": "waiting", "attempts": 0})

    def run(self, name: str) -> Run | None:
        return next(iter(self._select("WHERE name = ?", name)), None)

    def runs(self) -> dict[str, Run]:
        """All of them, by name."""
        return {run.name: run for run in self._select("ORDER BY rowid")}

    def draws(self) -> dict[str, bytes]:
        """The packed draws of results that have them, by the name of their run."""
        return {row["name"]: row["packed"] for row in self._rows("draws") if row["packed"]}

    def states(self) -> dict[str, RunState]:
        return {row["name"]: row["state"] for row in self._rows("runs", "ORDER BY rowid")}

    def forget_failures(self) -> None:
        """Queue failed runs again."""
        for name in [name for name, state in self.states().items() if state == "failed"]:
            self._change("runs", name, "state = 'waiting'")

    @contextmanager
    def claim(self, *names: str, limit: int | None = None) -> Iterator[tuple[str, ...]]:
        """Claim those of these runs that wait, or that a dead process left; yields their names.

        No other process can claim them while the context lasts.

        Args:
            names: In the order in which to try them.
            limit: The most runs to claim.
        """
        held: dict[str, int] = {}
        try:
            for name in names:
                if len(held) == limit:
                    break
                handle = self._lock(name)
                if handle is None:
                    continue
                held[name] = handle  # the row can be trusted only under the lock
                run = self.run(name)
                if run is None or run.state in ("done", "failed"):
                    os.close(held.pop(name))
                    continue
                self._change(
                    "runs",
                    name,
                    "state = 'running', attempts = attempts + 1, began = ?, error = NULL",
                    time.time(),
                )
            yield tuple(held)
        finally:
            for handle in held.values():
                os.close(handle)

    def finish(
        self,
        name: str,
        result: Mapping[str, Any],
        *,
        seconds: float,
        versions: Mapping[str, Any],
        checkpoint: str | None = None,
    ) -> None:
        """Record the result of a run; its `draws`, where it has them, are packed bytes."""
        scores = dict(result)
        packed = scores.pop("draws", None)
        if packed is not None:
            self._insert("draws", {"name": name})
            self._change("draws", name, "packed = ?", packed)
        texts = json.dumps(scores, allow_nan=False), json.dumps(dict(versions))
        self._change(
            "runs",
            name,
            "state = 'done', result = ?, error = NULL, versions = ?, checkpoint = ?, "
            "seconds = COALESCE(seconds, 0) + ?, ended = ?",
            *(*texts, checkpoint, seconds, time.time()),
        )

    def fail(self, name: str, error: str, *, seconds: float) -> None:
        """Record the error of a failed run."""
        self._change(
            "runs",
            name,
            "state = 'failed', error = ?, seconds = COALESCE(seconds, 0) + ?, ended = ?",
            *(error, seconds, time.time()),
        )

    def put_back(self, name: str, *, seconds: float) -> None:
        """Queue a run that was stopped early; the next process resumes it."""
        self._change("runs", name, "state = 'waiting', seconds = COALESCE(seconds, 0) + ?", seconds)

    def _lock(self, name: str) -> int | None:
        """A handle that holds the run's lock; None if another process holds it."""
        short = hashlib.sha256(name.encode()).hexdigest()[:24]
        handle = os.open(self.folder / "locks" / short, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            flock(handle)
        except BlockingIOError:
            os.close(handle)
            return None
        return handle

    def _select(self, clause: str, *values: Any) -> list[Run]:
        plain = {"settings": "{}", "result": "null", "versions": "{}"}  # JSON, and where empty
        rows = self._rows("runs", clause, *values)
        return [
            Run(**row | {k: self._parsed(row[k] or v) for k, v in plain.items()}) for row in rows
        ]

    def _parsed(self, text: str) -> Any:
        try:
            return json.loads(text)
        except (ValueError, TypeError, RecursionError) as error:
            raise self._damaged(error) from error

    def _execute(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """The rows that a statement gives; what SQLite complains of becomes a sentence."""
        try:
            return self._db.execute(statement, values).fetchall()
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise self._problem(error) from error

    def _rows(self, table: str, clause: str = "", *values: Any) -> Iterator[dict[str, Any]]:
        """Rows of a table, each compared with its digest."""
        columns = _TABLES[table]
        listed = f"SELECT {', '.join(columns)}, digest FROM {table} {clause}"
        for *row, digest in self._execute(listed, *values):
            if _digest(*row) != digest:
                raise self._damaged(f"the row of {row[0]} differs from its digest")
            yield dict(zip(columns, row, strict=True))

    def _insert(self, table: str, row: Mapping[str, Any]) -> None:
        """Add a row unless there is one of the same name; what it does not have is NULL."""
        values = [row.get(column) for column in _TABLES[table]]
        if self._execute(f"SELECT 1 FROM {table} WHERE name = ?", values[0]):
            return
        marks = ", ".join("?" * (len(values) + 1))
        digest = _digest(*values)
        self._execute(f"INSERT OR IGNORE INTO {table} VALUES ({marks})", *values, digest)

    def _change(self, table: str, name: str, assignments: str, *values: Any) -> None:
        """Change a row, after comparing it with its digest."""
        where, columns = "WHERE name = ?", ", ".join(_TABLES[table])
        with self._transaction():
            for _ in self._rows(table, where, name):
                self._execute(f"UPDATE {table} SET {assignments} {where}", *values, name)
                self._execute(f"UPDATE {table} SET digest = digest_of({columns}) {where}", name)

    def _damaged(self, why: object) -> StoreError:
        words = " ".join(str(why).split())  # SQLite's own may have several lines
        return StoreError(
            f"{self.path} is damaged ({words}); restore it from a copy, or start again in a new "
            "folder"
        )

    def _check(self) -> None:
        """Make the tables where there are none, and check those that are there."""
        ((version,),) = self._execute("PRAGMA user_version")
        known = {name for (name,) in self._execute("SELECT name FROM sqlite_master")}
        new = version == 0 and "runs" not in known
        if not new and not 0 < version <= _VERSION:
            raise StoreError(
                f"{self.path} has format {version}, but this version of clocs reads format "
                f"{_VERSION}; use the version that made it, or give a new folder"
            )
        for table, columns in _TABLES.items():
            if table not in known:
                others = ", ".join(columns[1:])
                self._execute(f"CREATE TABLE {table} (name PRIMARY KEY, {others}, digest)")
        if version < _VERSION:
            self._execute("DROP TABLE IF EXISTS seal")
            self._execute(f"PRAGMA user_version = {_VERSION}")
        ((verdict,), *_) = self._execute("PRAGMA integrity_check(1)")
        if verdict != "ok":
            raise self._damaged(verdict)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """All of the changes inside, or none."""
        self._execute("BEGIN IMMEDIATE")
        try:
            yield
            self._execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.rollback()
            raise

    def _problem(self, error: Exception) -> ClocsError:
        name = str(getattr(error, "sqlite_errorname", ""))
        if name == "SQLITE_NOTADB":
            return SettingError(f"{self.path} is not a list of runs ({error}); give another folder")
        if name in ("SQLITE_BUSY", "SQLITE_LOCKED"):
            return BusyError(f"{self.path} is in use by another process; try again when it is done")
        if name.startswith(("SQLITE_FULL", "SQLITE_IOERR", "SQLITE_CANTOPEN", "SQLITE_READONLY")):
            return file_error(error, self.path, doing="written")
        return self._damaged(error)


def open_ledger(folder: Path, *, create: bool = True) -> Ledger:
    """The ledger of a folder; a new one where there is none and `create` is set."""
    if not create and not (folder / FILE).is_file():
        raise SettingError(f"{folder} holds no runs; make some with `clocs reproduce`")
    if folder.exists() and not folder.is_dir():
        raise SettingError(f"{folder} is a file; give a folder for the runs")
    size = (folder / FILE).stat().st_size if (folder / FILE).is_file() else None
    if size is not None and size < _SMALLEST and (size or not create):  # SQLite calls that empty
        raise StoreError(
            f"{folder / FILE} is cut short; restore it from a copy, or give another folder"
        )
    return Ledger(folder)


def versions(device: str) -> dict[str, str]:
    """The software and device that made a result, for its row."""
    import torch

    processor = f"{platform.machine()} CPU, {torch.get_num_threads()} threads"
    return {
        "clocs": __version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "device": torch.cuda.get_device_name() if device.startswith("cuda") else processor,
    }


def last_line(text: str | None) -> str:
    """The last line of an error, which says what went wrong."""
    lines = (text or "").strip().splitlines()
    return lines[-1] if lines else "unknown reason"


def pack_draws(draws: Draws) -> bytes:
    """For a row of the ledger: 16-bit steps between the lowest and the highest, 4 kB for 2,000."""
    scale, codes = encode_draws(draws)
    return _HEAD.pack(1, len(draws)) + _SCALE.pack(*scale) + codes.astype("<u2").tobytes()


def unpack_draws(content: bytes) -> Draws:
    """What `pack_draws` gave; earlier versions kept a second vector behind it, of logits."""
    count, size = _HEAD.unpack_from(content) if len(content) >= _HEAD.size else (0, 0)
    if count not in (1, 2) or len(content) != _HEAD.size + count * (_SCALE.size + 2 * size):
        raise StoreError("the draws of a run have an unknown form; run it again")
    codes = np.frombuffer(content, "<u2", size, _HEAD.size + _SCALE.size)
    return decode_draws(_SCALE.unpack_from(content, _HEAD.size), codes)


def encode_draws(
    vector: Draws, levels: int = NO_DRAW - 1
) -> tuple[tuple[float, float], NDArray[np.uint16]]:
    """((lowest, step), codes); steps are powers of two, so that what was read is written alike."""
    known = vector[~np.isnan(vector)]
    low, high = (float(known.min()), float(known.max())) if len(known) else (0.0, 0.0)
    step = 2.0 ** math.ceil(math.log2((high - low) / levels)) if high > low else 2.0**-40
    if math.ceil(high / step) - math.floor(low / step) > levels:
        step *= 2
    low = math.floor(low / step) * step
    steps = np.rint((vector - low) / step)
    return (low, step), np.where(np.isnan(steps), NO_DRAW, steps).astype(np.uint16)


def decode_draws(scale: tuple[float, float], codes: NDArray[np.uint16]) -> Draws:
    low, step = (float(value) for value in scale)
    return np.where(codes == NO_DRAW, np.nan, low + step * codes.astype(np.float64))
