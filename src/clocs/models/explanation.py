"""An explanation: how much each moment of each lead speaks for a label."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clocs.recording import Recording


@dataclass(frozen=True, eq=False)
class Explanation:
    """How much each moment of each lead speaks for a label, or against it.

    Attributes:
        recording: All of what was given.
        label: Which is explained.
        probability: Of the label, by the whole recording.
        probabilities: Of all labels.
        leads: That the classifier saw, which are the rows of `attribution`. A lead that is flat
            throughout is absent.
        start: Second of the recording at which the explained stretch begins.
        attribution: (leads, samples) at the recording's rate: by how much the logit falls where
            0.1 s around a sample are a straight line, between such stretches interpolated; negative
            where it rises, nan where the classifier saw nothing. Of an encoder of many leads, 0.1 s
            of all leads at once, times the weight of the lead: 1 for the one without which the
            logit falls most, 0 for those without which it does not.
        logit: Of the label, by the frames of the stretch; of exclusive classes, minus the mean of
            all.
        logit_without: The same where the twentieth of the stretch that speaks most for the label is
            replaced by straight lines.
        abstained: Why the classifier predicts nothing for the recording; None where it does.
    """

    recording: Recording
    label: str
    probability: float
    probabilities: dict[str, float]
    leads: tuple[str, ...]
    start: float
    attribution: NDArray[np.float32]
    logit: float
    logit_without: float
    abstained: str | None = None

    @property
    def seconds(self) -> float:
        """Length of the explained stretch."""
        return float(self.attribution.shape[1] / self.recording.rate)

    def facts(self) -> dict[str, Any]:
        """Plain values for JSON; None where the classifier saw nothing."""
        names = (
            *("label", "probability", "probabilities", "leads", "start", "seconds"),
            *("logit", "logit_without", "abstained"),
        )
        by_lead = {
            lead: [None if math.isnan(v) else float(f"{v:.4g}") for v in values]
            for lead, values in zip(self.leads, self.attribution.tolist(), strict=True)
        }
        return {
            "recording": self.recording.id,
            **{name: getattr(self, name) for name in names},
            "rate": self.recording.rate,
            "attribution": by_lead,
        }
