"""What in CLOCS works: every method at its best, and which part of CLOCS makes the gain.

The factorial trains every combination of three factors and three losses. The factors are views of
random leads, views of two segments, and positives of one patient. The effect of a factor is the
mean difference between the encoders that have it and those that differ from them in nothing else,
over the same draws of seeds and patients.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TypeAlias

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
from clocs.experiments.ledger import Draws
from clocs.experiments.results import Results, Value
from clocs.experiments.tables import Table, TableEntry, entry_of, table_of

FACTOR_TITLES = dict(
    zip(FACTORS, ("random leads", "two segments", "same-patient positives"), strict=True)
)
LOSS_TITLES = dict(zip(FACTORIAL_LOSSES, ("CLOCS", "SimCLR", "BYOL"), strict=True))
_LOSS_PAIRS = (("cmsc", "simclr"), ("cmsc", "byol"), ("simclr", "byol"))

Choice: TypeAlias = tuple[str, str, tuple[str, ...]]  # a loss, a dataset and some of `FACTORS`
Drawn: TypeAlias = Mapping[Choice, tuple[Sequence[float], Draws]]  # AUC by seed, and draws
_Pairs: TypeAlias = list[tuple[Choice, Choice]]


@dataclass(frozen=True)
class Effect:
    """What one choice adds to the AUC on a dataset."""

    dataset: str
    title: str
    comparison: Comparison  # corrected for all main effects
    main: bool  # over all losses; else of one loss


def drawn_in(results: Results) -> Drawn:
    """What the results have draws for."""
    made = {}
    for choice in product(FACTORIAL_LOSSES, paper.PRETRAIN, factor_subsets()):
        cell = factor_cell(*choice)
        if (draws := results.draws_of(cell)) is not None:
            made[choice] = ((results.result(cell) or {})["auc"], draws)
    return made


def effects(drawn: Drawn) -> list[Effect]:
    """The effects whose combinations all have draws: of each factor and loss, then of one loss.

    The main effects of both datasets are corrected together; those of one loss are exploratory.
    """
    found: list[Effect] = []
    for dataset in paper.PRETRAIN:
        for factor, title in FACTOR_TITLES.items():
            found += _effect(drawn, title, _switched(factor, dataset, FACTORIAL_LOSSES))
            for loss, name in LOSS_TITLES.items():
                pairs = _switched(factor, dataset, [loss])
                found += _effect(drawn, f"{title}, {name}", pairs, main=False)
        for one, other in _LOSS_PAIRS:
            pairs = [((one, dataset, own), (other, dataset, own)) for own in factor_subsets()]
            title = f"loss of {LOSS_TITLES[one]}, not {LOSS_TITLES[other]}"
            found += _effect(drawn, title, pairs)
    corrected = iter(correct([one.comparison for one in found if one.main]))
    return [replace(one, comparison=next(corrected)) if one.main else one for one in found]


def _switched(factor: str, dataset: str, losses: Iterable[str]) -> _Pairs:
    """Choices with and without a factor, alike in everything else."""
    return [
        ((loss, dataset, own), (loss, dataset, tuple(name for name in own if name != factor)))
        for loss in losses
        for own in factor_subsets()
        if factor in own
    ]


def _effect(drawn: Drawn, title: str, pairs: _Pairs, *, main: bool = True) -> list[Effect]:
    both = [_mean(drawn, title, choices) for choices in zip(*pairs, strict=True)]
    if both[0] is None or both[1] is None:
        return []
    return [Effect(pairs[0][0][1], title, paired(both[0], both[1]), main=main)]


def _mean(drawn: Drawn, title: str, choices: Sequence[Choice]) -> Sampled | None:
    """The mean of these choices; None unless all have draws."""
    known = [drawn[choice] for choice in choices if choice in drawn]
    if len(known) < len(choices):
        return None
    means, draws = (np.mean(part, axis=0) for part in zip(*known, strict=True))
    auc = dict(enumerate(means.tolist()))
    return Sampled(title, auc, more_draws(draws, auc))


def combination(chosen: Sequence[str]) -> str:
    """The factors of a choice in words."""
    return " + ".join(FACTOR_TITLES[name] for name in chosen) or "none of the three"


def factorial_tables(results: Results, cells: Sequence[Cell]) -> list[Table]:
    """The AUC of every combination, and the effects."""
    pairs = [(loss, dataset) for dataset in paper.PRETRAIN for loss in FACTORIAL_LOSSES]
    columns = [f"{LOSS_TITLES[loss]}, {paper.DATASET_TITLES[dataset]}" for loss, dataset in pairs]
    rows = [
        (combination(own), [factor_cell(*pair, own) for pair in pairs]) for own in factor_subsets()
    ]
    title = "Linear, F = 0.5, four leads, the same perturbations and steps"
    made = table_of(results, title, rows, cells, ([], columns))
    return [made, effect_table(effects(drawn_in(results)))]


def effect_table(found: Sequence[Effect]) -> Table:
    """The effects by dataset, with intervals; p of those that are corrected together."""
    known, rows = {(one.title, one.dataset): one for one in found}, []
    for title in dict.fromkeys(one.title for one in found):
        entries: list[TableEntry | None] = []
        for dataset in paper.PRETRAIN:
            effect = known.get((title, dataset))
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
