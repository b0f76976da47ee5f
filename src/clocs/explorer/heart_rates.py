"""Patients' heart rates: what the cache folder has at once, the others as a process measures them.

The process, `python -m clocs.explorer.heart_rates CACHE STORE…`, has the lowest priority, so that
it takes only what the pages leave. It keeps its results in a file every few seconds and says so;
a stopped explorer goes on from there.

Stores are sorted by ID, so an order that follows them would tell visitors whose IDs are near each
other. Patients are therefore measured in an order that is drawn once and kept in the file. What is
known at any time is then a random sample of the patients, too.
"""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from clocs.errors import BusyError, ClocsError, StoreError
from clocs.explorer.background import BackgroundWork, report
from clocs.files import locked, private_cache
from clocs.measurements.beats import heart_rate
from clocs.sealed import ArrayFile
from clocs.store.store import Store, open_store
from clocs.store.table import recording_of
from clocs.workers import limit_process

_LOG = logging.getLogger("clocs.explorer")
_RATES = ArrayFile("cached heart rates", key="clocs.rates", format=2, remedy="delete it")
_FEWEST, _MOST, _PARTS = 200, 5_000, 20  # recordings between two writings of the file
_MEMORY = 8 << 30  # bytes: of a recording, its copies and the store's table; as to read a file
_AGAIN = 2.0  # seconds until it looks again at what another explorer measures


@dataclass
class MeasuredRates:
    """What is known of a store's heart rates.

    Attributes:
        rates: (recordings,) beats per minute; NaN where unknown or not measured yet.
        seed: Of the order in which patients are measured.
        done: Recordings of that order that are measured.
        unread: How many of them could not be read.
    """

    rates: NDArray[np.float32]
    seed: int
    done: int = 0
    unread: int = 0

    @property
    def complete(self) -> bool:
        return self.done >= len(self.rates)


@dataclass(frozen=True)
class RatesState:
    """How far the measuring is.

    Attributes:
        state: Whether it goes on; 'failed' where something is left that will not be measured.
        measured: Recordings measured so far.
        recordings: All of them.
        description: Of a problem, for the page; '' where there is none.
    """

    state: Literal["ready", "working", "failed"]
    measured: int
    recordings: int
    description: str = ""


class HeartRates(BackgroundWork):
    """Heart rates of patients, by row: the median of a patient's recordings."""

    def __init__(self, rows: pl.DataFrame, stores: Mapping[str, Store], cache: Path) -> None:
        """Those in the cache folder; `start` measures the others.

        Args:
            rows: `dataset` and `patient`, one row per patient.
            stores: By dataset.
            cache: The cache folder.
        """
        self._rows, self._stores, self._cache = rows.select("dataset", "patient"), stores, cache
        self._problem = ""
        self._known = {name: self._read(name) for name in stores}
        self.values = self._medians()  # (patients,) beats per minute, NaN where unknown

    def state(self) -> RatesState:
        """How far the measuring is."""
        known = list(self._known.values())
        unread = sum(one.unread for one in known)
        words = f"{unread:,} {'recording' if unread == 1 else 'recordings'} cannot be read"
        complete = all(one.complete for one in known)
        return RatesState(
            "ready" if complete else "failed" if self._problem else "working",
            sum(one.done for one in known),
            sum(len(one.rates) for one in known),
            self._problem or (words if unread else ""),
        )

    def _is_left(self) -> bool:
        return self.state().state == "working"

    def _compute(self) -> None:
        left = [name for name, known in self._known.items() if not known.complete]
        paths = [str(self._stores[name].path.resolve()) for name in left]
        problem = "the process that measures them has ended"
        try:
            for message in self._messages(str(self._cache.resolve()), *paths):
                self._update(left)
                if "problem" in message:
                    _LOG.error("heart rates of %s", message["problem"])
                    problem = "some cannot be measured; see the terminal"
        except OSError as error:
            problem = f"they cannot be measured ({error.strerror})"
        if not self._stopped and self._is_left():
            self._problem = problem

    def _update(self, names: Sequence[str]) -> None:
        """Read what the process has kept meanwhile."""
        found = {name: self._read(name) for name in names}
        if any(one.done > self._known[name].done for name, one in found.items()):
            self._known |= found
            self.values = self._medians()

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


