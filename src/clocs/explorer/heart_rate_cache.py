"""Recordings' heart rates, measured in a random order and kept in the cache folder as they come.

Stores are sorted by ID, so an order that follows them would tell visitors whose IDs are near each
other. Patients are therefore measured in an order that is drawn once and kept in the file. What is
known at any time is then a random sample of the patients, too.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from clocs.errors import ClocsError, StoreError
from clocs.files import locked, private_cache
from clocs.patients.heart_rate import heart_rate
from clocs.sealed import ArrayFile
from clocs.store.columns import recording_of
from clocs.store.store import Store

_RATES = ArrayFile("cached heart rates", key="clocs.rates", format=2, remedy="delete it")
_MIN, _MAX, _PARTS = 200, 5_000, 20  # recordings between two writings of the file


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


def rates_folder(store: Store, cache: Path) -> Path:
    """Where the heart rates of a store's recordings are kept."""
    key = hashlib.blake2b(store.manifest.content_hash.encode(), digest_size=12).hexdigest()
    return cache / f"rates-{key}"


def read_rates(store: Store, folder: Path) -> MeasuredRates:
    """What was measured so far; nothing where there is no file, or a damaged one."""
    try:
        facts, arrays = _RATES.read(_file(folder))
        known = MeasuredRates(arrays["rates"], facts["seed"], facts["done"], facts["unread"])
        if known.rates.shape == (len(store),) and known.rates.dtype == np.float32:
            return known
    except (ClocsError, KeyError):
        pass
    return MeasuredRates(np.full(len(store), np.nan, np.float32), secrets.randbits(62))


def _file(folder: Path) -> Path:
    return folder / "rates.safetensors"


def measure_rates(
    store: Store,
    folder: Path,
    report: Callable[[int, bool], None] = lambda done, kept: None,
    unreadable: Callable[[str], None] = lambda sentence: None,
) -> None:
    """Measure the recordings of a store that are not measured yet.

    Args:
        store: Of the recordings.
        folder: Of `rates_folder`.
        report: Called with the number of measured recordings, and whether they are on disk.
        unreadable: Called with a sentence about each recording that cannot be read.

    Raises:
        BusyError: Another process measures them.
    """
    private_cache(folder.parent)
    with locked(folder):
        known = read_rates(store, folder)
        order = _order(store, known.seed)
        while not known.complete:
            step = max(_MIN, min(_MAX, len(order) // _PARTS)) if known.done else _MIN
            rows = np.sort(order[known.done : known.done + step]).tolist()
            for i, (row, rate) in enumerate(_rates(store, rows)):
                if isinstance(rate, StoreError):
                    known.unread += 1
                    unreadable(str(rate))
                else:
                    known.rates[row] = np.nan if rate is None else rate
                if i % 100 == 99:
                    report(known.done + i + 1, False)
            known.done += len(rows)
            facts = {"seed": known.seed, "done": known.done, "unread": known.unread}
            _RATES.write(_file(folder), facts, {"rates": known.rates})
            report(known.done, True)


def _order(store: Store, seed: int) -> NDArray[np.int64]:
    """Rows of the store, patient by patient, the patients in a random order."""
    patients = store.table["patient"].rank("dense").to_numpy().astype(np.int64) - 1
    places = np.random.default_rng(seed).permutation(int(patients.max(initial=-1)) + 1)
    return np.argsort(places[patients], kind="stable")


def _rates(store: Store, rows: Sequence[int]) -> Iterator[tuple[int, float | StoreError | None]]:
    """Row and heart rate of ascending rows, so that each chunk of the store is decoded once."""
    done = 0
    while done < len(rows):
        try:
            for row, digital in store.iter_signals(rows=rows[done:]):
                facts = store.table.row(row, named=True)
                yield row, heart_rate(recording_of(facts, digital.ravel()))
                done += 1
        except StoreError as error:  # of this recording; the next may be whole
            yield rows[done], error
            done += 1
