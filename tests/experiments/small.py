"""A grid that runs in seconds: few simulated patients, one epoch. Also a process of its own."""

from __future__ import annotations

import sys
from pathlib import Path

from clocs.experiments.data import Library, library_from_frames, simulated_frames
from clocs.experiments.grid import Cell, grid, only
from clocs.experiments.ledger import Ledger
from clocs.experiments.runner import GridStatus, Profile, Runner

TINY = Profile(
    name="simulated", epochs=1, patience=1, lr=1e-3, curve_epochs=2, resamples=0, seeds=1
)
NAMES = ("chapman", "physionet2020", "physionet2017", "cardiology")


def small_library(*names: str, patients: int = 24) -> Library:
    return library_from_frames({n: simulated_frames(n, NAMES.index(n), patients) for n in names})


def small_cells() -> list[Cell]:
    """Four encoders on each of two datasets."""
    return only(grid("table-1"), ["method=random,random-bn,cmsc,cmlc"])


def process_cells() -> list[Cell]:
    """Those of a process of its own: two encoders on each of two datasets."""
    return only(small_cells(), ["method=random-bn,cmsc"])


def work(folder: Path, cells: list[Cell], library: Library, **options: float) -> GridStatus:
    """Run cells in this process."""
    ledger = Ledger(folder)
    seconds = options.get("seconds")
    try:
        return Runner(ledger, library, TINY, seconds=seconds).work(cells)
    finally:
        ledger.close()


if __name__ == "__main__":
    runner = Runner(
        Ledger(Path(sys.argv[1])),
        small_library("chapman", "physionet2020"),
        TINY,
        on_progress=lambda message, done, total: print(message, flush=True),  # noqa: T201
    )
    sys.exit(0 if runner.work(process_cells()).complete else 1)
