"""The beats of a recording for the page: heart rate, R peaks, average beat."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from clocs.patients.average_beat import average_beat
from clocs.patients.heart_rate import heart_rate
from clocs.recording import Recording
from clocs.web.packing import pack


def packed_beats(recording: Recording) -> bytes:
    """`peaks` in seconds; `mean` and `spread` have no samples where there is no average beat."""
    recording = recording.with_limb_leads()
    beat = average_beat(recording)
    empty = np.zeros((len(recording.leads), 0))
    facts = {
        "leads": recording.leads,
        "unit": recording.unit,
        "rate": recording.rate,
        "heart_rate": heart_rate(recording),
        "before": 0.0 if beat is None else beat.before / beat.rate,
    }
    arrays: dict[str, NDArray[np.float64]] = {
        "peaks": np.zeros(0) if beat is None else beat.peaks / beat.rate,
        "mean": empty if beat is None else beat.mean,
        "spread": empty if beat is None else beat.spread,
    }
    return pack(facts, {name: values.astype(np.float32) for name, values in arrays.items()})
