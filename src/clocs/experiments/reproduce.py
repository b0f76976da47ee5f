"""Reproduce: names of tables and figures -> their runs, or what these would take.

Puts grid, library, ledger and runner together. Knows nothing about the command line.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Event
from typing import Any

import torch

from clocs.errors import SettingError
from clocs.experiments.data import Library, library_of, open_library
from clocs.experiments.grid import Cell, grid, only
from clocs.experiments.ledger import Ledger, Run, open_ledger
from clocs.experiments.pricing import Rates
from clocs.experiments.profile import PAPER, SIMULATED, Profile
from clocs.experiments.runner import MEMBERS, Outcome, Progress, Runner, run_name, why_not

SIMULATED_NAME = "synthetic"


@dataclass(frozen=True)
class Unit:
    """One piece of work: a pre-training with its seeds, or the scoring of a job's encoders.

    Attributes:
        kind: 'pretrain' or 'score'.
        name: Of the encoder or of the job.
        encoders: How many take part.
        state: 'to do', 'done', 'failed', or what it needs and has not.
        seconds: That it should take, or took.
    """

    kind: str
    name: str
    encoders: int
    state: str
    seconds: float


@dataclass(frozen=True)
class Price:
    """What a grid would run and how long it should take."""

    units: list[Unit]
    cells: int
    cells_done: int
    cells_unavailable: int
    device: str
    measured: bool

    @property
    def seconds(self) -> float:
        return sum(unit.seconds for unit in self.units if unit.state == "to do")

    def json(self) -> dict[str, Any]:
        return {
            "device": self.device,
            "measured": self.measured,
            "seconds": round(self.seconds, 1),
            "cells": self.cells,
            "cells_done": self.cells_done,
            "cells_unavailable": self.cells_unavailable,
            "units": [asdict(unit) for unit in self.units],
        }


def cells_of(names: Sequence[str], wishes: Sequence[str] = ()) -> list[Cell]:
    """The cells of these tables and figures, each once, that fit the wishes."""
    return only(dict.fromkeys(cell for name in names for cell in grid(name)), wishes)


def open_data(stores: Path | None, dataset: str | None) -> tuple[Library, Profile]:
    """The data and how long to train on it: real stores, or small simulated ones."""
    if dataset is not None:
        if dataset != SIMULATED_NAME or stores is not None:
            raise SettingError(
                f"--dataset is {dataset}; it can only be {SIMULATED_NAME}, and instead of --stores"
            )
        from clocs.experiments.simulated import simulated_datasets

        return library_of(simulated_datasets()), SIMULATED
    if stores is None:
        raise SettingError(
            "give the folder of prepared stores with --stores, or --dataset synthetic"
        )
    return open_library(stores), PAPER


def reproduce(
    names: Sequence[str],
    *,
    out: Path,
    stores: Path | None = None,
    dataset: str | None = None,
    seeds: int | None = None,
    wishes: Sequence[str] = (),
    device: torch.device | str = "cpu",
    seconds: float | None = None,
    members: int = MEMBERS,
    parallel: int = 1,
    retry: bool = False,
    on_progress: Callable[[Progress], None] = lambda progress: None,
) -> Outcome:
    """Run tables and figures of the paper, as far as they are not done; see `Runner`.

    Args:
        names: Of `grid.NAMES`.
        out: The folder of the runs.
        stores: The folder of the prepared stores, or of saved frames.
        dataset: 'synthetic' instead of stores.
        seeds: How many; the profile's by default.
        wishes: See `grid.only`.
        device: Where.
        seconds: After which no new work begins; the next call goes on.
        members: Trained downstream at once, at most.
        parallel: Threads that work on the grid, on a GPU each on a stream of its own: the small
            kernels of one fleet leave room for another's.
        retry: Try again what failed before.
        on_progress: Called after each piece of work.
    """
    began = time.monotonic()
    cells = cells_of(names, wishes)
    library, profile = open_data(stores, dataset)
    if retry:
        with closing(open_ledger(out)) as ledger:
            ledger.forget_failures()
    stop = Event()

    def work() -> Outcome:
        left = None if seconds is None else seconds - (time.monotonic() - began)
        with closing(open_ledger(out)) as ledger, _own_stream(device, parallel):
            runner = Runner(
                ledger,
                library,
                profile,
                seeds=seeds,
                device=device,
                seconds=left,
                members=members,
                stop=stop,
                on_progress=on_progress,
            )
            return runner.work(cells)

    if parallel == 1:
        return work()
    with ThreadPoolExecutor(parallel) as pool:
        workers = [pool.submit(work) for _ in range(parallel)]
        try:
            return [worker.result() for worker in workers][-1]
        finally:
            stop.set()  # interrupted, or one of them failed: the others put back what they have


def _own_stream(device: torch.device | str, parallel: int) -> AbstractContextManager[object]:
    if parallel == 1 or torch.device(device).type != "cuda":
        return nullcontext()
    return torch.cuda.stream(torch.cuda.Stream(device))


def price(
    names: Sequence[str],
    *,
    out: Path,
    stores: Path | None = None,
    dataset: str | None = None,
    seeds: int | None = None,
    wishes: Sequence[str] = (),
    device: torch.device | str = "cpu",
) -> Price:
    """What `reproduce` would do, and how long it should take; writes nothing."""
    cells = cells_of(names, wishes)
    profile = SIMULATED if dataset else PAPER
    library = open_data(stores, None)[0] if stores is not None else None
    runs: dict[str, Run] = {}
    if (out / "runs.sqlite").is_file():
        ledger: Ledger = open_ledger(out, create=False)
        runs = ledger.runs()
        ledger.close()
    kind = torch.device(device).type
    rates = Rates.of(runs.values(), kind, profile)
    return _price(cells, library, runs, rates, seeds or profile.seeds)


def _price(
    cells: Sequence[Cell], library: Library | None, runs: dict[str, Run], rates: Rates, seeds: int
) -> Price:
    lacks = {cell: why_not(library, cell) if library else None for cell in cells}
    units = []
    encoders: dict[Any, str | None] = {}
    for cell, lack in lacks.items():
        p = cell.pretraining
        encoders[p] = None if lack is None else encoders.get(p, lack)
    for encoder, lack in encoders.items():
        run = runs.get(run_name(encoder, seeds))
        state = _state(run, lack)
        took = run.seconds if run is not None and run.state == "done" else None
        expected = rates.pretraining_seconds(encoder, seeds)
        units.append(Unit("pretrain", encoder.name, 1, state, took or expected))
    jobs: dict[tuple[str, str], list[Cell]] = {}
    done = 0
    for cell, lack in lacks.items():
        state = _state(runs.get(run_name(cell, seeds)), lack)
        done += state == "done"
        jobs.setdefault((cell.job, state), []).append(cell)
    for (job, state), members in jobs.items():
        took = sum(runs[run_name(c, seeds)].seconds or 0 for c in members if state == "done")
        seconds = took or rates.job_seconds(members, seeds)
        units.append(Unit("score", job, len(members), state, seconds))
    return Price(
        units=units,
        cells=len(cells),
        cells_done=done,
        cells_unavailable=sum(lack is not None for lack in lacks.values()),
        device=rates.device,
        measured=rates.measured,
    )


def _state(run: Run | None, lack: str | None) -> str:
    if run is not None and run.state in ("done", "failed"):
        return run.state
    return lack or "to do"
