"""The one paired test of methods: over seeds and patients together, with Holm's correction.

Two methods are compared by their draws of the bootstrap, which follow one plan (`resampling`): a
draw has the same patients and seeds for both, so their difference is what varies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from clocs.errors import SettingError
from clocs.evaluation import metrics
from clocs.evaluation.bootstrap import Resampling, interval, macro_auc_draws
from clocs.evaluation.result import Predictions, shared_rows

ALPHA = 0.05


@dataclass(frozen=True)
class Sampled:
    """The macro AUC per frame of one method, and its draws."""

    name: str
    auc: Mapping[int, float]  # by seed
    draws: NDArray[np.float64]  # (draws,)
    splits: int = 1  # patient splits that `auc` and `draws` are means of


@dataclass(frozen=True)
class Comparison:
    """Method a against method b by the seed-mean macro AUC per frame."""

    a: str
    b: str
    auc_a: float
    auc_b: float
    difference: float  # a − b
    ci95: list[float]  # of the difference, over seeds and patients, the same draws for both
    p: float  # two-sided, over those draws
    p_holm: float  # after Holm's correction for all comparisons made together
    seeds_for_a: int  # shared seeds for which a is above b
    seeds: int  # shared seeds
    splits: int = 1  # patient splits

    @property
    def better(self) -> bool:
        """Whether a is better than b, after correction."""
        return self.difference > 0 and self.p_holm < ALPHA

    @property
    def verdict(self) -> str:
        """'above', 'below' or 'not distinguishable', after correction."""
        if self.p_holm >= ALPHA or not self.difference:
            return "not distinguishable"
        return "above" if self.difference > 0 else "below"

    def json(self) -> dict[str, Any]:
        return asdict(self) | {"better": self.better, "verdict": self.verdict}


def compare(
    a: Predictions,
    b: Predictions,
    *,
    resamples: int = 2000,
    device: torch.device | str = "cpu",
) -> Comparison:
    """One paired comparison, without correction."""
    return compare_all([a, b], resamples=resamples, device=device)[0]


def compare_all(
    methods: Sequence[Predictions],
    pairs: Sequence[tuple[int, int]] | None = None,
    *,
    resamples: int = 2000,
    device: torch.device | str = "cpu",
) -> list[Comparison]:
    """Compare pairs of methods on one test part, corrected for their number.

    Args:
        methods: Their predictions.
        pairs: Indices into `methods`; all pairs where None.
        resamples: Draws of seeds and patients, the same for every method; more where pairs are
            many.
        device: Where to compute.
    """
    if resamples < 1:
        raise SettingError("a paired test needs `resamples` of patients; give at least 1")
    pairs = list(combinations(range(len(methods)), 2)) if pairs is None else list(pairs)
    if not pairs:
        return []
    resamples = enough(resamples, len(pairs))
    needed = sorted({number for pair in pairs for number in pair})
    rows = dict(zip(needed, shared_rows([methods[number] for number in needed]), strict=True))
    sampled = {
        number: Sampled(one.name, _by_seed(one), draws_of(one, plan_of(one, resamples, device)))
        for number, one in rows.items()
    }
    return correct([paired(sampled[i], sampled[j]) for i, j in pairs])


def enough(resamples: int, comparisons: int) -> int:
    """So many draws that the smallest p, 2 / (draws + 1), stays significant after correction."""
    return max(resamples, 50 * comparisons)


def plan_of(p: Predictions, resamples: int, device: torch.device | str = "cpu") -> Resampling:
    """The part of the plan for these predictions."""
    return Resampling.of(p.downstream, p.patient_ids, p.seeds, resamples=resamples, device=device)


def draws_of(p: Predictions, plan: Resampling) -> NDArray[np.float64]:
    """(draws,) of the macro AUC per frame."""
    return macro_auc_draws(p.probabilities, p.targets, p.patient, plan)


def paired(a: Sampled, b: Sampled) -> Comparison:
    """Compare two methods by the draws that both have, without correction."""
    most = min(len(a.draws), len(b.draws))
    differences = a.draws[:most] - b.draws[:most]
    differences = differences[~np.isnan(differences)]
    # the observed sample counts as a draw: p is never 0
    tails = [(int((differences <= 0).sum()) + 1), (int((differences >= 0).sum()) + 1)]
    p = min(1.0, 2 * min(tails) / (len(differences) + 1))
    both = a.auc.keys() & b.auc.keys()
    means = [float(np.mean(list(one.auc.values()))) for one in (a, b)]
    return Comparison(
        a=a.name,
        b=b.name,
        auc_a=means[0],
        auc_b=means[1],
        difference=means[0] - means[1],
        ci95=interval(differences) if len(differences) else [float("nan")] * 2,
        p=p,
        p_holm=p,
        seeds_for_a=sum(a.auc[seed] > b.auc[seed] for seed in both),
        seeds=len(both),
        splits=min(a.splits, b.splits),
    )


def correct(found: Sequence[Comparison]) -> list[Comparison]:
    """The same comparisons, corrected for being made together."""
    corrected = holm([one.p for one in found])
    return [replace(one, p_holm=p) for one, p in zip(found, corrected, strict=True)]


def holm(pvalues: Sequence[float]) -> list[float]:
    """Holm's correction: the i-th smallest of n p values times n − i + 1, never decreasing."""
    p = np.asarray(pvalues, np.float64)
    order = np.argsort(p, kind="stable")
    scaled = np.maximum.accumulate(p[order] * (len(p) - np.arange(len(p))))
    corrected = np.empty_like(p)
    corrected[order] = np.minimum(scaled, 1.0)
    return [float(value) for value in corrected]


def _by_seed(predictions: Predictions) -> dict[int, float]:
    return {
        seed: metrics.macro(metrics.auc_per_class(scores, predictions.targets))
        for seed, scores in zip(predictions.seeds, predictions.probabilities, strict=True)
    }
