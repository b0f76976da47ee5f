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
from clocs.frames.splits import PARTS, parts_of
from clocs.recording import Recording
from clocs.web.packing import pack

if TYPE_CHECKING:
    from clocs.models.classifier import Classifier
    from clocs.models.explain import Explainer
    from clocs.training.checkpoint import Checkpoint

TRAIN, VALIDATION, EITHER, COPY = (*PARTS[:2], "either", "copy")
_SAID = {
    TRAIN: "It was trained on this patient",
    VALIDATION: "It was tuned on this patient, who is in its validation part",
    EITHER: "It was trained or tuned on this patient",
    COPY: "It was trained or tuned on a recording with the same samples",
}


class ShownRecording(NamedTuple):
    """Whose recording it is; an upload is nobody's, and known by its samples alone."""

    recording: Recording
    dataset: str = ""
    patient: str = ""


def part_seen(encoders: Iterable[Checkpoint], source: ShownRecording) -> str | None:
    """The part that the patient was in when these were trained; None where they never saw them."""
    from clocs.training.checkpoint import seen_by

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

    def predict(self, source: ShownRecording, *, show_ids: bool = False) -> list[dict[str, Any]]:
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
