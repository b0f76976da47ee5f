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
from clocs.experiments.runner import PAPER, SIMULATED, Profile, duration

# seconds of five seeds in four leads on an H200, by the rates of benchmarks/train.py and the epochs
# of docs/results: of a pre-training by method, and of scoring a cell with all labels by task
_H200 = {
    **{"cmsc": 24, "cmlc": 15, "cmsmlc": 18, "simclr": 33, "byol": 7, "mtssl": 46},
    **{"linear": 0.6, "linear-converged": 8, "finetune": 1.7, "curve": 4.5, "distances": 0.4},
}
_OTHER = 19.0  # of another pre-training
_SET_UP = 4.0  # of a job, to compile kernels, capture graphs and load data
_SIMULATED = 1.0  # seconds of either on simulated data
_SLOWER = {"cpu": 350.0}  # than the H200; two cores: 240 for CMSC, 500 for SimCLR
_VALIDATING = 0.2  # share of a scoring's time that does not depend on the number of labels
_TRAINING_PATIENTS = 4000  # about; with so many labeled, all are
_COLUMNS = 80  # of a terminal


@dataclass(frozen=True)
class Rates:
    """What is known about speed."""

    device: str  # 'cuda' or 'cpu'
    profile: Profile
    # seconds of five seeds in four leads with all labels, as measured: by method or task
    measured: dict[str, float] = field(default_factory=dict)

    @classmethod
    def from_runs(cls, runs: Iterable[Run], device: str, profile: Profile) -> Rates:
        """From the times of a folder's runs on this kind of device."""
        found: dict[str, list[float]] = {}
        for run in runs:
            s, on_cpu = run.settings, run.versions.get("device", "").endswith("threads")
            if run.state != "done" or not run.seconds or on_cpu != (device == "cpu"):
                continue
            if s.get("epochs") is None and s.get("patients") is None:
                usual = run.seconds * 5 / run.seeds * 4 / s.get("pretraining", s)["leads"]
                key = s["method"] if run.kind == "pretrain" else run.kind
                found.setdefault(key, []).append(usual / s.get("fraction", 1))
        return cls(device, profile, {key: fmean(values) for key, values in found.items()})

    def seconds(self, key: str) -> float:
        """Five seeds in four leads with all labels: of a method's pre-training, or of a task."""
        assumed = _H200.get(key, _OTHER) * _SLOWER.get(self.device, 1.0)
        return self.measured.get(key, _SIMULATED if self.profile == SIMULATED else assumed)

    def pretraining_seconds(self, encoder: Pretraining, seeds: int) -> float:
        """One pre-training with all its seeds."""
        if encoder.method in UNTRAINED:
            return 1.0
        share = 1.0 if encoder.epochs is None else encoder.epochs / self.profile.epochs
        return self.seconds(encoder.method) * share * seeds / 5 * encoder.leads / 4

    def job_seconds(self, cells: Sequence[Cell], seeds: int) -> float:
        """Scoring the encoders of one job."""
        first = cells[0]
        fraction = first.fraction
        if first.patients is not None:
            share = min(1.0, first.patients / _TRAINING_PATIENTS)
            fraction = _VALIDATING + (1 - _VALIDATING) * share
        each = self.seconds(first.task) * fraction
        return _SET_UP + each * len(cells) * seeds / 5 * first.pretraining.leads / 4


@dataclass(frozen=True)
class WorkUnit:
    """One piece of work: a pre-training with its seeds, or the scoring of a job's encoders."""

    kind: str  # 'pretrain' or 'score'
    name: str  # of the encoder or of the job
    encoders: int  # how many it includes
    state: str  # 'to do', 'done', 'failed', or which data it needs
    seconds: float  # how long it should take


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

    def state_of(what: Pretraining | Cell, need: str | None) -> str:
        run = runs.get(run_name(what, seeds))
        return run.state if run and run.state in ("done", "failed") else need or "to do"

    encoders: dict[Pretraining, str | None] = {}
    jobs: dict[tuple[str, str], list[Cell]] = {}
    for cell, need in needs.items():
        p = cell.pretraining
        encoders[p] = None if need is None else encoders.get(p, need)
        jobs.setdefault((cell.job, state_of(cell, need)), []).append(cell)
    units = []
    for encoder, need in encoders.items():
        took, state = rates.pretraining_seconds(encoder, seeds), state_of(encoder, need)
        units.append(WorkUnit("pretrain", encoder.name, 1, state, took))
    for (job, state), own in jobs.items():
        units.append(WorkUnit("score", job, len(own), state, rates.job_seconds(own, seeds)))
    return Estimate(units, rates.device, bool(rates.measured))
