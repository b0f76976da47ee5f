"""Samples of recordings -> samples of frames, at the frame's rate."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from clocs.frames.filtering import filtered
from clocs.frames.positions import frame_width
from clocs.recording import FrameSpec

CutWindows: TypeAlias = tuple[NDArray[np.int16], NDArray[np.float64]]
TOGETHER = 16  # recordings of one shape cut at once, so that most of the time is spent in numpy
LONG = 50_000  # samples per lead; a longer recording is cut on its own, to save memory


def cut_windows(
    digital: NDArray[np.int16],
    gain: NDArray[np.float64],
    baseline: NDArray[np.int64],
    rate: float,
    count: int,
    spec: FrameSpec,
    resample: str,
) -> CutWindows:
    """Cut recordings of one rate and length into frames; none depends on the others.

    Args:
        digital: (recordings, leads, samples).
        gain: (recordings, leads) steps per mV.
        baseline: (recordings, leads).
        rate: In Hz.
        count: Frames per recording.
        spec: The frame; its filters are applied to whole recordings first.
        resample: The whole 'recording', or each 'frame' on its own.

    Returns:
        (recordings, leads, count, spec.samples), and (recordings, leads, count) mV per step.
    """
    n, leads, _ = digital.shape
    cut_shape = (n, leads, count, spec.samples)
    plain: NDArray[np.bool_] = np.zeros(n, np.bool_)  # recordings that need no change
    if spec.filters:
        signal = filtered(_from_zero(digital, baseline[..., None]), rate, spec.filters)
        if np.isclose(rate, spec.rate):
            signal = signal[..., : count * spec.samples].reshape(cut_shape)
        else:
            signal = _cut_resampled(signal, rate, count, spec, resample)
    elif np.isclose(rate, spec.rate):
        whole = digital[..., : count * spec.samples].reshape(cut_shape)
        plain = np.asarray(~baseline.any(axis=1) & (gain > 0).all(axis=1), np.bool_)
        if plain.all():
            return whole, np.repeat(1 / gain[..., None], count, axis=-1)
        signal = _from_zero(whole, baseline[..., None, None])
    else:
        signal = _cut_resampled(
            _from_zero(digital, baseline[..., None]), rate, count, spec, resample
        )
    # an eighth of the file's own step, or as finely as 16 bits allow: a second rounding must not
    # add noise of its own
    peak = np.maximum(signal.max(axis=(-2, -1)), -signal.min(axis=(-2, -1)))
    step = np.maximum(peak / 32767, 1 / 8)
    signal *= (np.sign(gain) / step)[..., None, None]  # an inverted lead is turned upright
    values = np.rint(signal, out=signal).astype(np.int16)
    step /= np.abs(gain)
    if plain.any():  # recordings that need no change keep the file's own steps
        values[plain] = whole[plain]
        step[plain] = 1 / gain[plain]
    return values, np.repeat(step[..., None], count, axis=-1)


def _cut_resampled(
    signal: NDArray[np.float64], rate: float, count: int, spec: FrameSpec, resample: str
) -> NDArray[np.float64]:
    """(recordings, leads, any) -> (recordings, leads, count, spec.samples)."""
    n, leads, samples = signal.shape
    if resample == "frame":
        width = round(float(frame_width(rate, spec)))
        frames = signal[..., : count * width].reshape(n, leads, count, width)
        return _resampled(frames, spec.samples)
    total = max(round(samples / rate * spec.rate), count * spec.samples)
    made = _resampled(signal, total)
    return made[..., : count * spec.samples].reshape(n, leads, count, spec.samples)


def _from_zero(digital: NDArray[np.int16], baseline: NDArray[np.int64]) -> NDArray[np.float64]:
    """The file's steps above zero; the scale to mV is applied once, to the frames."""
    signal = digital.astype(np.float64)
    if baseline.any():
        signal -= baseline.astype(np.float64)
    return signal


def _resampled(signal: NDArray[np.float64], samples: int) -> NDArray[np.float64]:
    """(…, any) -> (…, samples).

    The transform takes rows by twos, fours or eights and rounds those left over differently: rows
    of zeros fill the last eight, so that a row's bits do not depend on the others.
    """
    import scipy.signal  # takes a second: only where it is needed

    rows = signal.reshape(-1, signal.shape[-1])
    if left := len(rows) % 8:
        rows = np.concatenate([rows, np.zeros((8 - left, rows.shape[1]))])
    made = scipy.signal.resample(rows, samples, axis=-1)[: signal.size // signal.shape[-1]]
    return np.reshape(made, (*signal.shape[:-1], samples))
