"""Results: our value and the paper's for each cell, or why there is none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import fmean, stdev
from typing import Any

from clocs.experiments import paper
from clocs.experiments.data import leads_for
from clocs.experiments.draws import Draws
from clocs.experiments.grid import Cell, paper_values
from clocs.experiments.ledger import Run
from clocs.experiments.runner import last_line, run_name
from clocs.recording import STANDARD_LEADS

TWELVE = ", twelve leads"  # in the names of facts of a second store of a dataset


@dataclass(frozen=True)
class Value:
    """An AUC as mean and standard deviation over seeds; no deviation for a single seed."""

    mean: float
    std: float | None

    def __str__(self) -> str:
        return f"{self.mean:.3f}" + ("" if self.std is None else f" ± {self.std:.3f}")


@dataclass(frozen=True)
class Results:
    """Everything that the report shows."""

    runs: Mapping[str, Run]  # by name
    facts: Mapping[str, Any]  # what holds for all runs: their data and their profile
    versions: Sequence[Mapping[str, str]] = ()  # software and devices that made them, each once
    draws: Mapping[str, Draws] = field(default_factory=dict)  # by the name of their run

    @property
    def simulated(self) -> bool:
        """Whether the data are simulated."""
        return (self.facts.get("profile") or {}).get("name") == "simulated"

    @cached_property
    def seeds(self) -> list[int]:
        """Every number of seeds that was run, the largest first."""
        return sorted({run.seeds for run in self.runs.values()}, reverse=True)

    def run(self, cell: Cell) -> Run | None:
        """Its completed run with the most seeds, else any run."""
        found = [self.runs.get(run_name(cell, seeds)) for seeds in self.seeds]
        known = [run for run in found if run is not None]
        return next((run for run in known if run.state == "done"), known[0] if known else None)

    def result(self, cell: Cell) -> dict[str, Any] | None:
        run = self.run(cell)
        return run.result if run is not None and run.state == "done" else None

    def ours(self, cell: Cell) -> Value | None:
        """Our test AUC."""
        result = self.result(cell)
        if result is None or result.get("auc_mean") is None:
            return None
        return Value(result["auc_mean"], result["auc_std"])

    def logits(self, cell: Cell) -> Value | None:
        """Our test AUC of raw logits, where that is what the paper prints; else None."""
        result = self.result(cell)
        if cell.downstream in paper.MULTI_LABEL or result is None or not result.get("auc_logits"):
            return None
        return value_of(result["auc_logits"])

    def beside(self, cell: Cell) -> Value | None:
        """Our test AUC as the paper computed its own: of logits, or of probabilities."""
        return self.logits(cell) or self.ours(cell)

    def difference(self, cell: Cell) -> float | None:
        """Ours less the paper's, like with like."""
        ours, theirs = self.beside(cell), papers(cell)
        return None if ours is None or theirs is None else ours.mean - theirs.mean

    def why_not(self, cell: Cell) -> str:
        """Why there is no result, in a few words."""
        p = cell.pretraining
        for dataset in (p.dataset, cell.downstream):
            present = self.facts.get(f"leads of {dataset}")
            if p.leads == len(STANDARD_LEADS):
                present = self.facts.get(f"leads of {dataset}{TWELVE}", present)
            if present is not None and leads_for(p.leads, tuple(present)) is None:
                return f"needs a {p.leads}-lead store"
        run = self.run(cell)
        if run is not None and run.state == "failed":
            return f"failed: {last_line(run.error)}"
        for seeds in self.seeds:
            encoder = self.runs.get(run_name(p, seeds))
            if encoder is not None and encoder.state == "failed":
                return f"its pre-training failed: {last_line(encoder.error)}"
        return "not run"


def value_of(numbers: Sequence[float]) -> Value:
    """Mean and sd of numbers, one per seed."""
    return Value(fmean(numbers), stdev(numbers) if len(numbers) > 1 else None)


def papers(cell: Cell) -> Value | None:
    """What the paper prints for a cell."""
    row = paper_values().get(cell)
    return None if row is None else Value(row.mean, row.std)