def rates_folder(store: Store, cache: Path) -> Path:
    """Where the heart rates of a store's recordings are kept."""
    key = hashlib.blake2b(store.manifest.content_hash.encode(), digest_size=12).hexdigest()
    return cache / f"rates-{key}"


def read_rates(store: Store, folder: Path) -> MeasuredRates:
    """What was measured so far; nothing where there is no file, or a damaged one."""
    try:
        facts, arrays = _RATES.read(folder / "rates.safetensors")
        known = MeasuredRates(arrays["rates"], facts["seed"], facts["done"], facts["unread"])
        if known.rates.shape == (len(store),) and known.rates.dtype == np.float32:
            return known
    except (ClocsError, KeyError):
        pass
    return MeasuredRates(np.full(len(store), np.nan, np.float32), secrets.randbits(62))


def measure_rates(
    store: Store, folder: Path, on_kept: Callable[[int], None] = lambda done: None
) -> None:
    """Measure the recordings of a store that are not measured yet.

    Args:
        store: Of the recordings.
        folder: Of `rates_folder`.
        on_kept: Called with the number of measured recordings that are on disk.

    Raises:
        BusyError: Another process measures them.
    """
    private_cache(folder.parent)
    with locked(folder):
        known = read_rates(store, folder)
        # patient by patient, the patients in a random order
        patients = store.table["patient"].rank("dense").to_numpy().astype(np.int64) - 1
        places = np.random.default_rng(known.seed).permutation(int(patients.max(initial=-1)) + 1)
        order = np.argsort(places[patients], kind="stable")
        while not known.complete:
            step = max(_FEWEST, min(_MOST, len(order) // _PARTS)) if known.done else _FEWEST
            rows = np.sort(order[known.done : known.done + step]).tolist()
            for row, rate in _rates(store, rows):
                known.rates[row] = np.nan if rate is None else rate
                known.unread += rate is None
            known.done += len(rows)
            facts = {"seed": known.seed, "done": known.done, "unread": known.unread}
            _RATES.write(folder / "rates.safetensors", facts, {"rates": known.rates})
            on_kept(known.done)


def _rates(store: Store, rows: Sequence[int]) -> Iterator[tuple[int, float | None]]:
    """Row and heart rate of ascending rows, so that each chunk of the store is decoded once.

    NaN where it has none, None where it cannot be read.
    """
    done = 0
    while done < len(rows):
        try:
            for row, digital in store.iter_signals(rows=rows[done:]):
                facts = store.table.row(row, named=True)
                rate = heart_rate(recording_of(facts, digital.ravel()))
                yield row, np.nan if rate is None else rate
                done += 1
        except StoreError:  # of this recording; the next may be whole
            yield rows[done], None
            done += 1


def main(cache: Path, stores: Sequence[Path]) -> None:
    """The process; reports what it has kept, and stores that cannot be measured."""
    limit_process(_MEMORY, os.getppid())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server hears it too, and ends this process
    if hasattr(os, "nice"):
        os.nice(19)
    for path in stores:
        name = "a store"
        try:
            store = open_store(path)
            name, folder = store.manifest.dataset, rates_folder(store, cache)
            while not read_rates(store, folder).complete:
                try:
                    measure_rates(store, folder, lambda done: report(done=done))
                except BusyError:  # by another explorer of the same store: its results are ours
                    time.sleep(_AGAIN)
                    report()
        except (ClocsError, MemoryError, OSError) as error:  # it may name a recording and a folder
            cause = error if isinstance(error, OSError) else error.__cause__
            why = getattr(cause, "strerror", None) or type(error).__name__
            report(problem=f"{name} cannot be measured ({why})")


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(one) for one in sys.argv[2:]])
