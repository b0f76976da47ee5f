"""Estimate: what a grid would run and how long it should take, on one device.

By rates measured in earlier runs of the folder or, without them, assumed. Counts are those of the
paper's datasets or of the simulated ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from textwrap import wrap
from typing import Any

from clocs.evaluation.evaluate import UNTRAINED
from clocs.experiments.data import open_library
from clocs.experiments.grid import Cell, Pretraining, cells_of, run_name
from clocs.experiments.ledger import FILE, Run, open_ledger
from clocs.experiments.results import not_known
from clocs.experiments.runner import duration
from clocs.experiments.steps import PAPER, SIMULATED, Profile

# seconds of five seeds in four leads on an H200, by the rates of benchmarks/train.py and the epochs
# of docs/results: of a pre-training by method, and of scoring a cell with all labels by task
_PRETRAINING = {"cmsc": 24, "cmlc": 15, "cmsmlc": 18, "simclr": 33, "byol": 7, "mtssl": 46}
_SCORING = {"linear": 0.6, "linear-converged": 8, "finetune": 1.7, "curve": 4.5, "distances": 0.4}
_SET_UP = 4.0  # of a job, to compile kernels, capture graphs and load data
_SIMULATED = 1.0  # seconds of either on simulated data
_OTHER = 19.0  # of another pre-training
_SLOWER = {"cpu": 350.0}  # than the H200; two cores: 240 for CMSC, 500 for SimCLR
_VALIDATING = 0.2  # share of a scoring's time that does not depend on the number of labels
_TRAINING_PATIENTS = 4000  # about; with so many labeled, all are
_COLUMNS = 80  # of a terminal


@dataclass(frozen=True)
class Rates:
    """What is known about speed: seconds of five seeds in four leads."""

    device: str  # 'cuda' or 'cpu'
    profile: Profile
    pretraining: dict[str, float] = field(default_factory=dict)  # as measured, by method
    cell: dict[tuple[str, str], float] = field(default_factory=dict)  # by task and downstream

    @classmethod
    def from_runs(cls, runs: Iterable[Run], device: str, profile: Profile) -> Rates:
        """From the times of a folder's runs on this kind of device."""
        pretraining: dict[str, list[float]] = {}
        cell: dict[tuple[str, str], list[float]] = {}
        for run in runs:
            s, on_cpu = run.settings, run.versions.get("device", "").endswith("threads")
            if run.state != "done" or not run.seconds or on_cpu != (device == "cpu"):
                continue
            usual = run.seconds * 5 / run.seeds * 4 / s.get("pretraining", s)["leads"]
            if run.kind != "pretrain" and s.get("patients") is None:
                cell.setdefault((run.kind, s["downstream"]), []).append(usual / s["fraction"])
            elif run.kind == "pretrain" and s.get("epochs") is None:  # early stopping decided
                pretraining.setdefault(s["method"], []).append(usual)
        means = {name: fmean(values) for name, values in pretraining.items()}
        return cls(device, profile, means, {k: fmean(values) for k, values in cell.items()})

    def _assumed(self, seconds: float) -> float:
        if self.profile.name == "simulated":
            return _SIMULATED
        return seconds * _SLOWER.get(self.device, 1.0)

    def pretraining_seconds(self, encoder: Pretraining, seeds: int) -> float:
        """One pre-training with all its seeds."""
        if encoder.method in UNTRAINED:
            return 1.0
        assumed = self._assumed(_PRETRAINING.get(encoder.method, _OTHER))
        seconds = self.pretraining.get(encoder.method, assumed)
        if encoder.epochs is not None:
            seconds *= encoder.epochs / self.profile.epochs
        return seconds * seeds / 5 * encoder.leads / 4

    def job_seconds(self, cells: Sequence[Cell], seeds: int) -> float:
        """Scoring the encoders of one job."""
        first = cells[0]
        fraction = first.fraction
        if first.patients is not None:
            share = min(1.0, first.patients / _TRAINING_PATIENTS)
            fraction = _VALIDATING + (1 - _VALIDATING) * share
        assumed = self._assumed(_SCORING[first.task])
        known = self.cell.get((first.task, first.downstream))
        each = (assumed if known is None else known) * fraction
        set_up = _SET_UP if known is None else 0.0
        return set_up + each * len(cells) * seeds / 5 * first.pretraining.leads / 4


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
    device: str
    measured: bool

    @property
    def seconds(self) -> float:
        return sum(unit.seconds for unit in self.units if unit.state == "to do")

    def cells(self, *states: str) -> int:
        """Results in any of these states; all of them without."""
        scored = [unit for unit in self.units if unit.kind == "score"]
        return sum(unit.encoders for unit in scored if not states or unit.state in states)

    def json(self) -> dict[str, Any]:
        counts = {"cells": self.cells(), "cells_done": self.cells("done")}
        return asdict(self) | {"seconds": round(self.seconds, 1)} | counts

    def lines(self) -> list[str]:
        """Plain text of at most 80 columns: the units with their states, then the totals."""
        lines = [
            f"{unit.state}, {duration(unit.seconds)}: {unit.kind} {unit.name}"
            + (f" ({unit.encoders} encoders)" if unit.encoders > 1 else "")
            for unit in sorted(self.units, key=lambda unit: (unit.kind, unit.state))
        ]
        waiting = [unit for unit in self.units if unit.state == "to do"]
        trainings = sum(unit.kind == "pretrain" for unit in waiting)
        basis = "rates measured in this folder" if self.measured else "assumed rates and epochs"
        done, to_do, failed = (self.cells(state) for state in ("done", "to do", "failed"))
        totals = [
            f"{self.cells():,} results: {done:,} done, {to_do:,} to do, {failed:,} failed, "
            f"{self.cells() - done - to_do - failed:,} need data that is missing",
            f"{trainings} pre-trainings and {len(waiting) - trainings} jobs of evaluations to "
            f"do: about {duration(self.seconds)} on {self.device} ({basis})",
        ]
        return [line for text in (*lines, *totals) for line in wrap(text, _COLUMNS)]


