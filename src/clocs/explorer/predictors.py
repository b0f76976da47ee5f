"""Linear classifiers on patients' embeddings, one per labeled dataset.

They show what a linear layer can read from a patient's vector: an aid to browsing, not a diagnosis.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from clocs.patients.embeddings import Embeddings
from clocs.store.store import Store

if TYPE_CHECKING:
    from torch import Tensor

    from clocs.evaluation.logistic import LogisticRegression

_MIN = 20  # labeled training patients
_MAX = 20_000  # of each part; in the order of pseudonyms, so that they are a random sample


@dataclass(frozen=True)
class Predictor:
    """One dataset's classifier, and how it was trained and tested."""

    dataset: str
    labels: tuple[str, ...]
    multilabel: bool
    model: LogisticRegression
    trained_on: int  # patients
    tested_on: int  # labeled patients
    auc: float | None  # macro, on the test patients; None if undefined

    def probabilities(self, vectors: NDArray[np.float32]) -> NDArray[np.float64]:
        """(n, dim) -> (n, classes)."""
        import torch

        logits = self.model.logits(torch.tensor(vectors)[None])[0]
        p = logits.sigmoid() if self.multilabel else logits.softmax(dim=1)
        return np.asarray(p.numpy(), np.float64)

    def describe(self, vector: NDArray[np.float32]) -> dict[str, Any]:
        """What the page shows for a (dim,) vector; classes by descending probability."""
        p = self.probabilities(vector[None])[0]
        facts = ("dataset", "multilabel", "trained_on", "tested_on", "auc")
        return {name: getattr(self, name) for name in facts} | {
            "classes": [
                {"label": self.labels[i], "probability": float(p[i])} for i in np.argsort(-p)
            ]
        }


class Predictors:
    """The classifiers of all labeled datasets, fitted when first needed."""

    def __init__(self, embeddings: Embeddings, stores: Mapping[str, Store]) -> None:
        self._embeddings, self._stores = embeddings, stores
        self._lock = threading.Lock()
        self._fitted: dict[str, Predictor] | None = None

    def fit(self) -> dict[str, Predictor]:
        """By dataset; concurrent callers wait for the same fit."""
        with self._lock:
            if self._fitted is None:
                found = {
                    dataset: fit_predictor(
                        self._embeddings,
                        dataset,
                        store.manifest.labels,
                        multilabel=store.manifest.multilabel,
                    )
                    for dataset, store in self._stores.items()
                }
                self._fitted = {name: one for name, one in found.items() if one is not None}
            return self._fitted

    def predict(
        self, vector: NDArray[np.float32], datasets: Sequence[str] | None = None
    ) -> list[dict[str, Any]]:
        """Predictions for a (dim,) vector by the classifiers of these datasets, or of all."""
        chosen = self.fit().items()
        return [one.describe(vector) for name, one in chosen if not datasets or name in datasets]


def fit_predictor(
    embeddings: Embeddings, dataset: str, labels: Sequence[str], *, multilabel: bool
) -> Predictor | None:
    """A classifier for this dataset's patients, or None if too few of them are labeled."""
    import torch  # only now: the map does not wait for it

    from clocs.evaluation.logistic import fit_logistic
    from clocs.evaluation.metrics import auc_per_class, macro

    rows = embeddings.rows.with_row_index("row").filter(pl.col("dataset") == dataset)
    seen = set(rows.filter(pl.col("split") == "train")["labels"].explode())
    classes = [label for label in labels if label in seen]
    code = {label: i for i, label in enumerate(classes)}
    target = np.zeros((len(embeddings), len(classes)), np.uint8)
    for row, names in rows.select("row", "labels").iter_rows():
        target[row, [code[name] for name in names if name in code]] = 1
    split = embeddings.rows["split"].to_numpy()
    train, validation, test = (
        np.flatnonzero(target.any(axis=1) & (split == name))[:_MAX]
        for name in ("train", "validation", "test")
    )
    if len(train) < _MIN or len(classes) < 2:
        return None
    held_out = validation if len(validation) else train
    # A patient with several labels in a single-label dataset counts in part for each.
    share = target if multilabel else target / np.maximum(target.sum(axis=1, keepdims=True), 1)

    def both(rows: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        y = torch.tensor(share[rows], dtype=torch.float32)
        return torch.tensor(embeddings.vectors[rows]), y

    (x, y), (x_held_out, y_held_out) = both(train), both(held_out)
    model = fit_logistic(
        x[None],
        y[None],
        x_held_out[None],
        y_held_out,
        multilabel=multilabel,
        l2_strengths=(1e-1, 1e-2, 1e-3, 1e-4),
    )
    fitted = Predictor(dataset, tuple(classes), multilabel, model, len(train), len(test), None)
    p = fitted.probabilities(embeddings.vectors[test])
    auc = macro(auc_per_class(p, target[test]))
    return replace(fitted, auc=None if np.isnan(auc) else auc)
