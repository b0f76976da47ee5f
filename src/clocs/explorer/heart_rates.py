"""Patients' heart rates: what the cache folder has at once, the others as a process measures them.

The process has the lowest priority, so that it takes only what the pages leave. It keeps its
results every few seconds; a stopped explorer goes on from there.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from clocs.explorer.heart_rate_cache import MeasuredRates, rates_folder, read_rates
from clocs.store.store import Store

_LOG = logging.getLogger("clocs.explorer")
_ONE_THREAD = ("POLARS_MAX_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass(frozen=True)
class RatesState:
    """How far the measuring is.

    Attributes:
        state: Whether it goes on; 'failed' where something is left that will not be measured.
        measured: Recordings measured so far.
        recordings: All of them.
        version: Grows when there are new values for the page.
        description: Of a problem, for the page; '' where there is none.
    """

    state: Literal["ready", "working", "failed"]
    measured: int
    recordings: int
    version: int
    description: str = ""


class HeartRates:
    """Heart rates of patients, by row: the median of a patient's recordings."""

    def __init__(self, rows: pl.DataFrame, stores: Mapping[str, Store], cache: Path) -> None:
        """Those in the cache folder; `start` measures the others.

        Args:
            rows: `dataset` and `patient`, one row per patient.
            stores: By dataset.
            cache: The cache folder.
        """
        self._rows, self._stores, self._cache = rows.select("dataset", "patient"), stores, cache
        self._known = {name: self._read(name) for name in stores}
        self._done = {name: known.done for name, known in self._known.items()}
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread: threading.Thread | None = None
        self._stopped = False
        self._version, self._problem = 0, ""
        self._values = self._medians()

    @classmethod
    def known(cls, values: NDArray[np.float32]) -> HeartRates:
        """Such as are known from elsewhere."""
        made = cls(pl.DataFrame(schema={"dataset": pl.String, "patient": pl.String}), {}, Path())
        made._values = values
        return made

    def now(self) -> tuple[NDArray[np.float32], RatesState]:
        """(patients,) beats per minute, NaN where unknown, and how far the measuring is."""
        with self._lock:
            complete = all(known.complete for known in self._known.values())
            state = RatesState(
                "ready" if complete else "failed" if self._problem else "working",
                sum(self._done.values()),
                sum(len(known.rates) for known in self._known.values()),
                self._version,
                self._problem or self._unread(),
            )
            return self._values, state

    @property
    def values(self) -> NDArray[np.float32]:
        return self.now()[0]

    def start(self) -> None:
        """Measure in the background what is not known yet."""
        if self._process is None and self.now()[1].state == "working":
            self._thread = threading.Thread(target=self._follow, name="heart rates", daemon=True)
            self._thread.start()

    def wait(self) -> None:
        """Until the measuring has ended."""
        if self._thread is not None:
            self._thread.join()

    def stop(self) -> None:
        """End the measuring; what is in the cache folder stays."""
        self._stopped = True
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
        if self._thread is not None:
            self._thread.join(timeout=5)

    def _follow(self) -> None:
        """Every failure ends in a state that the page shows."""
        left = [name for name, known in self._known.items() if not known.complete]
        paths = [str(self._stores[name].path.resolve()) for name in left]
        try:
            self._process = subprocess.Popen(
                # -P: import nothing from the current folder
                [
                    *(sys.executable, "-P", "-m", "clocs.explorer.heart_rate_worker"),
                    *(str(self._cache.resolve()), *paths),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                env=os.environ
                | dict.fromkeys(_ONE_THREAD, "1")
                | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            )
        except OSError as error:
            self._fail(f"they cannot be measured ({error.strerror})")
            return
        if self._stopped:
            self._process.terminate()
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with suppress(ValueError):
                message = json.loads(line)
                self._take(left[message["store"]], message)
        self._process.wait()
        if not self._stopped and self.now()[1].state == "working":
            self._fail("the process that measures them has ended")

    def _take(self, name: str, message: dict[str, Any]) -> None:
        if kind := message.get("error"):
            _LOG.error("heart rates of %s cannot be measured (%s)", name, kind)
            self._fail(f"those of {name} cannot be measured; see the terminal")
        elif "unreadable" in message:
            _LOG.warning("a heart rate of %s cannot be measured", name)
        elif message["kept"]:
            known = self._read(name)
            with self._lock:
                self._known[name], self._done[name] = known, known.done
            values = self._medians()
            with self._lock:
                self._values, self._version = values, self._version + 1
        else:
            with self._lock:
                self._done[name] = message["done"]

    def _fail(self, problem: str) -> None:
        with self._lock:
            self._problem = problem

    def _unread(self) -> str:
        count = sum(known.unread for known in self._known.values())
        if not count:
            return ""
        return f"{count:,} {'recording' if count == 1 else 'recordings'} cannot be read"

    def _read(self, name: str) -> MeasuredRates:
        store = self._stores[name]
        return read_rates(store, rates_folder(store, self._cache))

    def _medians(self) -> NDArray[np.float32]:
        keys = ["dataset", "patient"]
        known = [
            self._stores[name]
            .table.select("patient")
            .with_columns(dataset=pl.lit(name), rate=pl.Series(own.rates).fill_nan(None))
            for name, own in self._known.items()
        ]
        if not known:
            return np.full(self._rows.height, np.nan, np.float32)
        medians = pl.concat(known).group_by(keys).agg(pl.col("rate").median())
        found = self._rows.join(medians, on=keys, how="left", maintain_order="left")
        return found["rate"].cast(pl.Float32).fill_null(np.nan).to_numpy()
