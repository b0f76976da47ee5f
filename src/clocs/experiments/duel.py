"""What in CLOCS works: every method at its best, and which part of CLOCS makes the gain.

The factorial trains every combination of three factors and three losses. The factors are views of
random leads, views of two segments, and positives of one patient. The effect of a factor is the
mean difference between the encoders that have it and those that differ from them in nothing else,
over the same draws of seeds and patients.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from clocs.evaluation.bootstrap import Comparison, Sampled, correct, more_draws, paired
from clocs.experiments import paper
from clocs.experiments.grid import (
    FACTORIAL_LOSSES,
    FACTORS,
    FORMS,
    VARIANTS,
    Cell,
    Pretraining,
    factor_cell,
    factor_subsets,
    forms,
)
from clocs.experiments.results import Results, Value
from clocs.experiments.tables import Table, TableEntry, entry_of, table_of

FACTOR_TITLES = dict(
    zip(FACTORS, ("random leads", "two segments", "same-patient positives"), strict=True)
)
LOSS_TITLES = dict(zip(FACTORIAL_LOSSES, ("CLOCS", "SimCLR", "BYOL"), strict=True))
_LOSS_PAIRS = (("cmsc", "simclr"), ("cmsc", "byol"), ("simclr", "byol"))


@dataclass(frozen=True)
class Effect:
    """What one choice adds to the AUC on a dataset."""

    dataset: str
    title: str
    comparison: Comparison  # corrected for all main effects
    main: bool  # over all losses; else of one loss


def effects(results: Results) -> list[Effect]:
    """The effects that the results have draws for: of each factor and loss, then of one loss.

    The main effects of both datasets are corrected together; those of one loss are exploratory.
    """
    found: list[Effect] = []
    for dataset in paper.PRETRAIN:
        for factor, title in FACTOR_TITLES.items():
            found += _effect(results, dataset, title, _switched(dataset, factor, FACTORIAL_LOSSES))
            for loss, name in LOSS_TITLES.items():
                pairs = _switched(dataset, factor, [loss])
                found += _effect(results, dataset, f"{title}, {name}", pairs, main=False)
        for one, other in _LOSS_PAIRS:
            pairs = [
                (factor_cell(one, dataset, own), factor_cell(other, dataset, own))
                for own in factor_subsets()
            ]
            title = f"loss of {LOSS_TITLES[one]}, not {LOSS_TITLES[other]}"
            found += _effect(results, dataset, title, pairs)
    corrected = iter(correct([one.comparison for one in found if one.main]))
    return [replace(one, comparison=next(corrected)) if one.main else one for one in found]


def _switched(dataset: str, factor: str, losses: Iterable[str]) -> list[tuple[Cell, Cell]]:
    """Pairs of cells with and without a factor, alike in everything else."""
    return [
        (
            factor_cell(loss, dataset, own),
            factor_cell(loss, dataset, [n for n in own if n != factor]),
        )
        for loss in losses
        for own in factor_subsets()
        if factor in own
    ]


def _effect(
    results: Results,
    dataset: str,
    title: str,
    pairs: Sequence[tuple[Cell, Cell]],
    *,
    main: bool = True,
) -> list[Effect]:
    both = [_mean(results, title, cells) for cells in zip(*pairs, strict=True)]
    if both[0] is None or both[1] is None:
        return []
    return [Effect(dataset, title, paired(both[0], both[1]), main=main)]


def _mean(results: Results, title: str, cells: Sequence[Cell]) -> Sampled | None:
    """The mean of these cells; None unless all have draws."""
    known = [own for cell in cells if (own := results.draws_of(cell)) is not None]
    if len(known) < len(cells):
        return None
    means = np.mean([(results.result(cell) or {})["auc"] for cell in cells], axis=0)
    auc = dict(enumerate(means.tolist()))
    return Sampled(title, auc, more_draws(np.mean(known, axis=0), auc))


def factorial_tables(results: Results, cells: Sequence[Cell]) -> list[Table]:
    """The AUC of every combination, and the effects."""
    pairs = [(loss, dataset) for dataset in paper.PRETRAIN for loss in FACTORIAL_LOSSES]
    columns = [f"{LOSS_TITLES[loss]}, {paper.DATASET_TITLES[dataset]}" for loss, dataset in pairs]
    rows = []
    for own in factor_subsets():
        title = " + ".join(FACTOR_TITLES[name] for name in own) or "none of the three"
        rows.append((title, [factor_cell(*pair, own) for pair in pairs]))
    title = "Linear, F = 0.5, four leads, the same perturbations and steps"
    return [table_of(results, title, rows, cells, ([], columns)), _effect_table(effects(results))]


def _effect_table(found: Sequence[Effect]) -> Table:
    by_title: dict[str, dict[str, Effect]] = {}
    for one in found:
        by_title.setdefault(one.title, {})[one.dataset] = one
    rows = []
    for title, own in by_title.items():
        entries: list[TableEntry | None] = []
        for dataset in paper.PRETRAIN:
            effect = own.get(dataset)
            if effect is None:
                entries += [None, None]
                continue
            c = effect.comparison
            entries.append(TableEntry(ours=Value(c.difference, None), ci95=(c.ci95[0], c.ci95[1])))
            entries.append(TableEntry(ours=Value(c.p_holm, None)) if effect.main else None)
        rows.append((title, entries))
    columns = [
        f"{paper.DATASET_TITLES[dataset]}, {what}"
        for dataset in paper.PRETRAIN
        for what in ("difference", "p, Holm")
    ]
    title = "Mean difference in test AUC; those of one loss are exploratory"
    return Table(title, [], columns, rows)


def forms_tables(results: Results, cells: Sequence[Cell]) -> list[Table]:
    """The forms of each method: AUC on validation patients, which chooses, and on test patients."""
    made = []
    for dataset in paper.PRETRAIN:
        rows = []
        for encoder in (one for method in FORMS for one in forms(method, dataset)):
            cell = Cell(encoder, dataset, "linear")
            entries = [entry_of(results, cell, name) for name in ("auc_validation", "auc")]
            rows.append((form_title(encoder), entries))
        title = f"{paper.DATASET_TITLES[dataset]}, linear, F = 0.5"
        made.append(Table(title, [], ["validation", "test"], rows))
    return made


def form_title(encoder: Pretraining) -> str:
    """The method, and what a form of it has that the paper's has not."""
    words = [encoder.perturb.replace(">", " → ")] if encoder.perturb else []
    words += [VARIANTS[encoder.variant][0]] if encoder.variant else []
    words += [f"{encoder.epochs} epochs"] if encoder.epochs else []
    words += [f"τ_d = {encoder.tau_d:g}"] if encoder.tau_d is not None else []
    words += ["frames of 5 s"] if encoder.segment_frame else []
    return f"{paper.METHOD_TITLES[encoder.method]}: {', '.join(words) or 'as in the paper'}"
