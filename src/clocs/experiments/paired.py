"""Paired tests of cells from their stored draws, over all patient splits that both have."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from clocs.evaluation.bootstrap import interval
from clocs.evaluation.comparison import Comparison, Sampled, correct, paired
from clocs.evaluation.resampling import mean_weights
from clocs.experiments.additions import on_every_split, strongest
from clocs.experiments.cells import Cell, Pretraining
from clocs.experiments.draws import Draws
from clocs.experiments.results import Results

UNTRAINED = ("random", "random-bn")


def compare_cells(results: Results, a: Cell, b: Cell, *, every: bool = False) -> Comparison | None:
    """Cell a against cell b by the AUC per frame, without correction; None without draws in common.

    On the patient splits that both have with as many seeds as their first: the mean over splits is
    compared, and the splits are resampled, too. With `every`, on splits of fewer seeds as well;
    three seeds leave two degrees of freedom, so that such a test finds little.
    """
    splits = splits_of_both(results, a, b)
    if not splits:
        return None
    if not every:
        for cell in (a, b):
            most = _seeds(results, cell, splits[0])
            splits = [split for split in splits if _seeds(results, cell, split) >= most]
    found = paired(_sampled(results, a, splits), _sampled(results, b, splits))
    return None if np.isnan(found.ci95).any() else found


def splits_of_both(results: Results, a: Cell, b: Cell) -> list[int]:
    """The patient splits on which both have draws."""
    return [split for split, _ in _splits(results, a) if split in dict(_splits(results, b))]


def splits_ahead(results: Results, a: Cell, b: Cell) -> tuple[int, int]:
    """On how many splits a's mean AUC is above b's, and of how many that both have."""
    splits = splits_of_both(results, a, b)
    own, other = dict(_splits(results, a)), dict(_splits(results, b))

    def mean(cell: Cell) -> float:
        return float(np.mean((results.result(cell) or {})["auc"]))

    return sum(mean(own[split]) > mean(other[split]) for split in splits), len(splits)


def untrained_beside(cell: Cell) -> list[Cell]:
    """The untrained encoders, scored in the same way."""
    p = cell.pretraining
    return [
        replace(cell, pretraining=Pretraining("random", cell.downstream, p.leads, p.embedding_dim)),
        replace(
            cell,
            pretraining=Pretraining(
                "random-bn", p.dataset, p.leads, p.embedding_dim, split_seed=p.split_seed
            ),
        ),
    ]


def stronger(results: Results, cells: Iterable[Cell]) -> Cell | None:
    """The strongest of the cells that have draws."""
    return strongest(results, [cell for cell in cells if _draws(results, cell) is not None])


def above_untrained(results: Results, row: Sequence[Cell]) -> dict[Cell, bool]:
    """Which of a table row's cells are above the stronger untrained encoder.

    Holm's correction is over the cells of the row. Cells without draws are not tested and left out;
    where the untrained encoders were scored within the same job alone, that job's test counts.
    """
    found: dict[Cell, bool] = {}
    tested: dict[Cell, Comparison] = {}
    for cell in row:
        if cell.pretraining.method in UNTRAINED or _draws(results, cell) is None:
            continue
        rival = stronger(results, untrained_beside(cell))
        one = None if rival is None else compare_cells(results, cell, rival)
        within = (results.result(cell) or {}).get("beats_random")
        if one is not None:
            tested[cell] = one
        elif within is not None:
            found[cell] = within
    corrected = correct(list(tested.values()))
    return found | {cell: one.better for cell, one in zip(tested, corrected, strict=True)}


def interval_over_splits(
    results: Results, cell: Cell, splits: Sequence[int]
) -> tuple[float, float] | None:
    """The 95 % interval of the mean over splits; None unless there are draws on all of them."""
    if not set(splits) <= dict(_splits(results, cell)).keys():
        return None
    low, high = interval(_sampled(results, cell, splits).draws)
    return max(low, 0.0), min(high, 1.0)


def _splits(results: Results, cell: Cell) -> list[tuple[int, Cell]]:
    """The patient splits on which a cell has draws; only its own where that is not the first."""
    cells = on_every_split(cell).items()
    return [(seed, own) for seed, own in cells if _draws(results, own) is not None]


def _seeds(results: Results, cell: Cell, split: int) -> int:
    return len((results.result(dict(_splits(results, cell))[split]) or {})["auc"])


def _draws(results: Results, cell: Cell) -> Draws | None:
    run = results.run(cell)
    return results.draws.get(run.name) if run is not None and run.state == "done" else None


def _sampled(results: Results, cell: Cell, splits: Sequence[int]) -> Sampled:
    """The mean over these splits of a cell that has draws on all of them."""
    by_split = dict(_splits(results, cell))
    found = [_draws(results, by_split[split]) for split in splits]
    vectors = [one.auc for one in found if one is not None]
    size = min(len(vector) for vector in vectors)
    weights = mean_weights("split", splits, size)
    draws = (weights * np.stack([vector[:size] for vector in vectors])).sum(axis=0)
    by_seed: dict[int, list[float]] = {}
    for split in splits:
        result = results.result(by_split[split]) or {}
        for number, auc in enumerate(result["auc"]):
            seed = result["seeds"][number] if "seeds" in result else number
            by_seed.setdefault(seed, []).append(auc)
    means = {seed: float(np.mean(values)) for seed, values in by_seed.items()}
    return Sampled(cell.pretraining.name, means, draws, len(splits))
