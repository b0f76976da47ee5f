"""A linear classifier on patients' embeddings, fitted to a dataset's training patients.

It says what a linear layer reads off a patient's vector: an aid for looking around, no diagnosis.
Numpy and scipy only, so that a page starts without torch. Knows nothing about encoders.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from clocs.explorer.material import share_below
from clocs.patients.embeddings import Embeddings

_STRENGTHS = (1e-1, 1e-2, 1e-3, 1e-4)  # of L2, strongest first: each start is the next's
_LEAST = 20  # labelled training patients


@dataclass(frozen=True)
class Classifier:
    """One dataset's.

    Attributes:
        dataset: Whose labels it predicts.
        labels: Classes.
        multilabel: Whether each class is a question of its own.
        weights: (dim + 1, classes), the last row the bias.
        trained_on: Training patients.
        tested_on: Test patients with labels.
        auc: Macro AUC on those, None where undefined.
    """

    dataset: str
    labels: tuple[str, ...]
    multilabel: bool
    weights: NDArray[np.float64]
    trained_on: int
    tested_on: int
    auc: float | None

    def predict(self, vectors: NDArray[np.float32]) -> NDArray[np.float64]:
        """(n, dim) -> (n, classes) probabilities."""
        return _probabilities(vectors, self.weights, self.multilabel)


def fit(
    embeddings: Embeddings, dataset: str, labels: tuple[str, ...], *, multilabel: bool
) -> Classifier | None:
    """A classifier of this dataset's patients, or None where too few are labelled."""
    rows = embeddings.rows.with_row_index("row").filter(pl.col("dataset") == dataset)
    code = {label: i for i, label in enumerate(labels)}
    target = np.zeros((len(embeddings), len(labels)))
    for row, names in rows.select("row", "labels").iter_rows():
        target[row, [code[name] for name in names if name in code]] = 1
    known = target.any(axis=1)
    if not multilabel:
        target /= np.maximum(target.sum(axis=1, keepdims=True), 1)  # who has two is half of each
    split = embeddings.rows["split"].to_numpy()
    train, validation, test = (
        np.flatnonzero(known & (split == name)) for name in ("train", "validation", "test")
    )
    if len(train) < _LEAST or (target[train].sum(axis=0) > 0).sum() < 2:
        return None
    mean = embeddings.vectors[train].mean(axis=0, dtype=np.float64)
    spread = embeddings.vectors[train].std(axis=0, dtype=np.float64)
    spread = np.where(spread > 1e-9, spread, 1.0)

    def part(rows: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        return (embeddings.vectors[rows] - mean) / spread, target[rows]

    held_out = part(validation) if len(validation) else part(train)
    weights = _fitted(part(train), held_out, multilabel)
    p = _probabilities(part(test)[0], weights, multilabel)
    raw = weights.copy()  # the same for vectors as they are
    raw[:-1] /= spread[:, None]
    raw[-1] -= mean @ raw[:-1]
    auc = _macro_auc(p, target[test] > 0)
    return Classifier(dataset, labels, multilabel, raw, len(train), len(test), auc)


_Part = tuple[NDArray[np.float64], NDArray[np.float64]]


def _fitted(train: _Part, validation: _Part, multilabel: bool) -> NDArray[np.float64]:
    """(dim + 1, classes) of the strength whose validation loss is least."""
    import scipy.optimize  # half a second that a map need not wait for

    x, y = train
    shape = (x.shape[1] + 1, y.shape[1])

    def objective(flat: NDArray[np.float64], strength: float) -> tuple[float, NDArray[np.float64]]:
        w = flat.reshape(shape)
        p = _probabilities(x, w, multilabel)
        gradient = np.concatenate([x.T @ (p - y), (p - y).sum(axis=0, keepdims=True)]) / len(x)
        gradient[:-1] += strength * w[:-1]
        loss = _loss(p, y, multilabel) + strength / 2 * np.square(w[:-1]).sum()
        return float(loss), gradient.ravel()

    start, best, least = np.zeros(shape[0] * shape[1]), np.zeros(shape), np.inf
    for strength in _STRENGTHS:
        found = scipy.optimize.minimize(
            objective,
            start,
            args=(strength,),
            jac=True,
            method="L-BFGS-B",
            options={"maxiter": 100},
        )
        start = found.x
        p = _probabilities(validation[0], start.reshape(shape), multilabel)
        loss = _loss(p, validation[1], multilabel)
        if loss < least:
            best, least = start.reshape(shape), loss
    return best


def _loss(p: NDArray[np.float64], y: NDArray[np.float64], multilabel: bool) -> float:
    log = y * np.log(p + 1e-12)
    if multilabel:
        log = log + (1 - y) * np.log(1 - p + 1e-12)
    return float(-log.sum() / max(len(y), 1))


def _probabilities(
    x: NDArray[np.floating], weights: NDArray[np.float64], multilabel: bool
) -> NDArray[np.float64]:
    logits = x @ weights[:-1] + weights[-1]
    if multilabel:
        return np.asarray(1 / (1 + np.exp(-np.clip(logits, -50, 50))))
    e = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(e / e.sum(axis=1, keepdims=True))


def _macro_auc(scores: NDArray[np.float64], target: NDArray[np.bool_]) -> float | None:
    """Over the classes that have both kinds (`evaluation.metrics` brings torch with it)."""
    each = [share_below(s[~t], s[t]) for s, t in zip(scores.T, target.T, strict=True)]
    defined = [auc for auc in each if auc is not None]
    return float(np.mean(defined)) if defined else None
