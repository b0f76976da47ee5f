"""Dry run: what a grid would run and how long it should take, here or on a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from textwrap import wrap
from typing import Any, Final

import torch

from clocs import ray_cluster
from clocs.errors import SettingError
from clocs.experiments.data import open_library
from clocs.experiments.exports import not_known
from clocs.experiments.grid import Cell, Pretraining, cells_of
from clocs.experiments.ledger import FILE, Run, open_ledger
from clocs.experiments.pricing import CPUS, Rates, Task, duration, wall_seconds
from clocs.experiments.runner import MEMBERS, run_name, why_not
from clocs.experiments.steps import PAPER, SIMULATED

_COLUMNS: Final = 80  # of a terminal


@dataclass(frozen=True)
class WorkUnit:
    """One piece of work: a pre-training with its seeds, or the scoring of a job's encoders."""

    kind: str  # 'pretrain' or 'score'
    name: str  # of the encoder or of the job
    encoders: int  # how many it includes
    state: str  # 'to do', 'done', 'failed', or which data it needs
    seconds: float  # how long it took, or should take


@dataclass(frozen=True)
class ClusterPrice:
    """What a grid takes on a cluster: `slots` tasks run at once."""

    nodes: int
    gpus: int  # of all nodes
    slots: int
    tasks: int
    seconds: float  # from the first task to the last
    longest: float  # seconds of the longest task, which no cluster makes shorter

    def __str__(self) -> str:
        machines = "1 node" if self.nodes == 1 else f"{self.nodes} nodes"
        return (
            f"on a cluster of {machines} with {self.gpus} GPUs: {self.tasks} tasks, {self.slots} "
            f"at once: about {duration(self.seconds)} from the first to the last; the longest task "
            f"takes {duration(self.longest)}"
        )


@dataclass(frozen=True)
class Estimate:
    """What a grid would run and how long it should take."""

    units: list[WorkUnit]
    cells: int
    cells_done: int
    cells_unavailable: int
    device: str
    measured: bool
    cluster: ClusterPrice | None = None

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
            **({} if self.cluster is None else {"cluster": asdict(self.cluster)}),
        }

    def lines(self) -> list[str]:
        """Plain text of at most 80 columns: the units by kind and state, then the totals."""
        groups: dict[tuple[str, str], list[WorkUnit]] = {}
        for unit in self.units:
            groups.setdefault((unit.kind, unit.state), []).append(unit)
        lines = []
        for (kind, state), units in groups.items():
            scored = kind == "score"
            title = f"{'evaluations' if scored else 'pre-trainings'}: {state}"
            timed = state in ("to do", "done")
            lines.append(_row(title, "encoders" if scored else "", "time" if timed else ""))
            for unit in units:
                time = duration(unit.seconds) if timed else ""
                lines.append(_row(f"  {unit.name}", str(unit.encoders) if scored else "", time))
            lines.append("")
        waiting = [unit for unit in self.units if unit.state == "to do"]
        trainings = sum(unit.kind == "pretrain" for unit in waiting)
        basis = "rates measured in this folder" if self.measured else "assumed rates and epochs"
        to_do = self.cells - self.cells_done - self.cells_unavailable
        totals = [
            f"{self.cells:,} results: {self.cells_done:,} done, {to_do:,} to do, "
            f"{self.cells_unavailable:,} need data that is missing",
            f"{trainings} pre-trainings and {len(waiting) - trainings} fleets of evaluations to "
            f"do: about {duration(self.seconds)} on {self.device} ({basis})",
            *([] if self.cluster is None else [str(self.cluster)]),
        ]
        return [*lines, *(line for total in totals for line in wrap(total, _COLUMNS))]


def _row(name: str, encoders: str, time: str) -> str:
    """One line of a terminal; a long name takes the space of the number beside it."""
    number = f"{encoders:>{max(1, _COLUMNS - 9 - len(name))}}"
    return f"{name}{number}{time:>9}".rstrip()


def estimate(
    names: Sequence[str],
    *,
    out: Path,
    stores: Path | None = None,
    dataset: str | None = None,
    seeds: int | None = None,
    only: Sequence[str] = (),
    known: Sequence[Path] = (),
    device: torch.device | str | None = "cpu",
    members: int = MEMBERS,
    ray: str | None = None,
    cluster: str | None = None,
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
        device: The kind that would compute; None: GPUs where the cluster has them.
        members: The most encoders to train downstream at once.
        ray: Price it for this cluster as well, which is asked what it has.
        cluster: Price it for a cluster that need not exist, by its nodes and the GPUs of each
            (without GPUs: the tasks on each at once), such as '8x4'.
    """
    sizes = _cluster_size(ray, cluster, None if device is None else torch.device(device).type)
    if device is None:
        device = "cuda" if sizes is None or sizes.gpus else "cpu"
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
    tasks = [Task(unit.name, unit.seconds) for unit in units if unit.state == "to do"]
    most = max(1, members // seeds)
    jobs: dict[tuple[str, str], list[Cell]] = {}
    done = 0
    for cell, need in needs.items():
        state = _state(runs.get(run_name(cell, seeds)), need)
        done += state == "done"
        jobs.setdefault((cell.job, state), []).append(cell)
    for (job, state), listed in jobs.items():
        took = sum(runs[run_name(c, seeds)].seconds or 0 for c in listed if state == "done")
        seconds = took or rates.job_seconds(listed, seeds)
        units.append(WorkUnit("score", job, len(listed), state, seconds))
        if state == "to do":
            fleets = [listed[start : start + most] for start in range(0, len(listed), most)]
            after = tuple(cell.pretraining.name for cell in listed)
            tasks += [Task(job, seconds * len(one) / len(listed), after) for one in fleets]
    return Estimate(
        units=units,
        cells=len(cells),
        cells_done=done,
        cells_unavailable=sum(need is not None for need in needs.values()),
        device=rates.device,
        measured=rates.measured,
        cluster=None if sizes is None else _price(sizes, tasks),
    )


@dataclass(frozen=True)
class _Size:
    nodes: int
    gpus: int
    slots: int


def _cluster_size(ray: str | None, cluster: str | None, device: str | None) -> _Size | None:
    """Of the cluster at an address, or of one that is given as '8x4'; None without either."""
    if cluster is not None:
        nodes, _, each = cluster.partition("x")
        if not (nodes.isdecimal() and each.isdecimal() and int(nodes) and int(each)):
            raise SettingError(
                f"`cluster` is {cluster!r}; give nodes x GPUs of each, such as 8x4, with `device` "
                "cpu nodes x tasks on each at once"
            )
        many = int(nodes) * int(each)
        return _Size(int(nodes), 0 if device == "cpu" else many, many)
    if ray is None:
        return None
    with ray_cluster.connect(ray):
        found = ray_cluster.nodes()
    gpus = 0 if device == "cpu" else int(sum(node.gpus for node in found))
    cpus = sum(int(node.cpus) // max(1, min(CPUS, int(node.cpus))) for node in found)
    return _Size(len(found), gpus, max(1, gpus or cpus))


def _price(size: _Size, tasks: Sequence[Task]) -> ClusterPrice:
    return ClusterPrice(
        **asdict(size),
        tasks=len(tasks),
        seconds=wall_seconds(tasks, size.slots),
        longest=max((task.seconds for task in tasks), default=0.0),
    )


def _state(run: Run | None, need: str | None) -> str:
    if run is not None and run.state in ("done", "failed"):
        return run.state
    return need or "to do"
