"""Predicting: a linear classifier a dataset, fitted once, and what they say of a vector."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clocs.explorer.classifier import Classifier, fit
from clocs.patients.embeddings import Embeddings
from clocs.store.store import Store


class Predictors:
    """Classifiers of the datasets whose labels are known, fitted when first asked for.

    Args:
        embeddings: Patients, labelled and split.
        stores: By dataset.
    """

    def __init__(self, embeddings: Embeddings, stores: Mapping[str, Store]) -> None:
        self._embeddings, self._stores = embeddings, stores
        self._lock = threading.Lock()
        self._fitted: dict[str, Classifier] | None = None

    def fit(self) -> dict[str, Classifier]:
        """By dataset; who asks while another does waits for the same."""
        with self._lock:
            if self._fitted is None:
                self._fitted = {}
                for dataset, store in self._stores.items():
                    labels, multilabel = store.manifest.labels, store.manifest.multilabel
                    made = fit(self._embeddings, dataset, labels, multilabel=multilabel)
                    if made is not None:
                        self._fitted[dataset] = made
            return self._fitted

    def predict(
        self, vector: NDArray[np.float32], datasets: Sequence[str] | None = None
    ) -> list[dict[str, Any]]:
        """What the classifiers of these datasets, or all, say of a (dim,) vector."""
        return [
            _told(one, vector)
            for dataset, one in self.fit().items()
            if datasets is None or dataset in datasets
        ]


def _told(classifier: Classifier, vector: NDArray[np.float32]) -> dict[str, Any]:
    p = classifier.predict(vector[None])[0]
    return {
        "dataset": classifier.dataset,
        "multilabel": classifier.multilabel,
        "trained_on": classifier.trained_on,
        "tested_on": classifier.tested_on,
        "auc": classifier.auc,
        "classes": [
            {"label": classifier.labels[i], "probability": float(p[i])} for i in np.argsort(-p)
        ],
    }
