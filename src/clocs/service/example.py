"""An ECG for examples: ten seconds of regular beats, short enough to print."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clocs.formats.arrays import Said, recording_from
from clocs.formats.base import ReadOptions
from clocs.recording import Recording

RATE = 50.0
# (seconds after the R peak, width in seconds, mV) of P, Q, R, S and T
_WAVES = ((-0.16, 0.03, 0.12), (-0.03, 0.01, -0.1), (0, 0.012, 1.0), (0.03, 0.01, -0.2))
_T_WAVE = (0.25, 0.05, 0.3)


def example_signal(seconds: float = 10.0, rate: float = RATE) -> NDArray[np.float64]:
    """(samples,) in mV, rounded to 0.01: a beat every 0.8 s."""
    time = np.arange(round(seconds * rate)) / rate
    phase = (time + 0.4) % 0.8 - 0.4
    waves = [
        height * np.exp(-((phase - place) ** 2) / (2 * width**2))
        for place, width, height in (*_WAVES, _T_WAVE)
    ]
    return np.asarray(np.round(np.sum(waves, axis=0), 2))


def example_body(lead: str = "II", seconds: float = 10.0) -> dict[str, Any]:
    """A JSON body that every service with this lead answers."""
    signal = example_signal(seconds).tolist()
    return {"signal": [signal], "rate": RATE, "leads": [lead], "unit": "mV"}


def example_recording(leads: Sequence[str], seconds: float) -> Recording:
    """With these leads, all alike, and at least so long."""
    signal = np.tile(example_signal(max(10.0, seconds + 1)), (len(leads), 1))
    said = Said(leads=leads, rate=RATE, unit="mV")
    return recording_from(signal, said, ReadOptions(), name="the example")
