"""Estimate: what a grid would run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from textwrap import wrap
from typing import Any

from clocs.experiments.data import open_library
from clocs.experiments.grid import Cell, Pretraining, cells_of, run_name
from clocs.experiments.ledger import FILE, Run, open_ledger
from clocs.experiments.results import not_known
from clocs.experiments.runner import PAPER, SIMULATED


@dataclass(frozen=True)
class WorkUnit:
    """One piece of work: a pre-training with its seeds, or the scoring of a job's encoders."""

    kind: str  # 'pretrain' or 'score'
    name: str  # of the encoder or of the job
    encoders: int  # how many it includes
    state: str  # 'to do', 'done', 'failed', or which data it needs


@dataclass(frozen=True)
class Estimate:
    """What a grid would run."""

    units: list[WorkUnit]

    def cells(self, *states: str) -> int:
        """Results in any of these states; all of them without."""
        scored = [unit for unit in self.units if unit.kind == "score"]
        return sum(unit.encoders for unit in scored if not states or unit.state in states)

    def json(self) -> dict[str, Any]:
        return asdict(self) | {"cells": self.cells(), "cells_done": self.cells("done")}

    def lines(self) -> list[str]:
        """Plain text of at most 80 columns: the units with their states, then the totals."""
        lines = [
            f"{unit.state}: {unit.kind} {unit.name}"
            + (f" ({unit.encoders} encoders)" if unit.encoders > 1 else "")
            for unit in sorted(self.units, key=lambda unit: (unit.kind, unit.state))
        ]
        kinds = Counter(unit.kind for unit in self.units if unit.state == "to do")
        states = dict.fromkeys(unit.state for unit in self.units if unit.kind == "score")
        counts = ", ".join(f"{self.cells(state):,} {state}" for state in states)
        lines.append(f"{self.cells():,} results: {counts}")
        lines.append(f"to do: {kinds['pretrain']} pre-trainings, {kinds['score']} scorings")
        return [line for text in lines for line in wrap(text, 80)]


def estimate(
    names: Sequence[str],
    *,
    out: Path | str,
    stores: Path | str | None = None,
    dataset: str | None = None,
    seeds: int | None = None,
    only: Sequence[str] = (),
    known: Sequence[Path | str] = (),
) -> Estimate:
    """What `reproduce` would do; writes nothing.

    Args:
        names: As those of `reproduce`, as are the other arguments.
        out: The folder of runs.
        stores: The folder of stores.
        dataset: 'synthetic' for small simulated datasets.
        seeds: How many.
        only: Filters.
        known: Folders whose results are not computed again.
    """
    cells = not_known(cells_of(names, only), [Path(one) for one in known])
    library = None if stores is None else open_library(Path(stores))
    seeds = seeds or (SIMULATED if dataset else PAPER).seeds
    runs: dict[str, Run] = {}
    if (Path(out) / FILE).is_file():
        with closing(open_ledger(Path(out), create=False)) as ledger:
            runs = ledger.runs()

    def state_of(what: Pretraining | Cell, need: str | None) -> str:
        run = runs.get(run_name(what, seeds))
        return run.state if run and run.state in ("done", "failed") else need or "to do"

    encoders: dict[Pretraining, str | None] = {}
    jobs: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        p, need = cell.pretraining, library.why_not(cell) if library else None
        encoders[p] = None if need is None else encoders.get(p, need)
        jobs.setdefault((cell.job, state_of(cell, need)), []).append(cell)
    trained = [WorkUnit("pretrain", p.name, 1, state_of(p, n)) for p, n in encoders.items()]
    scored = [WorkUnit("score", job, len(own), state) for (job, state), own in jobs.items()]
    return Estimate([*trained, *scored])
