"""Dry run: what a grid would run and how long it should take."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from clocs.experiments.data import open_library
from clocs.experiments.exports import not_known
from clocs.experiments.grid import Cell, Pretraining, cells_of
from clocs.experiments.ledger import FILE, Run, open_ledger
from clocs.experiments.pricing import Rates, duration
from clocs.experiments.runner import run_name, why_not
from clocs.experiments.steps import PAPER, SIMULATED


@dataclass(frozen=True)
class WorkUnit:
    """One piece of work: a pre-training with its seeds, or the scoring of a job's encoders."""

    kind: str  # 'pretrain' or 'score'
    name: str  # of the encoder or of the job
    encoders: int  # how many it includes
    state: str  # 'to do', 'done', 'failed', or which data it needs
    seconds: float  # how long it took, or should take


@dataclass(frozen=True)
class Estimate:
    """What a grid would run and how long it should take."""

    units: list[WorkUnit]
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

    def lines(self) -> list[str]:
        """Plain text: one line per unit, then the totals."""
        lines = []
        for unit in self.units:
            one = unit.kind == "pretrain"
            what = unit.name if one else f"{unit.name}: {unit.encoders} encoders"
            time = duration(unit.seconds) if unit.state in ("to do", "done") else "–"
            lines.append(f"{unit.kind:<9}{what:<64}{time:>8}  {unit.state}")
        waiting = [unit for unit in self.units if unit.state == "to do"]
        trainings = sum(unit.kind == "pretrain" for unit in waiting)
        basis = "rates measured in this folder" if self.measured else "assumed rates and epochs"
        to_do = self.cells - self.cells_done - self.cells_unavailable
        return [
            *lines,
            "",
            f"{self.cells:,} results: {self.cells_done:,} done, {to_do:,} to do, "
            f"{self.cells_unavailable:,} need data that is missing",
            f"{trainings} pre-trainings and {len(waiting) - trainings} fleets of evaluations to "
            f"do: about {duration(self.seconds)} on {self.device} ({basis})",
        ]


def estimate(
    names: Sequence[str],
    *,
    out: Path,
    stores: Path | None = None,
    dataset: str | None = None,
    seeds: int | None = None,
    only: Sequence[str] = (),
    known: Sequence[Path] = (),
    device: torch.device | str = "cpu",
) -> Estimate:
    """What `reproduce` would do, and how long it should take; writes nothing."""
    cells = not_known(cells_of(names, only), known)
    profile = SIMULATED if dataset else PAPER
    library = None if stores is None else open_library(stores)
    runs: dict[str, Run] = {}
    if (out / FILE).is_file():
        with closing(open_ledger(out, create=False)) as ledger:
            runs = ledger.runs()
    rates = Rates.of(runs.values(), torch.device(device).type, profile)
    seeds = seeds or profile.seeds
    needs = {cell: why_not(library, cell) if library else None for cell in cells}
    units = []
    encoders: dict[Pretraining, str | None] = {}
    for cell, need in needs.items():
        p = cell.pretraining
        encoders[p] = None if need is None else encoders.get(p, need)
    for encoder, need in encoders.items():
        run = runs.get(run_name(encoder, seeds))
        took = run.seconds if run is not None and run.state == "done" else None
        expected = rates.pretraining_seconds(encoder, seeds)
        units.append(WorkUnit("pretrain", encoder.name, 1, _state(run, need), took or expected))
    jobs: dict[tuple[str, str], list[Cell]] = {}
    done = 0
    for cell, need in needs.items():
        state = _state(runs.get(run_name(cell, seeds)), need)
        done += state == "done"
        jobs.setdefault((cell.job, state), []).append(cell)
    for (job, state), members in jobs.items():
        took = sum(runs[run_name(c, seeds)].seconds or 0 for c in members if state == "done")
        seconds = took or rates.job_seconds(members, seeds)
        units.append(WorkUnit("score", job, len(members), state, seconds))
    return Estimate(
        units=units,
        cells=len(cells),
        cells_done=done,
        cells_unavailable=sum(need is not None for need in needs.values()),
        device=rates.device,
        measured=rates.measured,
    )


def _state(run: Run | None, need: str | None) -> str:
    if run is not None and run.state in ("done", "failed"):
        return run.state
    return need or "to do"
