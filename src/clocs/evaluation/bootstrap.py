"""The bootstrap of the macro AUC over seeds and patients, and the one paired test of methods.

With w the weights of the patients in a draw, the AUC of a class and seed is
wᵀ M w / (positives × negatives), where M[p, q] counts how often rows of patient p with the class
score above rows of patient q without it. M is computed once per class and seed, and all draws are
one matrix product. With very many patients, each draw is computed from its rows.

Two methods are compared by their draws, which follow one plan (`Resampling`): a draw has the same
patients and seeds for both, so their difference is what varies. Holm's correction covers the
comparisons made together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import chdtri, ndtri, stdtr
from torch import Tensor

from clocs.errors import SettingError
from clocs.evaluation.classifier_loss import ranks_among
from clocs.evaluation.metrics import Targets
from clocs.evaluation.result import Predictions
from clocs.frames.splits import keys_of
from clocs.kernels.keyed_random import fold, stream, uniform

_BLOCK = 64  # rows of one block are compared pair by pair, those of others by counts per block
_LARGEST = 100_000_000  # cells of M of all seeds; with more, draws are computed from rows
_AT_ONCE = 20_000_000  # rows × draws in memory at a time


def macro_auc_draws(
    scores: NDArray[np.float64],
    targets: Targets,
    patient: NDArray[np.integer],
    plan: Resampling,
    parts: Sequence[NDArray[np.bool_]] = (),
) -> NDArray[np.float64]:
    """(1 + parts, draws) the mean over resampled seeds of the macro AUC on resampled patients.

    Of all rows, and of those in each part. M is computed once for all of these: it has one row for
    what a patient has in the same parts. A class that a draw has no positives or no negatives of is
    left out of its mean; nan where that leaves none.

    Args:
        scores: (seeds, rows, classes).
        targets: (rows, classes).
        patient: (rows,) number of the patient among those of `plan`: patients, not rows, vary
            between studies.
        plan: The weights of seeds and patients.
        parts: (rows,) each, which rows are in it.
    """
    inside = np.stack([np.ones(len(patient), np.bool_), *parts])
    code = patient.astype(np.int64) << len(inside) | (1 << np.arange(len(inside))) @ inside
    _, first, unit = np.unique(code, return_index=True, return_inverse=True)
    units = _Units(unit, patient[first], inside[:, first])
    device = plan.patients[0].device
    by_class = torch.from_numpy(np.ascontiguousarray(scores.transpose(2, 0, 1))).to(device)
    kinds = zip(by_class, targets.T.astype(bool), strict=True)
    # (classes, parts, seeds, draws)
    areas = torch.stack([_class_areas(own, has, units, plan) for own, has in kinds])
    macro = areas.nanmean(dim=0).cpu().numpy()
    return np.asarray((plan.seeds * macro).sum(axis=1))


def interval(draws: NDArray[np.float64]) -> list[float]:
    """The central 95 % of (draws,); of the mean over patient splits of (splits, draws)."""
    if draws.ndim == 1:
        return [float(q) for q in np.nanquantile(draws, [0.025, 0.975])]
    draws = draws[:, ~np.isnan(draws).any(axis=0)][:, :_ENDS]
    if not draws.size:
        return [math.nan, math.nan]
    ends = (brentq(lambda x, q=q: at_most(x, draws).mean() - q, -99, 99) for q in (0.025, 0.975))
    return [float(end) for end in ends]


def at_most(value: float, draws: NDArray[np.float64]) -> NDArray[np.float64]:
    """The probability that the mean over patient splits is at most `value`, in each of the draws.

    The mean follows Student's t around the mean of the splits in (splits, draws), with their
    standard error as its scale: what drawing the splits would approach.
    """
    n = len(draws)
    error = np.maximum(draws.std(axis=0, ddof=1) / math.sqrt(n), 1e-12)
    return np.asarray(stdtr(n - 1, (value - draws.mean(axis=0)) / error))


def clipped_interval(draws: NDArray[np.float64]) -> list[float] | None:
    """The central 95 % of draws of an AUC; None where no draw has one."""
    if np.isnan(draws).all():
        return None
    return [min(max(end, 0.0), 1.0) for end in interval(draws)]  # the weights of seeds know no ends


@dataclass(frozen=True)
class _Units:
    """The rows of a patient that are in the same parts count together."""

    of_row: NDArray[np.int64]  # (rows,)
    patient: NDArray[np.integer]  # (units,)
    inside: NDArray[np.bool_]  # (parts, units)


def _class_areas(scores: Tensor, has: NDArray[np.bool_], units: _Units, plan: Resampling) -> Tensor:
    """(parts, seeds, draws) of scores, (seeds, rows); nan without positives or negatives."""
    device, kinds = scores.device, [np.flatnonzero(has), np.flatnonzero(~has)]
    whose = [np.unique(units.of_row[own], return_inverse=True, return_counts=True) for own in kinds]
    ids, places, counts = (
        [torch.from_numpy(one).to(device) for one in some] for some in zip(*whose, strict=True)
    )
    shape, forms = (len(ids[0]), len(ids[1])), None  # M of each seed
    if 0 < len(scores) * shape[0] * shape[1] <= _LARGEST:
        positive = torch.from_numpy(has).to(device)
        place = torch.empty_like(positive, dtype=torch.int64)  # in `shape`, of each row's unit
        place[positive], place[~positive] = places
        forms = [wins(score, positive, place, shape) for score in scores]
    areas = scores.new_full((len(units.inside), len(scores), plan.resamples), torch.nan)
    people = torch.from_numpy(units.patient).to(device)
    for area, inside in zip(areas, units.inside, strict=True):
        part = torch.from_numpy(inside).to(device)
        rows, columns = (part[some].nonzero()[:, 0] for some in ids)
        if not (len(rows) and len(columns)):
            continue
        if forms is None:
            chosen = [some[inside[units.of_row[some]]] for some in kinds]
            area.copy_(_from_rows(scores, chosen, units.patient[units.of_row], plan))
            continue
        start = 0
        for block in plan.patients:
            above, below = block[:, people[ids[0][rows]]], block[:, people[ids[1][columns]]]
            pairs = [above @ counts[0][rows].float(), below @ counts[1][columns].float()]
            won = [((above @ m[rows][:, columns]).double() * below).sum(dim=1) for m in forms]
            area[:, start : start + len(block)] = torch.stack(won) / (pairs[0].double() * pairs[1])
            start += len(block)
    return areas


def _from_rows(
    scores: Tensor, rows: list[NDArray[np.int64]], patient: NDArray[np.integer], plan: Resampling
) -> Tensor:
    """(seeds, draws) of these positive and negative rows, where M would be too large."""
    own = [torch.from_numpy(one).to(scores.device) for one in rows]
    pairs = list(zip(scores[:, own[0]], scores[:, own[1]], strict=True))
    having, lacking = (torch.from_numpy(patient[one]).to(scores.device) for one in rows)
    step = max(1, _AT_ONCE // sum(map(len, rows)))
    found = [
        torch.stack([weighted_auc(*pair, some[:, having], some[:, lacking]) for pair in pairs])
        for block in plan.patients
        for some in block.split(step)
    ]
    return torch.cat(found, dim=1)


def wins(score: Tensor, positive: Tensor, own: Tensor, shape: tuple[int, int]) -> Tensor:
    """(having, lacking) how often rows of p with the class score above rows of q without it.

    score, positive: (rows,); own: (rows,) the patient's number among those who have the class, or
    among those who lack it; `shape` is how many have it, and lack it.
    """
    ordered, order = torch.sort(score, stable=True)
    kinds = positive[order]
    if not bool(((ordered[1:] == ordered[:-1]) & (kinds[1:] != kinds[:-1])).any()):
        return _below(kinds, own[order], shape)
    # ties count half: the mean of the order that favors positives and the one that does not
    total = torch.zeros(shape, device=score.device)
    for first in (positive, ~positive):
        arranged = torch.cat([torch.nonzero(first)[:, 0], torch.nonzero(~first)[:, 0]])
        order = arranged[torch.sort(score[arranged], stable=True).indices]
        total += _below(positive[order], own[order], shape) / 2
    return total


def _below(positive: Tensor, own: Tensor, shape: tuple[int, int]) -> Tensor:
    """Rows in ascending order -> how often negatives of q precede positives of p, as `wins`.

    Earlier blocks by one matrix product of counts, rows of the same block pair by pair. Counts are
    integers far below 2²⁴, which float32 holds exactly.
    """
    rows = torch.arange(len(own), device=own.device)
    block, blocks = rows // _BLOCK, -(-len(own) // _BLOCK)
    tables = []
    for kind, people in ((positive, shape[0]), (~positive, shape[1])):
        table = torch.zeros(blocks * people, device=own.device)
        at = block[kind] * people + own[kind]
        tables.append(table.scatter_add_(0, at, torch.ones_like(at, dtype=table.dtype)))
    having, lacking = (table.view(blocks, -1) for table in tables)
    total = having.T @ (lacking.cumsum(dim=0) - lacking)
    short = blocks * _BLOCK - len(own)
    kinds = torch.nn.functional.pad(positive.to(torch.int8), (0, short), value=-1)
    kinds = kinds.view(blocks, _BLOCK)
    later = torch.ones(_BLOCK, _BLOCK, dtype=torch.bool, device=own.device).tril(-1)
    pairs = torch.nonzero((kinds == 1)[:, :, None] & (kinds == 0)[:, None, :] & later)
    above, below = own[pairs[:, 0] * _BLOCK + pairs[:, 1]], own[pairs[:, 0] * _BLOCK + pairs[:, 2]]
    at = above * shape[1] + below
    total.view(-1).scatter_add_(0, at, torch.ones_like(at, dtype=total.dtype))
    return total


def weighted_auc(
    positives: Tensor, negatives: Tensor, positive_weights: Tensor, negative_weights: Tensor
) -> Tensor:
    """(resamples,) AUC where each row counts as often as its weight says; ties count half.

    positives: (n,) scores, positive_weights: (resamples, n); negatives alike.
    """
    ordered, order = negatives.sort()
    below = negative_weights[:, order].double().cumsum(dim=1)
    below = torch.nn.functional.pad(below, (1, 0))
    own = positive_weights.double()
    first, last = ranks_among(ordered, positives)
    above = (own * (below[:, first] + below[:, last])).sum(dim=1) / 2
    return above / (own.sum(dim=1) * below[:, -1])


_DRAWS = 1000  # draws made at once; part of the plan
_ENDS = 2000  # draws for the ends of intervals over patient splits
_PATIENTS = 10_000  # drawn at once
_POISSON = tuple(accumulate(math.exp(-1) / math.factorial(k) for k in range(18)))  # P(weight ≤ k)


@dataclass(frozen=True)
class Resampling:
    """The weights of some patients and seeds in the first draws of the plan."""

    patients: list[Tensor]  # blocks of draws: (draws, patients) float32 each
    seeds: NDArray[np.float64]  # (seeds, draws), adding up to 1 in every draw

    @classmethod
    def of(
        cls,
        dataset: str,
        patient_ids: Sequence[str],
        seeds: Sequence[int],
        *,
        resamples: int,
        device: torch.device | str = "cpu",
    ) -> Resampling:
        """The plan for these patients and seeds; more `resamples` leave the first as they are."""
        check_resamples(resamples)
        weights = mean_weights(seeds, resamples)
        return cls(patient_weights(dataset, patient_ids, resamples, device), weights)

    @property
    def resamples(self) -> int:
        return int(self.seeds.shape[1])


def check_resamples(resamples: int) -> None:
    """SettingError where there cannot be as many draws; asked before anything is computed."""
    if resamples < 0:
        raise SettingError(f"`resamples` is {resamples}; give 0 or more")


def patient_weights(
    dataset: str, patient_ids: Sequence[str], resamples: int, device: torch.device | str = "cpu"
) -> list[Tensor]:
    """How often each patient counts: blocks of (draws, patients) whole numbers in float32."""
    names = keys_of(f"{dataset}:{patient}" for patient in patient_ids).view(np.int64)
    keys = fold(torch.from_numpy(names.copy()).to(device), stream("patient"))
    table = torch.tensor(_POISSON, dtype=torch.float64, device=device)
    blocks = []
    for number, start in enumerate(range(0, resamples, _DRAWS)):
        size = min(_DRAWS, resamples - start)
        counts = [
            torch.bucketize(uniform(some, size), table, right=True).float().T
            for some in fold(keys, number).split(_PATIENTS)
        ]
        blocks.append(torch.cat(counts, dim=1).contiguous())
    return blocks


def mean_weights(seeds: Sequence[int], resamples: int) -> NDArray[np.float64]:
    """(seeds, draws) weights of a mean over seeds.

    With one value per seed, the weighted means of all draws are distributed as Student's t around
    the plain mean, with the scale of its standard error; a single seed has weight 1.
    """
    n = len(seeds)
    if n < 2:
        return np.ones((n, resamples))
    keys = fold(torch.tensor(list(seeds)), stream("seed"))
    normal = ndtri(_open_uniform(keys, resamples))
    normal -= normal.mean(axis=0)
    spread = _open_uniform(fold(torch.zeros(1, dtype=torch.int64), stream("seeds")), resamples)
    chi_square = chdtri(n - 1, spread[0])  # with n − 1 degrees of freedom
    weights: NDArray[np.float64] = 1 / n + normal / np.sqrt(n * chi_square)
    return weights


def more_draws(draws: NDArray[np.float64], auc: Mapping[int, float]) -> NDArray[np.float64]:
    """(draws,) of a method -> 50,000 draws, of which these are the first; auc: by seed.

    A draw is the weighted mean of the seeds on all patients, and what resampling the patients adds
    to it. The weights of seeds have heavy tails, so that p needs many of them; of the patients the
    same draws are used again.
    """
    means = np.array([*auc.values()]) @ _many_weights(*auc)
    return np.asarray(means + np.resize(draws - means[: len(draws)], means.shape))


@cache
def _many_weights(*seeds: int) -> NDArray[np.float64]:
    return mean_weights(seeds, 50_000)


def _open_uniform(keys: Tensor, count: int) -> NDArray[np.float64]:
    """keys: (n,) -> (n, count) uniform in (0, 1)."""
    draws: NDArray[np.float64] = uniform(keys, count).numpy()
    return draws + 2.0**-54


ALPHA = 0.05


@dataclass(frozen=True)
class Sampled:
    """The macro AUC per frame of one method, and its draws."""

    name: str
    auc: Mapping[int, float]  # by seed
    draws: NDArray[np.float64]  # (draws,), or (splits, draws) where there are several
    splits: int = 1  # patient splits that `auc` is a mean of


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


def enough(resamples: int, comparisons: int) -> int:
    """So many draws that the smallest p, 2 / (draws + 1), stays significant after correction."""
    return max(resamples, 50 * comparisons)


def draws_of(
    p: Predictions,
    resamples: int,
    device: torch.device | str = "cpu",
    parts: Sequence[NDArray[np.bool_]] = (),
) -> NDArray[np.float64]:
    """(1 + parts, draws) as `macro_auc_draws`."""
    about = p.downstream, p.patient_ids, p.seeds
    plan = Resampling.of(*about, resamples=resamples, device=device)
    return macro_auc_draws(p.probabilities, p.targets, p.patient, plan, parts)


def paired(a: Sampled, b: Sampled) -> Comparison:
    """Compare two methods by the draws that both have, without correction."""
    most = min(a.draws.shape[-1], b.draws.shape[-1])
    differences = a.draws[..., :most] - b.draws[..., :most]
    if differences.ndim > 1:
        # with two standard errors of the draws: others would hardly move p below 0.05
        below = at_most(0.0, differences)
        error = float(np.nanstd(below)) / math.sqrt(most)
        p = min(1.0, 2 * (min(float(np.nanmean(one)) for one in (below, 1 - below)) + 2 * error))
    else:  # the observed sample counts as a draw: p is never 0
        differences = differences[~np.isnan(differences)]
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
        ci95=interval(differences) if differences.size else [float("nan")] * 2,
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
