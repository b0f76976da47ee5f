"""A bootstrap of the macro AUC over patients: how much scores would vary with other patients.

With w the weights of the patients in a resample, the AUC of a class is
wᵀ M w / (positives × negatives), where M[p, q] counts how often rows of patient p with the class
score above rows of patient q without it. M is computed once per class and seed; seeds share the
denominator, so their M add up, and all resamples are one matrix product.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clocs.evaluation.device_auc import weighted_auc
from clocs.evaluation.metrics import Targets

_BLOCK = 64  # rows of one block are compared pair by pair, those of others by counts per block
_LARGEST = 60_000_000  # cells of M; with more patients, each resample is computed from its rows
_AT_ONCE = 20_000_000  # patients × resamples in memory at a time


def macro_auc_draws(
    scores: NDArray[np.float64],
    targets: Targets,
    patient: NDArray[np.integer],
    *,
    resamples: int = 2000,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> NDArray[np.float64]:
    """(resamples,) the mean over seeds of the macro AUC, on patients resampled with replacement.

    Args:
        scores: (seeds, rows, classes).
        targets: (rows, classes).
        patient: (rows,) number of the patient: patients, not rows, vary between studies.
        resamples: How many.
        seed: The same seed and patients give the same resamples.
        device: Where to compute.
    """
    people, place = np.unique(patient, return_inverse=True)
    draw = np.random.default_rng(seed)
    shares = np.full(len(people), 1 / len(people))
    by_class = np.ascontiguousarray(scores.transpose(2, 0, 1))
    arrays = by_class, np.ascontiguousarray(targets.T).astype(bool), place
    every, positive, number = (torch.from_numpy(array).to(device) for array in arrays)
    forms = [_Form(own, has, number) for own, has in zip(every, positive, strict=True)]
    values = np.empty(resamples)
    step = max(1, _AT_ONCE // max(len(people), 1))
    for start in range(0, resamples, step):
        size = min(step, resamples - start)
        weights = torch.from_numpy(
            draw.multinomial(len(people), shares, size=size).astype(np.float32)
        ).to(device)
        areas = torch.stack([form.areas(weights) for form in forms]).cpu().numpy()
        defined = ~np.isnan(areas)
        with np.errstate(invalid="ignore"):
            total = np.where(defined, areas, 0).sum(axis=0)
            values[start : start + size] = total / defined.sum(axis=0)
    return values


def interval(draws: NDArray[np.float64]) -> list[float]:
    """The central 95 % of the draws."""
    return [float(q) for q in np.nanquantile(draws, [0.025, 0.975])]


class _Form:
    """The quadratic form of one class: patients' weights -> the mean AUC over seeds."""

    def __init__(self, scores: Tensor, positive: Tensor, place: Tensor) -> None:
        """scores: (seeds, rows); positive, place: (rows,)."""
        self.scores, self.positive, self.place = scores, positive, place
        self.wins: Tensor | None = None
        self.has, self.counts_pos = _counted(place[positive])
        self.lacks, self.counts_neg = _counted(place[~positive])
        if 0 < len(self.has) * len(self.lacks) <= _LARGEST:
            shape = len(self.has), len(self.lacks)
            self.wins = torch.zeros(shape, device=place.device)
            own = torch.empty_like(place)  # number among those with, or without, the class
            own[positive] = torch.searchsorted(self.has, place[positive])
            own[~positive] = torch.searchsorted(self.lacks, place[~positive])
            for score in scores:
                self.wins += wins(score, positive, own, shape)

    def areas(self, weights: Tensor) -> Tensor:
        """weights: (resamples, patients) -> (resamples,), nan without positives or negatives."""
        has, lacks = weights[:, self.has], weights[:, self.lacks]
        pairs = (has @ self.counts_pos).double() * (lacks @ self.counts_neg).double()
        if self.wins is not None:
            above = ((has @ self.wins).double() * lacks).sum(dim=1)
            return above / (len(self.scores) * pairs)
        if not len(self.has) or not len(self.lacks):
            return torch.full_like(pairs, torch.nan)
        pieces = weights.split(max(1, _AT_ONCE // len(self.place)))
        rows = [
            torch.stack([self._from_rows(s, w) for s in self.scores]).mean(dim=0) for w in pieces
        ]
        return torch.cat(rows)

    def _from_rows(self, score: Tensor, weights: Tensor) -> Tensor:
        rows = weights[:, self.place]
        has, lacks = self.positive, ~self.positive
        return weighted_auc(score[has], score[lacks], rows[:, has], rows[:, lacks])


def wins(score: Tensor, positive: Tensor, own: Tensor, shape: tuple[int, int]) -> Tensor:
    """(having, lacking) how often rows of p with the class score above rows of q without it.

    score, positive: (rows,); own: (rows,) the patient's number among those who have the class, or
    among those who lack it; `shape` is how many have it, and lack it.
    """
    ordered, order = torch.sort(score, stable=True)
    kinds = positive[order]
    if not bool(((ordered[1:] == ordered[:-1]) & (kinds[1:] != kinds[:-1])).any()):
        return _below(kinds, own[order], shape)
    # ties count half: the mean of the order that favours positives and the one that does not
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


def _counted(place: Tensor) -> tuple[Tensor, Tensor]:
    people, counts = torch.unique(place, return_counts=True)
    return people, counts.float()
