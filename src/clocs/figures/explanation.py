"""An explanation on ECG paper: the parts of the ECG that drove a prediction are colored."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from clocs.figures.ecg_paper import ecg_paper
from clocs.models.explanation import Explanation

_BRIGHTEST = 99.5  # percentile of the contributions that has the full color


def explanation_paper(explanation: Explanation, *, title: str | None = None) -> Figure:
    """Draw the explained stretch: orange speaks for the label, blue against it.

    Args:
        explanation: What `clocs.explain` has made.
        title: Above the paper; by default the label and its probability. Figures are passed on, so
            they name no recording by themselves.
    """
    one = explanation
    first = round(one.start * one.recording.rate)
    shown = one.recording.select(one.leads).between(first, first + one.attribution.shape[1])
    size = np.abs(one.attribution[np.isfinite(one.attribution)])
    brightest = float(np.percentile(size, _BRIGHTEST)) if size.size else 0.0
    whole = shown.samples == one.recording.samples
    where = "" if whole else f" ({one.start:.1f} to {one.start + one.seconds:.1f} s)"
    against = "The classifier abstains. " if one.abstained else ""
    return ecg_paper(
        shown,
        title=title or f"{one.label}, probability {one.probability:.2f}{where}",
        shading={
            lead: values / (brightest or 1.0)
            for lead, values in zip(one.leads, one.attribution, strict=True)
        },
        note=f"{against}Orange speaks for {one.label}, blue against it. Not a diagnosis.",
    )
