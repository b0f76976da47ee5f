"""Experiments that the paper does not have: more patient splits, BYOL with a fixed schedule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any, Protocol

from clocs.experiments import paper
from clocs.experiments.cells import Cell, CellTask, Pretraining

SPLIT_SEEDS = (1, 2, 3, 4)  # besides 0: 313 patients move by about 0.05 from split to split
SCHEDULES = (25, 50, 100, 200, 400)  # epochs of BYOL, without early stopping


def on_other_splits(cells: Sequence[Cell]) -> list[Cell]:
    """The same on further patient splits of the downstream dataset.

    An encoder that is scored on its own dataset is trained on the same split, as no test patient
    may be among those it has learned from. One that is scored on another dataset stays that of
    split 0: what varies is who is labelled and who is tested.
    """
    return [on_split(cell, seed) for seed in SPLIT_SEEDS for cell in cells if not cell.split_seed]


def on_split(cell: Cell, seed: int) -> Cell:
    """The cell on another patient split; see `on_other_splits`."""
    own = cell.pretraining
    if own.dataset == cell.downstream:
        own = replace(own, split_seed=seed)
    return replace(cell, pretraining=own, split_seed=seed)


def byol_fixed() -> list[Cell]:
    """BYOL after each schedule, linear on its own dataset and fine-tuned on the others.

    Early stopping on its own loss picks nearly untrained networks: the loss also falls when the
    embeddings collapse.
    """
    tasks: list[tuple[CellTask, str, str]] = [("linear", d, d) for d in paper.PRETRAIN]
    tasks += [("finetune", p, d) for p, d in paper.PAIRS]
    return [
        Cell(Pretraining("byol", dataset, epochs=epochs), downstream, task)
        for task, dataset, downstream in tasks
        for epochs in SCHEDULES
    ]


class HasResults(Protocol):
    """What is known of each cell: `clocs.experiments.results.Results`."""

    def result(self, cell: Cell) -> dict[str, Any] | None: ...


def chosen_schedule(results: HasResults, dataset: str) -> int | None:
    """BYOL's number of epochs on a dataset: that with the best linear AUC on validation patients.

    None until all schedules are scored. Test patients play no part in the choice.
    """
    scores: dict[int, float] = {}
    for epochs in SCHEDULES:
        cell = Cell(Pretraining("byol", dataset, epochs=epochs), dataset, "linear")
        found = (results.result(cell) or {}).get("auc_validation")
        if not found:
            return None
        scores[epochs] = fmean(found)
    return max(scores, key=lambda epochs: scores[epochs])
