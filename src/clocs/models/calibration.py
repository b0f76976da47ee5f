"""Calibration: temperatures that make probabilities honest, and how honest they are."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import expit, log_expit, log_softmax, softmax

Logits = NDArray[np.float64]  # (rows, classes)
Targets = NDArray[np.uint8]  # (rows, classes)

COLDEST, HOTTEST = 0.01, 100.0  # temperatures to choose from
BINS = 15  # of equally many rows, for the calibration error


def probabilities(
    logits: Logits, temperature: NDArray[np.float64] | float, *, multilabel: bool
) -> NDArray[np.float64]:
    """(rows, classes) at these temperatures."""
    scaled = logits / temperature
    return np.asarray(expit(scaled) if multilabel else softmax(scaled, axis=1))


def fit_temperature(logits: Logits, targets: Targets, *, multilabel: bool) -> NDArray[np.float64]:
    """(classes,) the temperatures of the lowest negative log-likelihood.

    Multi-class: one for all classes. Multi-label: one for each class, 1 where all rows have it or
    none has. The likelihood is concave in 1 / temperature, so there is one best.
    """
    if not multilabel:
        return np.full(targets.shape[1], _best(logits, targets, multilabel=False))
    found = np.ones(targets.shape[1])
    for c in np.flatnonzero(targets.any(axis=0) & ~targets.all(axis=0)):
        found[c] = _best(logits[:, [c]], targets[:, [c]], multilabel=True)
    return found


def _best(logits: Logits, targets: Targets, *, multilabel: bool) -> float:
    def loss(log_temperature: float) -> float:
        return nll(logits / math.exp(log_temperature), targets, multilabel=multilabel)

    ends = math.log(COLDEST), math.log(HOTTEST)
    return math.exp(minimize_scalar(loss, bounds=ends, method="bounded", options={"xatol": 1e-8}).x)


def nll(logits: Logits, targets: Targets, *, multilabel: bool) -> float:
    """The mean negative log-likelihood: of rows, or of rows and classes where it is multi-label."""
    y = targets.astype(np.float64)
    if not multilabel:
        return float(-(log_softmax(logits, axis=1) * y).sum(axis=1).mean())
    return float(-(y * log_expit(logits) + (1 - y) * log_expit(-logits)).mean())


def brier(chances: NDArray[np.float64], targets: Targets, *, multilabel: bool) -> float:
    """The mean squared error: of rows, summed over classes, or of rows and classes."""
    squares = np.square(chances - targets)
    return float(squares.mean() if multilabel else squares.sum(axis=1).mean())


def calibration_error(
    chances: NDArray[np.float64], targets: Targets, *, multilabel: bool, bins: int = BINS
) -> float:
    """The expected calibration error, in bins of equally many rows.

    Multi-class: of the class that is predicted. Multi-label: the mean over all classes.
    """
    if multilabel:
        each = [_error(p, y, bins) for p, y in zip(chances.T, targets.T, strict=True)]
        return float(np.mean(each))
    rows, predicted = np.arange(len(chances)), chances.argmax(axis=1)
    return _error(chances[rows, predicted], targets[rows, predicted], bins)


def _error(chance: NDArray[np.float64], true: NDArray[np.uint8], bins: int) -> float:
    """The mean distance of promised and observed frequency, each row counting once."""
    order = np.argsort(chance, kind="stable")
    parts = np.array_split(order, min(bins, len(order)))
    return float(sum(abs((chance[own] - true[own]).sum()) for own in parts) / len(order))


def calibration(
    logits: Logits, temperature: NDArray[np.float64], targets: Targets, *, multilabel: bool
) -> dict[str, Any]:
    """Expected calibration error, Brier score and likelihood, before and after the temperature."""

    def measured(scale: NDArray[np.float64] | float) -> dict[str, float]:
        chances = probabilities(logits, scale, multilabel=multilabel)
        return {
            "ece": calibration_error(chances, targets, multilabel=multilabel),
            "brier": brier(chances, targets, multilabel=multilabel),
            "nll": nll(logits / scale, targets, multilabel=multilabel),
        }

    return {"before": measured(1.0), "after": measured(temperature)}
