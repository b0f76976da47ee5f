"""Ledger: every run of a folder in one crash-safe place (SQLite, write-ahead log).

A run is a row: its settings, its state and its result. Whoever works on a run holds a lock on its
own file; the system releases the lock when the process ends, however it ends, so a killed process
leaves only a row that can be claimed again. Rows are compared with their digests; see
`row_database`.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from clocs._version import __version__
from clocs.errors import SettingError, StoreError
from clocs.experiments.row_database import RowDatabase
from clocs.files import flock

RunState = Literal["waiting", "running", "done", "failed"]
FILE = "runs.sqlite"
_SMALLEST = 512  # bytes of a page

_TABLES = {
    "facts": {"name": "TEXT PRIMARY KEY", "value": "TEXT NOT NULL"},
    "runs": {
        "name": "TEXT PRIMARY KEY",
        "kind": "TEXT NOT NULL",  # pretrain, or a cell's task
        "settings": "TEXT NOT NULL",  # JSON
        "seeds": "INTEGER NOT NULL",
        "state": "TEXT NOT NULL DEFAULT 'waiting'",
        "result": "TEXT",  # JSON: scores, curves, distances, or training metrics
        "error": "TEXT",
        "checkpoint": "TEXT",  # folder below the ledger's own
        "seconds": "REAL",
        "versions": "TEXT",  # JSON: clocs, torch, device …
        "attempts": "INTEGER NOT NULL DEFAULT 0",
        "began": "REAL",
        "ended": "REAL",
    },
    # of results, apart from them: they are large, and only a report reads them
    "draws": {"name": "TEXT PRIMARY KEY", "packed": "BLOB"},
}


@dataclass(frozen=True)
class Run:
    """One row; `result`, `settings` and `versions` as plain values."""

    name: str
    kind: str
    settings: dict[str, Any]
    seeds: int
    state: RunState
    result: dict[str, Any] | None
    error: str | None
    checkpoint: str | None
    seconds: float | None
    versions: dict[str, Any]
    attempts: int
    began: float | None
    ended: float | None


class Ledger:
    """The runs of one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "locks").mkdir(parents=True, exist_ok=True)
        self._db = RowDatabase(folder / FILE, _TABLES)

    def close(self) -> None:
        self._db.close()

    def settle(self, name: str, value: Any, remedy: str) -> None:
        """Record a fact that must hold for all runs of this folder, or refuse a different value."""
        text = json.dumps(value, sort_keys=True)
        self._db.insert("facts", {"name": name, "value": text})
        if self.facts()[name] != json.loads(text):
            raise SettingError(f"{self.folder} holds runs that differ in the {name}; {remedy}")

    def facts(self) -> dict[str, Any]:
        rows = self._db.rows("facts", "ORDER BY name")
        return {row["name"]: self._parsed(row["value"]) for row in rows}

    def add(self, name: str, kind: str, settings: Mapping[str, Any], seeds: int) -> None:
        """Make sure that a run has a row; an existing one is left as it is."""
        text = json.dumps(settings, sort_keys=True)
        given = {"name": name, "kind": kind, "settings": text, "seeds": seeds}
        self._db.insert("runs", {**given, "state": "waiting", "attempts": 0})

    def run(self, name: str) -> Run | None:
        return next(iter(self._select("WHERE name = ?", name)), None)

    def runs(self) -> dict[str, Run]:
        """All of them, by name."""
        return {run.name: run for run in self._select("ORDER BY rowid")}

    def draws(self) -> dict[str, bytes]:
        """The packed draws of results that have them, by the name of their run."""
        return {row["name"]: row["packed"] for row in self._db.rows("draws") if row["packed"]}

    def states(self) -> dict[str, RunState]:
        return {row["name"]: row["state"] for row in self._db.rows("runs", "ORDER BY rowid")}

    def forget_failures(self) -> int:
        """Queue failed runs again; returns how many."""
        failed = [name for name, state in self.states().items() if state == "failed"]
        for name in failed:
            self._change(name, "state = 'waiting'")
        return len(failed)

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
            self._db.insert("draws", {"name": name})
            self._db.change("draws", name, "packed = ?", packed)
        texts = json.dumps(scores, allow_nan=False), json.dumps(dict(versions))
        self._change(
            name,
            "state = 'done', result = ?, error = NULL, versions = ?, checkpoint = ?, "
            "seconds = COALESCE(seconds, 0) + ?, ended = ?",
            *(*texts, checkpoint, seconds, time.time()),
        )

    def fail(self, name: str, error: str, *, seconds: float) -> None:
        """Record the error of a failed run."""
        self._change(
            name,
            "state = 'failed', error = ?, seconds = COALESCE(seconds, 0) + ?, ended = ?",
            *(error, seconds, time.time()),
        )

    def put_back(self, name: str, *, seconds: float) -> None:
        """Queue a run that was stopped early; the next process resumes it."""
        self._change(name, "state = 'waiting', seconds = COALESCE(seconds, 0) + ?", seconds)

    def _change(self, name: str, assignments: str, *values: Any) -> None:
        self._db.change("runs", name, assignments, *values)

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
        rows = self._db.rows("runs", clause, *values)
        return [
            Run(**row | {k: self._parsed(row[k] or v) for k, v in plain.items()}) for row in rows
        ]

    def _parsed(self, text: str) -> Any:
        try:
            return json.loads(text)
        except (ValueError, TypeError, RecursionError) as error:
            raise self._db.damaged(error) from error


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
    import numpy as np
    import torch

    accelerator = torch.cuda.get_device_name() if device.startswith("cuda") else ""
    return {
        "clocs": __version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "device": accelerator or f"{platform.machine()} CPU, {torch.get_num_threads()} threads",
    }
