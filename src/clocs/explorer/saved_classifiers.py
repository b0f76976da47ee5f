"""Saved classifiers: what they predict for a recording, and which part of it drove that."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clocs.errors import ClocsError, SettingError
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

    def predict(self, recording: Recording) -> list[dict[str, Any]]:
        """What each of them predicts, or why it does not; classes by descending probability."""
        return [self._predicted(number, recording) for number in range(len(self._explainers))]

    def _predicted(self, number: int, recording: Recording) -> dict[str, Any]:
        explainer = self._explainers[number]
        card = explainer.card
        problem, found = None, {}
        try:
            with self._lock:
                found = explainer.probabilities(recording)
        except ClocsError as error:
            problem = str(error)
        thresholds = dict(zip(card.labels, card.thresholds, strict=True))
        best = max(found, key=lambda label: found[label], default=None)
        return {
            "model": number,
            "name": card.name,
            "dataset": card.dataset,
            "multilabel": card.multilabel,
            "problem": problem,
            "abstained": None,
            "classes": [
                {
                    "label": label,
                    "probability": found[label],
                    "threshold": thresholds[label],
                    "predicted": _is_likely(found[label], thresholds[label])
                    if card.multilabel
                    else label == best,
                }
                for label in sorted(found, key=lambda label: -found[label])
            ],
        }

    def explain(self, number: int, recording: Recording, label: str | None) -> bytes:
        """(leads, samples) how much each moment speaks for a label, packed."""
        if number >= len(self._explainers):
            raise SettingError(f"there is no classifier {number}; there are {len(self.names)}")
        with self._lock:
            made = self._explainers[number](recording, label)
        names = ("label", "probability", "leads", "start", "seconds", "logit", "logit_without")
        facts = {name: getattr(made, name) for name in names}
        about = {"model": number, "name": self.names[number], "rate": recording.rate}
        return pack(about | facts, {"attribution": made.attribution})


def _is_likely(probability: float, threshold: float | None) -> bool:
    return threshold is not None and probability >= threshold
