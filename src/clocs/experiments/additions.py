"""Experiments that the paper does not have.

More patient splits, BYOL with a fixed schedule, ablations of CMSC, and label efficiency.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any, Protocol

from clocs.experiments import paper
from clocs.experiments.cells import Cell, CellTask, Pretraining

SPLIT_SEEDS = (1, 2, 3, 4)  # besides 0
SCHEDULES = (25, 50, 100, 200, 400)  # epochs of BYOL, without early stopping
# what `chosen_schedule` chooses on the first patient split; these are run on the others, too
CHOSEN_SCHEDULES = {"chapman": 200, "physionet2020": 100}


def on_other_splits(cells: Sequence[Cell]) -> list[Cell]:
    """The same on further patient splits of the downstream dataset.

    An encoder that is scored on its own dataset is trained on the same split, as no test patient
    may be among those it has learned from. One that is scored on another dataset stays that of
    split 0: what varies is who is labeled and who is tested.
    """
    return [on_split(cell, seed) for seed in SPLIT_SEEDS for cell in cells if not cell.split_seed]


def on_split(cell: Cell, seed: int) -> Cell:
    """The cell on another patient split; see `on_other_splits`."""
    own = cell.pretraining
    if own.dataset == cell.downstream:
        own = replace(own, split_seed=seed)
    return replace(cell, pretraining=own, split_seed=seed)


def on_every_split(cell: Cell) -> dict[int, Cell]:
    """The cell by patient split; one that is not on the first stays alone."""
    others = [] if cell.split_seed else SPLIT_SEEDS
    return {cell.split_seed: cell} | {seed: on_split(cell, seed) for seed in others}


def byol_fixed() -> list[Cell]:
    """BYOL after each schedule, linear on its own dataset and fine-tuned on the others.

    Early stopping on its own loss picks nearly untrained networks: the loss also falls when the
    embeddings collapse. The chosen schedules are scored on all patient splits, as the tables are.
    """
    tasks: list[tuple[CellTask, str, str]] = [("linear", d, d) for d in paper.PRETRAIN]
    tasks += [("finetune", p, d) for p, d in paper.PAIRS]
    first = [
        Cell(Pretraining("byol", dataset, epochs=epochs), downstream, task)
        for task, dataset, downstream in tasks
        for epochs in SCHEDULES
    ]
    chosen = [c for c in first if c.pretraining.epochs == CHOSEN_SCHEDULES[c.pretraining.dataset]]
    return first + on_other_splits(chosen)


ABLATIONS = {  # the title of each row: a variant of CMSC's training; None for CMSC as it is
    "CMSC": None,
    "positives: pairs of segments alone": "instance-pairs",
    "batch norm per view": "norm-per-view",
    "signals in mV, not normalized": "unnormalised",
    "three segments": "segments3",
    "four segments": "segments4",
}
SHORT = ("chapman",)  # its recordings hold two segments, and its segments are shorter than frames
FIVE_SECONDS = "5 s throughout"  # one more row: CMSC, scored on the frames it was trained on


def ablations() -> list[Cell]:
    """CMSC with one thing changed at a time, linear on its own dataset."""
    found = []
    for dataset in paper.PRETRAIN:
        for variant in ABLATIONS.values():
            encoder = Pretraining("cmsc", dataset, variant=variant)
            if encoder.segments == 1 or dataset not in SHORT:
                found.append(Cell(encoder, dataset, "linear"))
    return found + [
        Cell(Pretraining("cmsc", dataset), dataset, "linear", segment_frame=True)
        for dataset in SHORT
    ]


LABELED = (10, 30, 100, 300, 1000)  # patients; then all of them
# the training part of Cardiology has fewer than 300 patients
MAX_LABELED = {"cardiology": 100}
FEW_LABELS = 100  # up to here the rows are fewer than a batch, so that batches are smaller
LEARNERS = ("cmsc", "cmlc", "cmsmlc", "simclr", "byol", "mtssl", "supervised", "random-bn")
# of the figure's panels: (pre-trained on, scored on)
SHOWN = (
    ("physionet2020", "chapman"),
    ("chapman", "physionet2020"),
    ("chapman", "physionet2017"),
    ("chapman", "cardiology"),
)
# logistic regression solved to convergence: with few rows, 400 epochs of Adam are too short
EFFICIENCY_TASKS: tuple[CellTask, ...] = ("linear-converged", "finetune")


def labeled_patients(dataset: str) -> list[int | None]:
    """Numbers of labeled patients to compare on a dataset; None for all."""
    most = MAX_LABELED.get(dataset, LABELED[-1])
    return [*(count for count in LABELED if count <= most), None]


def label_efficiency() -> list[Cell]:
    """AUC over the number of labeled patients: what the figure shows first.

    Fine-tuned and frozen encoders on datasets they were not trained on, frozen ones also on their
    own, but for the supervised, which have seen all labels there.
    """
    own = [(dataset, dataset) for dataset in paper.PRETRAIN]
    more = [pair for pair in paper.PAIRS if pair not in SHOWN]
    found = []
    for dataset, downstream in (*SHOWN, *more, *own):
        for task in EFFICIENCY_TASKS if dataset != downstream else EFFICIENCY_TASKS[:1]:
            for patients in labeled_patients(downstream):
                encoders = [Pretraining("random", downstream)] + [
                    Pretraining(method, dataset)
                    for method in LEARNERS
                    if method != "supervised" or dataset != downstream
                ]
                found += [
                    Cell(encoder, downstream, task, 1.0, patients=patients) for encoder in encoders
                ]
    return found


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


def strongest(results: HasResults, cells: Iterable[Cell]) -> Cell | None:
    """The cell with the highest test AUC, as a mean over the patient splits that all of them have.

    Cells without a result are left out; of equals the first.
    """
    by_split: dict[Cell, dict[int, float]] = {}
    for cell in cells:
        found = {seed: results.result(own) for seed, own in on_every_split(cell).items()}
        means = {seed: float(one["auc_mean"]) for seed, one in found.items() if one}
        if cell.split_seed in means:
            by_split[cell] = means
    if not by_split:
        return None
    common = set.intersection(*(set(means) for means in by_split.values()))
    return max(by_split, key=lambda cell: fmean(by_split[cell][seed] for seed in sorted(common)))


def better_schedule(results: HasResults, cell: Cell) -> Cell:
    """A cell of BYOL by the paper's rule, or with the chosen schedule where that is stronger.

    What is claimed against BYOL counts the better of the two. Other cells are left as they are.
    """
    p = cell.pretraining
    if p.method != "byol" or p.epochs is not None:
        return cell
    epochs = chosen_schedule(results, p.dataset)
    if epochs is None:
        return cell
    return strongest(results, [cell, replace(cell, pretraining=replace(p, epochs=epochs))]) or cell
