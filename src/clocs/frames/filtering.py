"""Filters of whole recordings, forwards and backwards, so that nothing is delayed."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from clocs.recording import Filters

BASELINE_HZ = 0.5  # below it lies the wandering of the baseline
NOTCH_QUALITY = 30.0  # the notch is a thirtieth of its frequency wide
_ORDER = 2  # of each Butterworth filter; twice that, as it runs forwards and backwards
_PADDING = 2.0  # seconds of mirrored signal at each end


def filtered(signal: NDArray[np.float64], rate: float, filters: Filters) -> NDArray[np.float64]:
    """(…, samples) at `rate` Hz -> the same, filtered; each row by itself.

    What lies above half of the sampling rate is not there to be taken out: such an end of the band,
    or notch, is skipped.
    """
    import scipy.signal  # takes a second: only where it is needed

    padding = min(round(_PADDING * rate), signal.shape[-1] - 1)
    for sections in _sections(rate, filters):
        signal = scipy.signal.sosfiltfilt(sections, signal, axis=-1, padlen=padding)
    return signal


@lru_cache(maxsize=64)
def _sections(rate: float, filters: Filters) -> tuple[NDArray[np.float64], ...]:
    """Second-order sections of each filter."""
    import scipy.signal

    made = []
    butter = scipy.signal.butter
    if filters.baseline:
        made.append(butter(_ORDER, BASELINE_HZ, "highpass", fs=rate, output="sos"))
    if filters.band_pass is not None:
        low, high = filters.band_pass
        made.append(butter(_ORDER, low, "highpass", fs=rate, output="sos"))
        if high < rate / 2:
            made.append(butter(_ORDER, high, "lowpass", fs=rate, output="sos"))
    if filters.notch is not None and filters.notch < rate / 2:
        notch = scipy.signal.iirnotch(filters.notch, NOTCH_QUALITY, fs=rate)
        made.append(scipy.signal.tf2sos(*notch))
    return tuple(made)