def estimate(
    names: Sequence[str],
    *,
    out: Path,
    stores: Path | None = None,
    dataset: str | None = None,
    seeds: int | None = None,
    only: Sequence[str] = (),
    known: Sequence[Path] = (),
    device: str = "cpu",
) -> Estimate:
    """What `reproduce` would do, and how long it should take; writes nothing.

    Args:
        names: As those of `reproduce`, as are the other arguments.
        out: The folder of runs, whose measured rates are used.
        stores: The folder of stores.
        dataset: 'synthetic' for small simulated datasets.
        seeds: How many.
        only: Filters.
        known: Folders whose results are not computed again.
        device: The kind that would compute, 'cuda' or 'cpu'.
    """
    cells = not_known(cells_of(names, only), known)
    profile = SIMULATED if dataset else PAPER
    library = None if stores is None else open_library(stores)
    runs: dict[str, Run] = {}
    if (out / FILE).is_file():
        with closing(open_ledger(out, create=False)) as ledger:
            runs = ledger.runs()
    rates = Rates.from_runs(runs.values(), device.partition(":")[0], profile)
    seeds = seeds or profile.seeds
    needs = {cell: library.why_not(cell) if library else None for cell in cells}
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
    for cell, need in needs.items():
        state = _state(runs.get(run_name(cell, seeds)), need)
        jobs.setdefault((cell.job, state), []).append(cell)
    for (job, state), own in jobs.items():
        took = sum(runs[run_name(c, seeds)].seconds or 0 for c in own if state == "done")
        units.append(WorkUnit("score", job, len(own), state, took or rates.job_seconds(own, seeds)))
    return Estimate(units, rates.device, bool(rates.pretraining or rates.cell))


def _state(run: Run | None, need: str | None) -> str:
    if run is not None and run.state in ("done", "failed"):
        return run.state
    return need or "to do"
