"""Paired tests of methods on the same patients, with Holm's correction.

Seeds are averaged and held fixed; what varies is which patients are in the test part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from clocs.errors import SettingError
from clocs.evaluation import metrics
from clocs.evaluation.bootstrap import interval, macro_auc_draws
from clocs.evaluation.predictions import Predictions, shared_rows

ALPHA = 0.05


@dataclass(frozen=True)
class Comparison:
    """Method a against method b by the seed-mean macro AUC per frame."""

    a: str
    b: str
    auc_a: float
    auc_b: float
    difference: float  # a − b
    ci95: list[float]  # of the difference, on the same resamples of patients for both
    p: float  # two-sided, over resamples of patients
    p_holm: float  # after Holm's correction for all comparisons made together
    seeds_for_a: int  # shared seeds for which a is above b
    seeds: int  # shared seeds

    @property
    def better(self) -> bool:
        """Whether a is better than b, after correction."""
        return self.difference > 0 and self.p_holm < ALPHA

    def json(self) -> dict[str, Any]:
        return asdict(self) | {"better": self.better}


def compare(
    a: Predictions,
    b: Predictions,
    *,
    resamples: int = 2000,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> Comparison:
    """One paired comparison, without correction."""
    return compare_all([a, b], resamples=resamples, seed=seed, device=device)[0]


def compare_all(
    methods: Sequence[Predictions],
    pairs: Sequence[tuple[int, int]] | None = None,
    *,
    resamples: int = 2000,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> list[Comparison]:
    """Compare pairs of methods on one test part, corrected for their number.

    Args:
        methods: Their predictions.
        pairs: Indices into `methods`; all pairs where None.
        resamples: Resamples of patients, the same for every method; more where pairs are many.
        seed: Random seed of the resamples.
        device: Where to compute.
    """
    if resamples < 1:
        raise SettingError("a paired test needs `resamples` of patients; give at least 1")
    pairs = list(combinations(range(len(methods)), 2)) if pairs is None else list(pairs)
    if not pairs:
        return []
    # the smallest p is 2 / (resamples + 1): with too few, nothing could stay significant
    resamples = max(resamples, 200 * len(pairs))
    needed = sorted({number for pair in pairs for number in pair})
    rows = dict(zip(needed, shared_rows([methods[number] for number in needed]), strict=True))
    draws = {
        number: macro_auc_draws(
            p.probabilities, p.targets, p.patient, resamples=resamples, seed=seed, device=device
        )
        for number, p in rows.items()
    }
    aucs = {number: _by_seed(p) for number, p in rows.items()}
    found = [_compared(rows[i], rows[j], aucs[i], aucs[j], draws[i] - draws[j]) for i, j in pairs]
    return correct(found)


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


def _compared(
    a: Predictions,
    b: Predictions,
    auc_a: dict[int, float],
    auc_b: dict[int, float],
    differences: NDArray[np.float64],
) -> Comparison:
    differences = differences[~np.isnan(differences)]
    # the observed sample counts as a resample: p is never 0
    tails = [(int((differences <= 0).sum()) + 1), (int((differences >= 0).sum()) + 1)]
    p = min(1.0, 2 * min(tails) / (len(differences) + 1))
    both = auc_a.keys() & auc_b.keys()
    means = [float(np.mean(list(auc.values()))) for auc in (auc_a, auc_b)]
    return Comparison(
        a=a.name,
        b=b.name,
        auc_a=means[0],
        auc_b=means[1],
        difference=means[0] - means[1],
        ci95=interval(differences) if len(differences) else [float("nan")] * 2,
        p=p,
        p_holm=p,
        seeds_for_a=sum(auc_a[seed] > auc_b[seed] for seed in both),
        seeds=len(both),
    )
