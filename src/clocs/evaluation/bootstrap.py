"""How far scores would move with other patients: a bootstrap of the macro AUC over patients.

With patients as weights w, the AUC of a class is wᵀ M w / (positives × negatives), where M[p, q]
counts how often rows of patient p that have the class score above rows of q that have not. M is
made once a class and seed; seeds share their denominators, so their M add up, and all resamples are
one matrix product. Knows nothing about encoders or protocols.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clocs.evaluation.device_auc import weighted_auc
from clocs.evaluation.metrics import Targets

_BLOCK = 64  # rows that are compared one by one; further ones by the counts of whole blocks
_LARGEST = (
    60_000_000  # cells of M held; with more patients, resamples are walked through one by one
)
_AT_ONCE = 20_000_000  # numbers of resamples held at a time


def macro_auc_draws(
    scores: NDArray[np.float64],
    targets: Targets,
    patient: NDArray[np.integer],
    *,
    resamples: int = 2000,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> NDArray[np.float64]:
    """(resamples,) the mean over seeds of the macro AUC, with patients drawn anew each time.

    Args:
        scores: (seeds, rows, classes).
        targets: (rows, classes).
        patient: (rows,) whose row it is: patients, not rows, are what varies between studies.
        resamples: How often.
        seed: Of the drawing: the same seed and patients give the same resamples.
        device: Where.
    """
    people, place = np.unique(patient, return_inverse=True)
    draw = np.random.default_rng(seed)
    shares = np.full(len(people), 1 / len(people))
    forms = [
        _Form.of(scores[:, :, c], targets[:, c].astype(bool), place, torch.device(device))
        for c in range(targets.shape[1])
    ]
    values = np.empty(resamples)
    step = max(1, _AT_ONCE // max(len(people), 1))
    for start in range(0, resamples, step):
        size = min(step, resamples - start)
        weights = torch.from_numpy(
            draw.multinomial(len(people), shares, size=size).astype(np.float32)
        ).to(device)
        by_class = torch.stack([form.areas(weights) for form in forms]).cpu().numpy()
        defined = ~np.isnan(by_class)
        with np.errstate(invalid="ignore"):
            total = np.where(defined, by_class, 0).sum(axis=0)
            values[start : start + size] = total / defined.sum(axis=0)
    return values


def interval(draws: NDArray[np.float64]) -> list[float]:
    """The middle 95 % of the draws."""
    return [float(q) for q in np.nanquantile(draws, [0.025, 0.975])]


class _Form:
    """The quadratic form of one class: patients' weights -> the mean AUC over seeds."""

    def __init__(self, scores: Tensor, positive: Tensor, place: Tensor) -> None:
        self.scores, self.positive, self.place = scores, positive, place
        self.wins: Tensor | None = None
        self.has, self.counts_pos = _counted(place[positive])
        self.lacks, self.counts_neg = _counted(place[~positive])

    @classmethod
    def of(
        cls,
        scores: NDArray[np.float64],
        positive: NDArray[np.bool_],
        place: NDArray[np.int64],
        device: torch.device,
    ) -> _Form:
        """scores: (seeds, rows); positive, place: (rows,)."""
        form = cls(
            torch.from_numpy(np.ascontiguousarray(scores)).to(device),
            torch.from_numpy(positive).to(device),
            torch.from_numpy(place).to(device),
        )
        if 0 < len(form.has) * len(form.lacks) <= _LARGEST:
            shape = len(form.has), len(form.lacks)
            form.wins = torch.zeros(shape, device=device)
            own = torch.empty_like(form.place)  # numbered among those who have, or lack, the class
            own[form.positive] = torch.searchsorted(form.has, form.place[form.positive])
            own[~form.positive] = torch.searchsorted(form.lacks, form.place[~form.positive])
            for score in form.scores:
                form.wins += wins(score, form.positive, own, shape)
        return form

    def areas(self, weights: Tensor) -> Tensor:
        """weights: (resamples, patients) -> (resamples,), nan where a kind is missing."""
        has, lacks = weights[:, self.has], weights[:, self.lacks]
        pairs = (has @ self.counts_pos).double() * (lacks @ self.counts_neg).double()
        if self.wins is not None:
            above = ((has @ self.wins).double() * lacks).sum(dim=1)
            return above / (len(self.scores) * pairs)
        if not len(self.has) or not len(self.lacks):
            return torch.full_like(pairs, torch.nan)
        pieces = weights.split(max(1, _AT_ONCE // len(self.place)))
        rows = [torch.stack([self._walked(s, w) for s in self.scores]).mean(dim=0) for w in pieces]
        return torch.cat(rows)

    def _walked(self, score: Tensor, weights: Tensor) -> Tensor:
        rows = weights[:, self.place]
        has, lacks = self.positive, ~self.positive
        return weighted_auc(score[has], score[lacks], rows[:, has], rows[:, lacks])


def wins(score: Tensor, positive: Tensor, own: Tensor, shape: tuple[int, int]) -> Tensor:
    """How often rows of p with the class score above rows of q without: (having, lacking).

    Args:
        score: (rows,).
        positive: (rows,) who has the class.
        own: (rows,) the patient's number among those who have it, or among those who lack it.
        shape: How many of each.
    """
    ordered, order = torch.sort(score, stable=True)
    kinds = positive[order]
    if not bool(((ordered[1:] == ordered[:-1]) & (kinds[1:] != kinds[:-1])).any()):
        return _below(kinds, own[order], shape)
    # ties count half: the mean of an order in which they are won and one in which they are lost
    total = torch.zeros(shape, device=score.device)
    for first in (positive, ~positive):
        arranged = torch.cat([torch.nonzero(first)[:, 0], torch.nonzero(~first)[:, 0]])
        order = arranged[torch.sort(score[arranged], stable=True).indices]
        total += _below(positive[order], own[order], shape) / 2
    return total


def _below(positive: Tensor, own: Tensor, shape: tuple[int, int]) -> Tensor:
    """Rows in rising order -> for each pair of patients, negatives that come before positives.

    Earlier blocks by one matrix product of counts, rows of the same block pair by pair. Counts are
    whole numbers far below 2²⁴: float32 holds them exactly.
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
