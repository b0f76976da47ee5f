"""Heart rates: one per recording, from the intervals between its QRS complexes."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import maximum_filter1d, uniform_filter1d
from scipy.signal import butter, find_peaks, sosfiltfilt

from clocs.recording import Recording
from clocs.store.store import Store

SLOWEST, FASTEST = 20, 300  # beats per minute
_LEADS = ("II", "V5", "V2")  # the first two or three are enough for noise to differ
_SECONDS = 60.0  # of a long recording
_SHORTEST = 2.0
_BAND = (8.0, 24.0)  # Hz: steep QRS complexes rather than P and T waves
_WIDTH = 0.12  # s, of a QRS complex
_REFRACTORY = 0.2  # s: 300 beats per minute
_HEIGHT = 0.3  # of the largest nearby


def qrs_complexes(signal: NDArray[np.float64], rate: float) -> NDArray[np.int64]:
    """(leads, samples) in any unit -> samples in the middle of each QRS complex, in order."""
    filtered = sosfiltfilt(_band(rate), signal, axis=1)
    scale = np.percentile(np.abs(filtered), 99, axis=1, keepdims=True)
    steep = np.divide(filtered, scale, out=np.zeros_like(filtered), where=scale > 0)
    # The limit keeps a single artifact from dwarfing every beat around it.
    power = uniform_filter1d(np.clip(steep**2, 0, 4).mean(axis=0), round(_WIDTH * rate))
    energy = np.sqrt(np.maximum(power, 0))  # a running sum ends a little below zero
    nearby = maximum_filter1d(energy, round(2.5 * rate))
    found, _ = find_peaks(
        energy, height=_HEIGHT * nearby, distance=max(1, round(_REFRACTORY * rate)), prominence=0.1
    )
    return np.asarray(found, np.int64)


@lru_cache(maxsize=16)
def _band(rate: float) -> NDArray[np.float64]:
    high = min(_BAND[1], 0.45 * rate)
    return np.asarray(butter(2, (_BAND[0], high), "bandpass", fs=rate, output="sos"))


def heart_rate(recording: Recording) -> float | None:
    """Beats per minute, from the median interval; None where fewer than three beats are found."""
    if recording.seconds < _SHORTEST:
        return None
    leads = [lead for lead in _LEADS if lead in recording.leads] or list(recording.leads[:3])
    most = min(recording.samples, round(_SECONDS * recording.rate))
    signal = recording.select(leads).between(0, most).signal
    found = qrs_complexes(np.nan_to_num(signal), recording.rate)
    if len(found) < 3:
        return None
    rate = 60 * recording.rate / float(np.median(np.diff(found)))
    return rate if SLOWEST <= rate <= FASTEST else None


def heart_rates(
    store: Store, progress: Callable[[int, int], None] = lambda done, total: None
) -> NDArray[np.float32]:
    """(recordings,) beats per minute, in the order of the store's table; NaN where unknown."""
    rates = np.full(len(store), np.nan, np.float32)
    for i, recording in enumerate(store.iter_recordings()):
        rates[i] = heart_rate(recording) or np.nan
        if i % 200 == 0:
            progress(i, len(rates))
    return rates
