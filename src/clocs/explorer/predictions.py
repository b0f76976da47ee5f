"""What classifiers predict for patients and uploads, and whether they have seen them in training.

An aid to browsing, not a diagnosis.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from clocs.errors import SettingError
from clocs.files import digest as digest_of
from clocs.recording import Recording
from clocs.web.packing import pack

if TYPE_CHECKING:
    from clocs.models.classifier import Classifier
    from clocs.training.checkpoint import Checkpoint


class ShownRecording(NamedTuple):
    """Whose recording it is; an upload is nobody's, and known by its samples alone."""

    recording: Recording
    dataset: str = ""
    patient: str = ""


def seen_notice(encoders: Iterable[Checkpoint], source: ShownRecording) -> str | None:
    """A sentence where these were trained or tuned on the patient, or on the same samples.

    It never says which of the two: a patient's part is computed from the ID.
    """
    from clocs.training.checkpoint import seen_by

    recording, patient = source.recording, source.patient
    digests = np.array([digest_of(np.ascontiguousarray(recording.digital))], np.uint64)
    folds = None if recording.fold is None else [recording.fold]
    if not any(seen_by(one, source.dataset, [patient], digests, folds)[0] for one in encoders):
        return None
    what = "this patient" if patient else "a recording with the same samples"
    return f"It was trained or tuned on {what}, so this says little about how it does on new ones."


class SavedClassifiers:
    """Those that a session was given; one question at a time, for each takes all processors.

    Args:
        models: Classifiers, their files, or names of shipped ones.
    """

    def __init__(self, models: Sequence[Classifier | Path | str]) -> None:
        from clocs.models.classifier import as_classifier
        from clocs.models.explain import Explainer

        self._explainers = [Explainer(as_classifier(one)) for one in models]
        self._lock = threading.Lock()

    @property
    def names(self) -> list[str]:
        """Of the classifiers."""
        return [one.card.name for one in self._explainers]

    @property
    def first(self) -> Classifier:
        """The one that predicts all patients."""
        return self._explainers[0].classifier

    def predict(self, source: ShownRecording) -> list[dict[str, Any]]:
        """What each of them predicts, or why it does not; classes by descending probability.

        With a notice where it has seen the patient in training.
        """
        return [self._predicted(number, source) for number in range(len(self._explainers))]

    def _predicted(self, number: int, source: ShownRecording) -> dict[str, Any]:
        from clocs.models.classifier import probability_column
        from clocs.models.predict import predict_recordings

        classifier = self._explainers[number].classifier
        card = classifier.card
        with self._lock:
            row = predict_recordings(classifier, [source.recording]).row(0, named=True)
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
            if not row["problem"]
        ]
        return {
            "model": number,
            "name": card.name,
            "dataset": card.dataset,
            "multilabel": card.multilabel,
            "problem": row["problem"],
            "abstained": row["abstained"],
            "notes": row["notes"] or [],
            "notice": seen_notice(classifier.encoders, source),
            "classes": sorted(classes, key=lambda one: -float(one["probability"])),
        }

    def explain(self, number: int, recording: Recording, label: str | None) -> bytes:
        """(leads, samples) how much each moment speaks for a label, packed."""
        if number >= len(self._explainers):
            raise SettingError(f"there is no classifier {number}; there are {len(self.names)}")
        with self._lock:
            made = self._explainers[number](recording, label)
        names = "label probability leads start seconds logit logit_without abstained"
        facts = {name: getattr(made, name) for name in names.split()}
        about = {"model": number, "name": self.names[number], "rate": recording.rate}
        return pack(about | facts, {"attribution": made.attribution})
