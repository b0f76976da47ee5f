"""`signal_quality`: how well each lead of a recording can be read, and why not.

Stretches of 10 s are measured, at most 60 of a long recording. What is measured of a lead are nine
numbers, most of them relative to the height of its beats, so that a wrong unit changes little. A
logistic regression, fitted on leads that people judged, makes one number of them; its coefficients
are in quality.json.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.fft import irfft, rfft, rfftfreq

from clocs.measurements.beats import aligned_beats, cut_beats, qrs_complexes, resampled_band
from clocs.recording import MAINS, Gap, Recording

Array = NDArray[np.float64]
MEASURES = ("flat", "clipped", "wander", "mains", "fast", "floor", "jump", "spread", "worst")
READABLE = 0.5  # quality from which a lead can be read
CLIPPED = 0.06  # seconds at the largest or smallest value of a lead: no wave has so broad a top
_STRETCH, _SHORTEST, _MOST = 10.0, 2.0, 60  # seconds, seconds, number
_STILL = 0.02  # mV within a second: no heart is that still
_OFF = 5.0  # mV: a still lead so far from zero has lost its electrode
_REASON_SHARE = {"flat": 0.3, "clipped": 0.02}  # of the time, from which this is the reason
_HZ = 250.0
_BEFORE, _AFTER = 50, 75  # samples around the R peak
_REASONS = {
    "wander": ("wander", "jump"),
    "mains": ("mains",),
    "noise": ("fast", "floor", "spread", "worst"),
}


@dataclass(frozen=True)
class SignalQuality:
    """How well a recording can be read.

    Attributes:
        value: Of the recording, from 0 to 1: the probability that a reader accepts it.
        leads: Of each lead, from 0 to 1.
        reasons: Of each lead that cannot be read: 'flat', 'lead off', 'clipped', 'wander', 'mains'
            or 'noise'.
    """

    value: float
    leads: Mapping[str, float]
    reasons: Mapping[str, str]

    @property
    def reason(self) -> str | None:
        """The commonest reason."""
        found = list(self.reasons.values())
        return max(found, key=found.count) if found else None


def signal_quality(recording: Recording) -> SignalQuality:
    """How well each lead of a recording can be read.

    Args:
        recording: As `clocs.read` gives it; all its leads are 'flat' where it is under 2 s.
    """
    stretches = stretches_of(recording)
    coefficients = fitted()
    measured = [
        measure_leads(_filled(part.signal, recording.unit), part.rate) for part in stretches
    ]
    values = np.array([coefficients.leads(one) for one in measured])
    values = values.reshape(-1, len(recording.leads))
    if not len(values):
        nothing = dict.fromkeys(recording.leads, 0.0)
        return SignalQuality(0.0, nothing, dict.fromkeys(recording.leads, "flat"))
    leads = values.mean(axis=0)
    whole = float(np.mean([coefficients.recording(one) for one in values]))
    reasons = {}
    for place in np.flatnonzero(leads < READABLE).tolist():
        worst = int(values[:, place].argmin())
        level = np.median(np.abs(stretches[worst].signal[place]))
        found = coefficients.reason(measured[worst][place])
        reasons[recording.leads[place]] = "lead off" if found == "flat" and level > _OFF else found
    return SignalQuality(whole, dict(zip(recording.leads, leads.tolist(), strict=True)), reasons)


def stretches_of(recording: Recording) -> list[Recording]:
    """Stretches of about 10 s, evenly spread where there are many; none of less than 2 s."""
    if recording.seconds < _SHORTEST:
        return []
    count = max(1, int(recording.seconds / _STRETCH + 0.5))
    starts = np.linspace(0, recording.samples, count + 1).astype(int)
    chosen = np.unique(np.linspace(0, count - 1, min(count, _MOST)).astype(int)).tolist()
    return [recording.between(int(starts[i]), int(starts[i + 1])) for i in chosen]


def clipped_stretches(recording: Recording) -> list[Gap]:
    """Where a lead stays at its largest or smallest value."""
    found = []
    for lead, values in zip(recording.leads, recording.digital, strict=True):
        for start, stop in _held(values, recording.rate):
            found.append(Gap(start, stop, lead))
    return found


def _held(values: NDArray[Any], rate: float) -> list[tuple[int, int]]:
    """(samples,) of one lead -> first and last of the stretches at its extremes."""
    least, found = max(3, round(CLIPPED * rate)), []
    low, high = values.min(), values.max()
    for limit in (low, high) if low < high else ():
        edges = np.flatnonzero(np.diff(values == limit, prepend=False, append=False))
        found += [(int(a), int(b)) for a, b in edges.reshape(-1, 2) if b - a >= least]
    return found


def _filled(signal: Array, unit: str) -> Array:
    """Gaps as zeros; a unit other than mV so that the median lead varies as is usual."""
    filled = np.nan_to_num(signal)
    if unit == "mV":
        return filled
    usual = np.median(np.percentile(np.abs(filled - np.median(filled, axis=1)[:, None]), 99, 1))
    return filled / usual if usual > 0 else filled


def measure_leads(signal: Array, rate: float) -> Array:
    """(leads, samples) in mV -> (leads, MEASURES); ratios as logarithms."""
    leads, samples = signal.shape
    block = max(1, round(rate / 4))  # of four to the second
    cut = signal[:, : samples // block * block].reshape(leads, -1, block)
    windows = np.lib.stride_tricks.sliding_window_view(np.stack([cut.max(2), -cut.min(2)]), 4, 2)
    flat = (windows.max(axis=3).sum(axis=0) < _STILL).mean(axis=1)
    clipped = [sum(b - a for a, b in _held(one, rate)) / samples for one in signal]
    middles = np.median(cut, axis=2)
    jump = np.abs(np.diff(middles, axis=1)).max(axis=1, initial=0)
    ends = signal[:, :1] + (signal[:, -1:] - signal[:, :1]) * np.linspace(0, 1, samples)
    spectrum, hertz = rfft(signal - ends, axis=1), rfftfreq(samples, 1 / rate)
    power = 2 * np.abs(spectrum) ** 2 / samples**2

    def energy(low: float, high: float) -> Array:
        return np.asarray(power[:, (hertz >= low) & (hertz < high)].sum(axis=1))

    hums = [energy(hum - 1, hum + 1) for hum in MAINS]
    fast = np.sqrt(np.maximum(energy(30, 120) - hums[0] - hums[1], 0))
    steep = np.abs(irfft(spectrum * ((hertz >= 5) & (hertz < 40)), n=samples, axis=1))
    low, high = np.percentile(steep, (50, 99), axis=1)
    height, spread, worst = _beats(resampled_band(signal, rate, (1.0, 30.0), _HZ))
    height = height + 0.05
    measured = {
        "flat": flat,
        "clipped": np.minimum(clipped, 0.2),
        "wander": np.log((np.sqrt(energy(0.04, 0.7)) + 0.02) / height),
        "mains": np.log((np.sqrt(np.maximum(*hums)) + 0.002) / height),
        "fast": np.log((fast + 0.005) / height),
        "floor": np.log((low + 1e-3) / (high + 1e-3)),
        "jump": np.log((jump + 0.05) / height),
        "spread": np.log(spread + 0.05),
        "worst": np.log(worst + 0.05),
    }
    return np.stack([measured[name] for name in MEASURES], axis=1)


def _beats(signal: Array) -> tuple[Array, Array, Array]:
    """(leads,) height of the median beat, and by how much the usual and the worst beat differ."""
    peaks = aligned_beats(signal, qrs_complexes(signal, _HZ), _HZ)
    peaks = peaks[(peaks >= _BEFORE) & (peaks + _AFTER < signal.shape[1])]
    if len(peaks) < 3:
        return np.zeros(len(signal)), np.full(len(signal), 2.0), np.full(len(signal), 3.0)
    beats = cut_beats(signal, peaks, _BEFORE, _AFTER)
    beats = beats - beats.mean(axis=2, keepdims=True)
    typical = np.median(beats, axis=0)
    size = np.maximum(np.sqrt((typical**2).mean(axis=1)), 1e-3)
    apart = ((beats - typical) ** 2).mean(axis=2)
    usual, worst = np.sqrt(np.median(apart, axis=0)) / size, np.sqrt(apart.max(axis=0)) / size
    return np.ptp(typical, axis=1), usual, worst


@dataclass(frozen=True)
class QualityModel:
    """Coefficients of the qualities of leads and recordings.

    Attributes:
        weight: (MEASURES,) of the logit that a lead cannot be read.
        bias: Of that logit.
        typical: (MEASURES,) of leads that can be read.
        spread: (MEASURES,) standard deviations of such leads.
        whole: Intercept and slope of a recording's logit by its leads' mean log quality.
    """

    weight: Array
    bias: float
    typical: Array
    spread: Array
    whole: tuple[float, float]

    def leads(self, measured: Array) -> Array:
        """(leads, MEASURES) -> (leads,) quality from 0 to 1."""
        return np.asarray(_sigmoid(-(measured @ self.weight + self.bias)))

    def recording(self, leads: Array) -> float:
        """(leads,) quality -> that of the recording."""
        intercept, slope = self.whole
        return float(_sigmoid(intercept + slope * mean_log(leads)))

    def reason(self, measured: Array) -> str:
        """(MEASURES,) of a lead that cannot be read -> what is the matter with it."""
        for name, least in _REASON_SHARE.items():
            if measured[MEASURES.index(name)] >= least:
                return name
        apart = dict(
            zip(MEASURES, (measured - self.typical) / np.maximum(self.spread, 0.1), strict=True)
        )
        return max(_REASONS, key=lambda name: max(float(apart[one]) for one in _REASONS[name]))


def mean_log(leads: Array) -> float:
    """(leads,) quality -> the mean of its logarithm: a few bad leads count more than in a mean."""
    return float(np.log(np.maximum(leads, 1e-3)).mean())


def _sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-np.clip(x, -40, 40)))


@cache
def fitted() -> QualityModel:
    """The coefficients of the package."""
    facts = json.loads(Path(__file__).with_name("quality.json").read_text("utf-8"))
    arrays = {name: np.array(facts[name]) for name in ("weight", "typical", "spread")}
    return QualityModel(**arrays, bias=facts["bias"], whole=tuple(facts["whole"]))
