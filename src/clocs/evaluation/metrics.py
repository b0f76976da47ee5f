"""Metrics of predictions: AUC, average precision, thresholds, F1, accuracy. numpy only.

A class without positives or without negatives has no AUC: it is nan and left out of the macro mean.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Scores = NDArray[np.float64]  # (rows, classes)
Targets = NDArray[np.uint8]  # (rows, classes)


def auc(positives: NDArray[np.floating], negatives: NDArray[np.floating]) -> float:
    """The probability that a positive scores above a negative, ties counting half.

    nan where there are no positives, no negatives, or scores that are nan.
    """
    ordered, own = np.sort(negatives), np.sort(positives)  # nan last
    if not len(own) or not len(ordered) or np.isnan(own[-1]) or np.isnan(ordered[-1]):
        return float("nan")
    below = sum(int(np.searchsorted(ordered, own, side).sum()) for side in ("left", "right"))
    return below / 2 / (len(positives) * len(negatives))


def auc_per_class(scores: Scores, targets: Targets) -> NDArray[np.float64]:
    """(classes,) the AUC of each class against the rest."""
    kinds = zip(scores.T, targets.T.astype(bool), strict=True)
    return np.array([auc(score[has], score[~has]) for score, has in kinds])


def macro(values: NDArray[np.float64]) -> float:
    """The mean of the defined values; nan where none is."""
    defined = values[~np.isnan(values)]
    return float(defined.mean()) if len(defined) else float("nan")


def average_precision(scores: Scores, targets: Targets) -> NDArray[np.float64]:
    """(classes,) Σ (recall gained) × precision, from the highest score down, ties together."""
    values = np.full(targets.shape[1], np.nan)
    for c in _with_positives_and_negatives(targets):
        _, hits, chosen = _cuts(scores[:, c], targets[:, c])
        gained = np.diff(hits, prepend=0)
        values[c] = (gained * hits / chosen).sum() / hits[-1]
    return values


def best_thresholds(scores: Scores, targets: Targets) -> NDArray[np.float64]:
    """(classes,) the threshold with the highest F1; nan where none exists."""
    values = np.full(targets.shape[1], np.nan)
    for c in _with_positives_and_negatives(targets):
        cuts, hits, chosen = _cuts(scores[:, c], targets[:, c])
        values[c] = cuts[np.argmax(2 * hits / (chosen + hits[-1]))]
    return values


def f1_per_class(
    scores: Scores, targets: Targets, thresholds: NDArray[np.float64]
) -> NDArray[np.float64]:
    """(classes,) F1 at the thresholds; nan where a class is missing."""
    predicted, true = scores >= thresholds, targets.astype(bool)  # nothing is at or above nan
    hits = (predicted & true).sum(axis=0)
    defined = ~np.isnan(thresholds) & true.any(axis=0) & ~true.all(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(defined, 2 * hits / (predicted.sum(axis=0) + true.sum(axis=0)), np.nan)


def accuracy(
    scores: Scores, targets: Targets, thresholds: NDArray[np.float64], *, multilabel: bool
) -> float:
    """The share of correct predictions.

    Single-label: rows whose most probable class is the true one. Multi-label: rows on the right
    side of the threshold, the mean over the classes that have one.
    """
    if not multilabel:
        rows = np.arange(len(targets))
        return float(targets[rows, scores.argmax(axis=1)].astype(bool).mean())
    right = ((scores >= thresholds) == targets.astype(bool)).mean(axis=0)
    return macro(np.where(np.isnan(thresholds), np.nan, right))


def by_recording(
    scores: Scores, targets: Targets, recording: NDArray[np.integer]
) -> tuple[Scores, Targets]:
    """Mean score of all frames and leads of each recording, and its labels.

    A label of frames counts for the recording where it covers at least half of it.
    """
    _, place, count = np.unique(recording, return_inverse=True, return_counts=True)
    mean = [
        np.stack([np.bincount(place, column) for column in values.T], axis=1) / count[:, None]
        for values in (scores, targets)
    ]
    return mean[0], (mean[1] >= 0.5).astype(np.uint8)


def _with_positives_and_negatives(targets: Targets) -> NDArray[np.int64]:
    return np.flatnonzero(targets.any(axis=0) & ~targets.all(axis=0))


def _cuts(
    score: NDArray[np.float64], target: NDArray[np.uint8]
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
    """Distinct scores in descending order; how many positives, and rows, are at or above."""
    order = np.argsort(-score, kind="stable")
    ordered = score[order]
    last = np.flatnonzero(np.append(ordered[1:] != ordered[:-1], True))  # of each run of ties
    hits = np.cumsum(target[order], dtype=np.int64)
    return ordered[last], hits[last], last + 1
