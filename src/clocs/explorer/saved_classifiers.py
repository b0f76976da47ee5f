"""Saved classifiers: what they predict for a recording, and which part of it drove that."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clocs.errors import SettingError
from clocs.explorer.seen import Source, part_seen, seen_sentence
from clocs.recording import Recording
from clocs.web.packing import pack

if TYPE_CHECKING:
    from clocs.models.classifier import Classifier
    from clocs.models.explain import Explainer


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
        from clocs.models.predict import predict_recordings
        from clocs.models.prediction_table import probability_column

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
