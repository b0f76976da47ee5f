"""Scores of predictions: areas under the ROC curve, and their uncertainty. numpy only.

Knows nothing about encoders or protocols: scores and targets in, numbers out. A class that lacks
positives or negatives has no AUC: it is nan, left out of the macro mean and reported as undefined.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

Scores = NDArray[np.float64]  # (rows, classes)
Targets = NDArray[np.uint8]  # (rows, classes)

_AT_ONCE = 20_000_000  # weights of resamples held at a time


def auc_per_class(scores: Scores, targets: Targets) -> NDArray[np.float64]:
    """(classes,) the probability that a positive scores above a negative, ties counting half."""
    positives = targets.astype(bool)
    n_pos = positives.sum(axis=0)
    n_neg = len(targets) - n_pos
    ranks = rankdata(scores, axis=0)
    above = (ranks * positives).sum(axis=0) - n_pos * (n_pos + 1) / 2
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where((n_pos > 0) & (n_neg > 0), above / (n_pos * n_neg), np.nan)


def macro(values: NDArray[np.float64]) -> float:
    """The mean of the defined values; nan where none is."""
    defined = values[~np.isnan(values)]
    return float(defined.mean()) if len(defined) else float("nan")


def by_recording(
    scores: Scores, targets: Targets, recording: NDArray[np.integer]
) -> tuple[Scores, Targets]:
    """Mean score of all frames and leads of each recording, and its labels.

    A label of frames counts for the recording where it covers at least half of it.
    """
    _, place, count = np.unique(recording, return_inverse=True, return_counts=True)
    total = np.zeros((2, len(count), scores.shape[1]))
    np.add.at(total[0], place, scores)
    np.add.at(total[1], place, targets)
    mean = total / count[:, None]
    return mean[0], (mean[1] >= 0.5).astype(np.uint8)


def bootstrap_macro_auc(
    scores: list[Scores],
    targets: Targets,
    patient: NDArray[np.integer],
    *,
    resamples: int = 2000,
    seed: int = 0,
) -> NDArray[np.float64]:
    """(resamples,) the mean over seeds of the macro AUC, with patients drawn anew each time.

    Args:
        scores: One (rows, classes) a seed, of the same rows.
        targets: (rows, classes).
        patient: (rows,) whose row it is: patients, not rows, are what varies between studies.
        resamples: How often.
        seed: Of the drawing.
    """
    people, place = np.unique(patient, return_inverse=True)
    draw = np.random.default_rng(seed)
    shares = np.full(len(people), 1 / len(people))
    values = np.empty(resamples)
    step = max(1, _AT_ONCE // max(len(patient), 1))
    for start in range(0, resamples, step):
        size = min(step, resamples - start)
        weights = draw.multinomial(len(people), shares, size=size).astype(np.float32)
        rows = np.ascontiguousarray(weights[:, place])
        by_class = np.stack(
            [
                np.mean([_weighted_auc(s[:, c], targets[:, c], rows) for s in scores], axis=0)
                for c in range(targets.shape[1])
            ]
        )
        defined = ~np.isnan(by_class)
        total = np.where(defined, by_class, 0).sum(axis=0)
        with np.errstate(invalid="ignore"):
            values[start : start + size] = total / defined.sum(axis=0)
    return values


def _weighted_auc(
    score: NDArray[np.float64], target: NDArray[np.uint8], weights: NDArray[np.float32]
) -> NDArray[np.float64]:
    """(resamples,) AUC of one class where row i counts weights[:, i] times."""
    order = np.argsort(score, kind="stable")
    ordered, positive = score[order], target[order].astype(bool)
    negatives = np.where(positive, np.float32(0), weights[:, order])
    below = np.cumsum(negatives, axis=1, dtype=np.float64)
    total = below[:, -1]
    # ties count half: the mean of the negatives strictly below and of those not above
    first = np.searchsorted(ordered, ordered[positive], side="left") - 1
    last = np.searchsorted(ordered, ordered[positive], side="right") - 1
    under = np.where(first >= 0, below[:, first], 0) + below[:, last]
    own = weights[:, order[positive]]
    with np.errstate(invalid="ignore", divide="ignore"):
        area = (own * under).sum(axis=1) / 2 / (own.sum(axis=1) * total)
    return np.asarray(area, np.float64)
