"""What classifiers predict for patients and uploads, and whether they have seen them in training.

Saved classifiers predict recordings and explain it. Without any, a linear classifier is fitted to
the embeddings of each labeled dataset: an aid to browsing, not a diagnosis.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from clocs.errors import SettingError
from clocs.files import digest as digest_of
from clocs.frames.splits import PARTS, parts_of
from clocs.patients.embeddings import Embeddings
from clocs.recording import Recording
from clocs.store.store import Store
from clocs.web.packing import pack

if TYPE_CHECKING:
    from torch import Tensor

    from clocs.evaluation.logistic import LogisticRegression
    from clocs.models.classifier import Classifier
    from clocs.models.explain import Explainer
    from clocs.training.checkpoint import Checkpoint

_MIN = 20  # labeled training patients
_MAX = 20_000  # of each part; in the order of pseudonyms, so that they are a random sample
TRAIN, VALIDATION, EITHER, COPY = (*PARTS[:2], "either", "copy")
_SAID = {
    TRAIN: "It was trained on this patient",
    VALIDATION: "It was tuned on this patient, who is in its validation part",
    EITHER: "It was trained or tuned on this patient",
    COPY: "It was trained or tuned on a recording with the same samples",
}


class Source(NamedTuple):
    """Whose recording it is; an upload is nobody's, and known by its samples alone."""

    recording: Recording
    dataset: str = ""
    patient: str = ""


def part_seen(encoders: Iterable[Checkpoint], source: Source) -> str | None:
    """The part that the patient was in when these were trained; None where they never saw them."""
    from clocs.training.leak_guard import seen_by

    keyed = [f"{source.dataset}:{source.patient}"]
    found: set[str] = set()
    digests = np.array([digest_of(np.ascontiguousarray(source.recording.digital))], np.uint64)
    fold = source.recording.fold
    for encoder in encoders:
        for one in encoder.card.trained_on:
            if not source.patient or one.dataset != source.dataset:
                continue
            if one.folds is None:
                part = int(parts_of(keyed, one.split_seed)[0])
            elif fold is not None:
                part = int(one.folds.parts(keyed, [fold], one.split_seed)[0])
            else:
                continue
            found.add(PARTS[part])
        folds = None if fold is None else [fold]
        if seen_by(encoder, source.dataset, [source.patient], digests, folds)[0]:
            found.add(EITHER if source.patient else COPY)
    return next((part for part in (TRAIN, VALIDATION, EITHER, COPY) if part in found), None)


def seen_sentence(part: str | None, *, show_ids: bool) -> str | None:
    """For the visitor; training and validation are told apart only where IDs are shown.

    A patient's part is computed from the ID, so that it says something about it; that it was one
    of the two has to be said wherever there is a prediction.
    """
    if part not in _SAID:
        return None
    said = _SAID[part if show_ids or part == COPY else EITHER]
    return f"{said}, so this says little about how it does on new patients."


class SavedClassifiers:
    """Those that a session was given; one question at a time, for each takes all processors."""

    def __init__(self, explainers: Sequence[Explainer]) -> None:
        self._explainers = list(explainers)
        self._lock = threading.Lock()

    @classmethod
    def load(cls, models: Sequence[Classifier | Path | str]) -> SavedClassifiers:
        """From classifiers, files, or names of shipped ones."""
        from clocs.models.classifier import as_classifier
        from clocs.models.explain import Explainer

        return cls([Explainer(as_classifier(one)) for one in models])

    @property
    def names(self) -> list[str]:
        """Of the classifiers."""
        return [one.card.name for one in self._explainers]

    def predict(self, source: Source, *, show_ids: bool = False) -> list[dict[str, Any]]:
        """What each of them predicts, or why it does not; classes by descending probability.

        With a notice where it has seen the patient in training.
        """
        made = []
        for number, one in enumerate(self._explainers):
            seen = part_seen(one.classifier.encoders, source)
            notice = {"notice": seen_sentence(seen, show_ids=show_ids)}
            made.append(self._predicted(number, source.recording) | notice)
        return made

    def _predicted(self, number: int, recording: Recording) -> dict[str, Any]:
        from clocs.models.predict import predict_recordings, probability_column

        classifier = self._explainers[number].classifier
        card = classifier.card
        with self._lock:
            row = predict_recordings(classifier, [recording]).row(0, named=True)
        likely = row["predicted"] or ()
        likely = {likely} if isinstance(likely, str) else set(likely)
        classes = [
            {
                "label": label,
                "name": card.meanings[label],
                "probability": row[probability_column(label)],
                "threshold": threshold,
                "predicted": label in likely,
            }
            for label, threshold in zip(card.labels, card.thresholds, strict=True)
        ]
        return {
            "model": number,
            "name": card.name,
            "dataset": card.dataset,
            "multilabel": card.multilabel,
            "problem": row["problem"],
            "abstained": row["abstained"],
            "classes": []
            if row["problem"]
            else sorted(classes, key=lambda one: -float(one["probability"])),
        }

    def explain(self, number: int, recording: Recording, label: str | None) -> bytes:
        """(leads, samples) how much each moment speaks for a label, packed."""
        if number >= len(self._explainers):
            raise SettingError(f"there is no classifier {number}; there are {len(self.names)}")
        with self._lock:
            made = self._explainers[number](recording, label)
        names = ["label", "probability", "leads", "start", "seconds", "logit", "logit_without"]
        names += ["abstained"]
        facts = {name: getattr(made, name) for name in names}
        about = {"model": number, "name": self.names[number], "rate": recording.rate}
        return pack(about | facts, {"attribution": made.attribution})


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
