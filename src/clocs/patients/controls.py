"""Controls that learn nothing: what the signal itself says about whose it is.

An encoder that finds patients again is compared with these: the median beat in mV, the logarithm of
the spectrum, and the amplitudes of each lead, of the same frames.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from clocs.measurements.beats import qrs_complexes

BEAT_S: Final = np.arange(-20, 40) / 100  # of a beat, around the middle of its QRS complex
BAND_HZ: Final = np.arange(1.0, 41.0, 2.0)  # where bands of 2 Hz begin
_QUIET_MV2, _FLAT_MV = 1e-8, 1e-3  # so that a flat lead has a logarithm

Signals = NDArray[np.float32]  # (frames, leads, samples) in mV; 0 in a lead that is absent
Control = Callable[[Signals, float], NDArray[np.float32]]


def median_beat(x: Signals, rate: float) -> NDArray[np.float32]:
    """(frames, leads × 60) the median over beats at 100 Hz, about each beat's median; or zeros."""
    made = np.zeros((*x.shape[:2], len(BEAT_S)), np.float32)
    for own, frame in zip(made, x.astype(np.float64), strict=True):
        middles = qrs_complexes(frame, rate)[:, None] + BEAT_S * rate
        whole = middles[(middles[:, 0] >= 0) & (middles[:, -1] < x.shape[2] - 1)]
        if len(whole):
            low = whole.astype(np.int64)
            share = whole - low
            beats = frame[:, low] * (1 - share) + frame[:, low + 1] * share
            own[:] = np.median(beats - np.median(beats, axis=2, keepdims=True), axis=1)
    return made.reshape(len(x), -1)


def log_spectrum(x: Signals, rate: float) -> NDArray[np.float32]:
    """(frames, leads × 20) the logarithm of the power in bands of 2 Hz from 1 to 41 Hz."""
    samples = x.shape[2]
    about = (x - x.mean(axis=2, keepdims=True)) * np.hanning(samples)
    power = np.abs(np.fft.rfft(about, axis=2)) ** 2 / samples
    hertz = np.fft.rfftfreq(samples, 1 / rate)
    bands = [(hertz >= low) & (hertz < low + 2) for low in BAND_HZ if low + 2 <= rate / 2]
    means = [power[:, :, band].mean(axis=2) for band in bands if band.any()]
    return np.log(np.stack(means, axis=2) + _QUIET_MV2).reshape(len(x), -1).astype(np.float32)


def amplitudes(x: Signals, rate: float) -> NDArray[np.float32]:
    """(frames, leads × 3) log of the spread, and 99.5 % and 0.5 % quantiles about the median."""
    low, middle, high = np.quantile(x, [0.005, 0.5, 0.995], axis=2)
    each = [np.log(x.std(axis=2) + _FLAT_MV), high - middle, low - middle]
    return np.stack(each, axis=2).reshape(len(x), -1).astype(np.float32)


CONTROLS: Final[dict[str, Control]] = {
    "median-beat": median_beat,
    "log-spectrum": log_spectrum,
    "amplitudes": amplitudes,
}
