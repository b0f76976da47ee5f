"""Beats: where QRS complexes are, average and typical beats."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.fft import irfft, rfft, rfftfreq

from clocs.recording import Recording

Array = NDArray[np.float64]
_SECONDS = 60.0  # of a long recording
_BAND = (8.0, 24.0)  # Hz: steep QRS complexes rather than P and T waves
_WIDTH = 0.12  # s, of a QRS complex
_REFRACTORY = 0.2  # s: 300 beats per minute
_HEIGHT = 0.3  # of the largest nearby
_BEFORE, _AFTER = 0.35, 0.6  # of the interval between beats, on either side of the R peak
_LONGEST = 0.85  # s: beats further apart than this have a pause between them
_QRS = 0.08  # s on either side that beats are aligned by
TYPICAL_HZ = 250
TYPICAL_BEFORE, TYPICAL_SAMPLES = 75, 200  # 0.3 s before the R peak, 0.8 s in all
_TYPICAL_BAND = (0.5, 40.0)  # Hz
_OFF = 0.05  # s by which the middle of a QRS complex may miss that of another beat


def qrs_complexes(signal: NDArray[np.float64], rate: float) -> NDArray[np.int64]:
    """(leads, samples) in any unit -> samples in the middle of each QRS complex, in order."""
    return _complexes(_spectrum(signal), signal.shape[1], rate)


def _complexes(spectrum: NDArray[Any], samples: int, rate: float) -> NDArray[np.int64]:
    """The same of the spectrum of so many samples."""
    kept = _steepness(samples, rate)[: spectrum.shape[1]]  # a slow recording has no more
    filtered = irfft(spectrum * kept, n=samples, axis=1)
    scale = quantile(np.abs(filtered), 0.99, axis=1)
    steep = filtered / np.where(scale > 0, scale, np.inf)
    # The limit keeps a single artifact from dwarfing every beat around it.
    power = np.minimum(steep**2, 4).mean(axis=0, dtype=np.float64)
    energy = np.sqrt(np.maximum(_running_mean(power, round(_WIDTH * rate)), 0))
    nearby = _running_maximum(energy, round(2.5 * rate))
    return _peaks(energy, _HEIGHT * nearby, max(1, round(_REFRACTORY * rate)), 0.1)


# NumPy and SciPy have these, too, but take two to five times as long for arrays this small, and
# importing scipy.signal takes a quarter of a prediction's time.


def quantile(values: Array, share: float, axis: int) -> Array:
    """`np.quantile` with its axis kept; a share of 0.5 is the median."""
    place = share * (values.shape[axis] - 1)
    ends = math.floor(place), math.ceil(place)
    few = values.shape[axis] < 100
    order = np.sort(values, axis) if few else np.partition(values, ends, axis)
    low, high = (order.take([k], axis) for k in ends)
    return np.asarray(low + (high - low) * np.float32(place % 1))


def _running_mean(values: Array, width: int) -> Array:
    """(n,) the mean of so many values around each; beyond the ends they are reflected."""
    width = max(1, width)
    before, after = width // 2 + 1, width - width // 2
    ends = values[:before][::-1], values[::-1][:after]
    sums = np.cumsum(np.concatenate([ends[0], values, ends[1]]))
    return np.asarray((sums[width:] - sums[:-width])[: len(values)] / width)


def _running_maximum(values: Array, width: int) -> Array:
    """(n,) the greatest of so many values around each."""
    half = max(1, width // 2)
    size = 2 * half + 1
    blocks = np.zeros((-(-(len(values) + 2 * half) // size), size))
    blocks.reshape(-1)[half : half + len(values)] = values
    # A window is the end of one block and the start of the next.
    ahead = np.maximum.accumulate(blocks, axis=1).ravel()
    behind = np.maximum.accumulate(blocks[:, ::-1], axis=1)[:, ::-1].ravel()
    return np.asarray(np.maximum(behind[: len(values)], ahead[size - 1 :][: len(values)]))


def _peaks(values: Array, height: Array, distance: int, prominence: float) -> NDArray[np.int64]:
    """Samples of the peaks of this height, the highest within a distance, that stand out."""
    middle = values[1:-1]
    found = 1 + np.flatnonzero((middle > values[:-2]) & (middle >= values[2:]))
    tops = found[values[found] >= height[found]]
    chosen, free = [], np.ones(len(values), np.bool_)
    for at in tops[np.argsort(values[tops])[::-1]].tolist():
        if free[at]:
            chosen.append(at)
            free[max(0, at - distance + 1) : at + distance] = False
    heights = values.tolist()
    kept = [at for at in sorted(chosen) if _stands_out(heights, at, prominence)]
    return np.array(kept, np.int64)


def _stands_out(values: list[float], at: int, prominence: float) -> bool:
    """Whether values fall by so much on both sides before there is a greater one."""
    top = values[at]
    for side in (range(at, -1, -1), range(at, len(values))):
        for place in side:
            if values[place] > top or top - values[place] >= prominence:
                break
        if top - values[place] < prominence:
            return False
    return True


@lru_cache(maxsize=16)
def _steepness(samples: int, rate: float) -> NDArray[np.float32]:
    """What a Butterworth filter of order 2 keeps of each frequency, forwards and backwards."""
    low, high = np.tan(np.pi * np.array((_BAND[0], min(_BAND[1], 0.45 * rate))) / rate)
    hertz = np.minimum(rfftfreq(samples, 1 / rate), 0.4999 * rate)
    at = np.maximum(np.tan(np.pi * hertz / rate), 1e-9)
    return np.asarray(1 / (1 + ((at**2 - low * high) / (at * (high - low))) ** 4), np.float32)


def _spectrum(signal: NDArray[np.float64]) -> NDArray[Any]:
    """(leads, samples) -> the spectrum without the line from the first value to the last.

    Where a spectrum is taken, ends meet.
    """
    step = np.linspace(0, 1, signal.shape[1], dtype=signal.dtype)
    line = (signal[:, -1:] - signal[:, :1]) * step
    line += signal[:, :1]
    return np.asarray(rfft(np.subtract(signal, line, out=line), axis=1))


@dataclass(frozen=True)
class AverageBeat:
    """The average beat of a recording.

    Attributes:
        leads: One per row.
        rate: In Hz.
        peaks: (beats,) samples of the R peaks; no beat that is cut off by an end of the recording.
        before: Samples before the R peak.
        mean: (leads, samples) in the recording's unit, about each beat's median; nan where every
            beat has a gap.
        spread: (leads, samples) standard deviation of the beats.
    """

    leads: tuple[str, ...]
    rate: float
    peaks: NDArray[np.int64]
    before: int
    mean: NDArray[np.float64]
    spread: NDArray[np.float64]


def average_beat(recording: Recording) -> AverageBeat | None:
    """The mean of the beats in the first minute; None where fewer than two are found."""
    rate = recording.rate
    part = recording.between(0, min(recording.samples, round(_SECONDS * rate)))
    signal = part.signal
    filled = np.nan_to_num(signal)
    if part.seconds < 1 or len(found := qrs_complexes(filled, rate)) < 2:
        return None
    interval = min(float(np.median(np.diff(found))) / rate, _LONGEST)
    before, after = round(_BEFORE * interval * rate), round(_AFTER * interval * rate)
    peaks = aligned_beats(filled, found, rate)
    peaks = peaks[(peaks >= before) & (peaks + after < part.samples)]
    if len(peaks) < 2:
        return None
    beats = cut_beats(signal, peaks, before, after)  # (beats, leads, samples)
    known = ~np.isnan(beats)
    middle = np.nan_to_num(np.nanmedian(np.where(known.any(2, keepdims=True), beats, 0), axis=2))
    beats = np.where(known, beats - middle[:, :, None], 0)
    count = known.sum(axis=0)
    mean = np.divide(beats.sum(axis=0), count, out=np.full(count.shape, np.nan), where=count > 0)
    apart = np.where(known, beats - np.nan_to_num(mean), 0)
    spread = np.sqrt((apart**2).sum(axis=0) / np.maximum(count, 1))
    return AverageBeat(part.leads, rate, peaks, before, mean, spread)


@dataclass(frozen=True)
class TypicalBeat:
    """The median beat of a recording, from 0.5 to 40 Hz.

    Attributes:
        values: (leads, TYPICAL_SAMPLES) in the recording's unit at TYPICAL_HZ, about the median of
            each lead; the R peak is at TYPICAL_BEFORE.
        peaks: (beats,) seconds of the R peaks.
    """

    values: NDArray[np.float64]
    peaks: NDArray[np.float64]


def typical_beat(signal: NDArray[np.float64], rate: float) -> TypicalBeat | None:
    """(leads, samples) -> the median beat; None where fewer than three whole beats are found.

    It does not depend on the order and the signs of leads: a swapped recording has the same beats.
    """
    half = round(signal.shape[1] * TYPICAL_HZ / rate / 2)
    after = TYPICAL_SAMPLES - TYPICAL_BEFORE - 1
    if half < TYPICAL_HZ:
        return None
    spectrum = _band(signal, rate, _TYPICAL_BAND, 2 * half)
    slow = irfft(spectrum, n=2 * half, axis=1)
    # Half the rate tells complexes as well.
    found = 2 * _complexes(spectrum[:, : half // 2 + 1], half, TYPICAL_HZ / 2)
    peaks = aligned_beats(slow, found, TYPICAL_HZ)
    peaks = peaks[(peaks >= TYPICAL_BEFORE) & (peaks + after < slow.shape[1])]
    if len(peaks) < 3:
        return None
    beats = cut_beats(slow, peaks, TYPICAL_BEFORE, after)
    beats -= quantile(beats[:, :, ::4], 0.5, axis=2)
    return TypicalBeat(quantile(beats, 0.5, axis=0)[0], peaks / TYPICAL_HZ)


def resampled_band(
    signal: NDArray[np.float64], rate: float, band: tuple[float, float], out_hz: float
) -> NDArray[np.float64]:
    """(leads, samples) -> the same between two frequencies at `out_hz`, without delay."""
    made = round(signal.shape[1] * out_hz / rate)
    return np.asarray(irfft(_band(signal, rate, band, made), n=made, axis=1))


def _band(
    signal: NDArray[np.float64], rate: float, band: tuple[float, float], made: int
) -> NDArray[Any]:
    """The spectrum of `resampled_band`, of so many samples."""
    samples = signal.shape[1]
    kept = _kept(samples, rate, band)[: made // 2 + 1] * np.float32(made / samples)
    return np.asarray(_spectrum(signal)[:, : made // 2 + 1] * kept)


@lru_cache(maxsize=16)
def _kept(samples: int, rate: float, band: tuple[float, float]) -> NDArray[np.float32]:
    """What is kept of each frequency between two."""
    hertz, (low, high) = rfftfreq(samples, 1 / rate), band
    kept = 1 / np.sqrt(1 + (low / np.maximum(hertz, 1e-9)) ** 8)
    return np.asarray(kept / np.sqrt(1 + (hertz / high) ** 16), np.float32)


def aligned_beats(
    signal: NDArray[np.float64], found: NDArray[np.int64], rate: float
) -> NDArray[np.int64]:
    """R peaks: QRS complexes moved to where they resemble their mean most, and to its summit."""
    half, off = max(2, round(_QRS * rate)), max(1, round(_OFF * rate))
    whole = (found >= half + off) & (found + half + off < signal.shape[1])
    inside: NDArray[np.int64] = found[whole]
    if not len(inside):
        return inside
    around = cut_beats(signal, inside, half + off, half + off)
    around -= around.mean(axis=2, keepdims=True)
    scale = np.sqrt((around**2).mean(axis=(0, 2)))
    around /= np.where(scale > 0, scale, 1)[:, None]  # every lead counts alike
    beat, step, width = (np.arange(n)[:, None] for n in (len(inside), 2 * off + 1, 2 * half + 1))
    moved = np.zeros((len(step), *around.shape[1:]), around.dtype)  # the template, k samples later
    starts = np.full_like(beat, off)
    for _ in range(2):
        template = around[beat, :, starts + width.T].mean(axis=0)  # (samples, leads)
        moved[step, :, step + width.T] = template
        alike = around.reshape(len(beat), -1) @ moved.reshape(len(step), -1).T
        starts = alike.argmax(axis=1, keepdims=True)
    template = around[beat, :, starts + width.T].mean(axis=0)
    summit = int((template**2).sum(axis=1).argmax()) - half
    return np.asarray(inside + starts[:, 0] - off + summit, np.int64)


def cut_beats(
    signal: NDArray[np.float64], at: NDArray[np.int64], before: int, after: int
) -> NDArray[np.float64]:
    """(beats, leads, samples) around each sample."""
    return np.array([signal[:, i - before : i + after + 1] for i in at.tolist()])
