"""Beats: heart rates from the intervals between QRS complexes, average and typical beats."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.fft import irfft, rfft, rfftfreq

from clocs.recording import Recording

Array = NDArray[np.float64]
SLOWEST, FASTEST = 20, 300  # beats per minute
_LEADS = ("II", "V5", "V2")  # the first two or three are enough for noise to differ
_SECONDS = 60.0  # of a long recording
_SHORTEST = 2.0
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
    filtered = _steep(signal, rate)
    scale = np.percentile(np.abs(filtered), 99, axis=1, keepdims=True)
    steep = np.divide(filtered, scale, out=np.zeros_like(filtered), where=scale > 0)
    # The limit keeps a single artifact from dwarfing every beat around it.
    power = np.clip(steep**2, 0, 4).mean(axis=0, dtype=np.float64)
    energy = np.sqrt(np.maximum(_running_mean(power, round(_WIDTH * rate)), 0))
    nearby = _running_maximum(energy, round(2.5 * rate))
    return _peaks(energy, _HEIGHT * nearby, max(1, round(_REFRACTORY * rate)), 0.1)


# SciPy has these three, too, but importing scipy.signal takes a quarter of a prediction's time.


def _running_mean(values: Array, width: int) -> Array:
    """(n,) the mean of so many values around each; beyond the ends they are reflected."""
    width = max(1, width)
    sums = np.cumsum(np.pad(values, (width // 2 + 1, width - width // 2), "symmetric"))
    return np.asarray((sums[width:] - sums[:-width])[: len(values)] / width)


def _running_maximum(values: Array, width: int) -> Array:
    """(n,) the greatest of so many values around each."""
    half = max(1, width // 2)
    size = 2 * half + 1
    padded = np.pad(values, (half, half + size - 1 - (len(values) + 2 * half - 1) % size))
    blocks = padded.reshape(-1, size)  # a window is the end of one and the start of the next
    ahead = np.maximum.accumulate(blocks, axis=1).ravel()
    behind = np.maximum.accumulate(blocks[:, ::-1], axis=1)[:, ::-1].ravel()
    return np.asarray(np.maximum(behind[: len(values)], ahead[size - 1 :][: len(values)]))


def _peaks(values: Array, height: Array, distance: int, prominence: float) -> NDArray[np.int64]:
    """Samples of the peaks of this height, the highest within a distance, that stand out."""
    middle = values[1:-1]
    found = 1 + np.flatnonzero((middle > values[:-2]) & (middle >= values[2:]))
    found = found[values[found] >= height[found]]
    kept = np.ones(len(found), np.bool_)
    for place in np.argsort(values[found])[::-1].tolist():
        if kept[place]:
            near = np.abs(found - found[place]) < distance
            near[place] = False
            kept[near] = False
    made = []
    for at in found[kept].tolist():
        higher = np.flatnonzero(values > values[at])
        right = int(np.searchsorted(higher, at))
        start = higher[right - 1] + 1 if right else 0
        stop = higher[right] if right < len(higher) else len(values)
        base = max(values[start : at + 1].min(), values[at:stop].min())
        if values[at] - base >= prominence:
            made.append(at)
    return np.array(made, np.int64)


def _steep(signal: NDArray[np.float64], rate: float) -> NDArray[np.float64]:
    """(leads, samples) -> what is steep in them, without delay."""
    samples = signal.shape[1]
    spectrum = rfft(signal - _line(signal), axis=1) * _steepness(samples, rate)
    return np.asarray(irfft(spectrum, n=samples, axis=1))


@lru_cache(maxsize=16)
def _steepness(samples: int, rate: float) -> NDArray[np.float32]:
    """What a Butterworth filter of order 2 keeps of each frequency, forwards and backwards."""
    low, high = np.tan(np.pi * np.array((_BAND[0], min(_BAND[1], 0.45 * rate))) / rate)
    hertz = np.minimum(rfftfreq(samples, 1 / rate), 0.4999 * rate)
    at = np.maximum(np.tan(np.pi * hertz / rate), 1e-9)
    return np.asarray(1 / (1 + ((at**2 - low * high) / (at * (high - low))) ** 4), np.float32)


def _line(signal: NDArray[np.float64]) -> NDArray[np.float64]:
    """(leads, samples) from the first value to the last: where a spectrum is taken, ends meet."""
    step = np.linspace(0, 1, signal.shape[1], dtype=signal.dtype)
    return np.asarray(signal[:, :1] + (signal[:, -1:] - signal[:, :1]) * step)


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
        spread: (leads,) the root mean square of what beats differ by, of that of the typical beat.
    """

    values: NDArray[np.float64]
    peaks: NDArray[np.float64]
    spread: NDArray[np.float64]


def typical_beat(signal: NDArray[np.float64], rate: float) -> TypicalBeat | None:
    """(leads, samples) -> the median beat; None where fewer than three whole beats are found.

    It does not depend on the order and the signs of leads: a swapped recording has the same beats.
    """
    slow = resampled_band(signal, rate, _TYPICAL_BAND, TYPICAL_HZ)
    after = TYPICAL_SAMPLES - TYPICAL_BEFORE - 1
    if slow.shape[1] < 2 * TYPICAL_HZ:
        return None
    found = 2 * qrs_complexes(slow[:, ::2], TYPICAL_HZ / 2)  # half the rate tells them as well
    peaks = aligned_beats(slow, found, TYPICAL_HZ)
    peaks = peaks[(peaks >= TYPICAL_BEFORE) & (peaks + after < slow.shape[1])]
    if len(peaks) < 3:
        return None
    beats = cut_beats(slow, peaks, TYPICAL_BEFORE, after)
    beats = beats - np.median(beats[:, :, ::4], axis=2, keepdims=True)
    values = _median(beats)
    size = np.sqrt((values**2).mean(axis=1))
    spread = np.sqrt(np.median(((beats - values) ** 2).mean(axis=2), axis=0))
    return TypicalBeat(values, peaks / TYPICAL_HZ, spread / np.where(size > 0, size, 1))


def _median(beats: NDArray[np.float64]) -> NDArray[np.float64]:
    """`np.median(beats, axis=0)`, which takes three times as long for few beats."""
    order = np.sort(beats, axis=0)
    middle = len(beats) // 2
    return np.asarray(order[middle] if len(beats) % 2 else (order[middle - 1] + order[middle]) / 2)


def resampled_band(
    signal: NDArray[np.float64], rate: float, band: tuple[float, float], out_hz: float
) -> NDArray[np.float64]:
    """(leads, samples) -> the same between two frequencies at `out_hz`, without delay."""
    samples = signal.shape[1]
    made = round(samples * out_hz / rate)
    kept = _kept(samples, rate, band)[: made // 2 + 1] * np.float32(made / samples)
    spectrum = rfft(signal - _line(signal), axis=1)[:, : made // 2 + 1] * kept
    return np.asarray(irfft(spectrum, n=made, axis=1))


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
    around = around - around.mean(axis=2, keepdims=True)
    scale = np.sqrt((around**2).mean(axis=(0, 2)))
    around /= np.where(scale > 0, scale, 1)[None, :, None]  # every lead counts alike
    moves = np.zeros(len(inside), np.int64)
    windows = np.lib.stride_tricks.sliding_window_view(around, 2 * half + 1, axis=2)
    beat = np.arange(len(inside))
    for _ in range(2):
        template = windows[beat, :, off + moves].mean(axis=0)
        moves = np.einsum("blsw,lw->bs", windows, template).argmax(axis=1) - off
    template = windows[beat, :, off + moves].mean(axis=0)
    summit = int((template**2).sum(axis=0).argmax()) - half
    return np.asarray(inside + moves + summit, np.int64)


def cut_beats(
    signal: NDArray[np.float64], at: NDArray[np.int64], before: int, after: int
) -> NDArray[np.float64]:
    """(beats, leads, samples) around each sample."""
    return np.stack([signal[:, i - before : i + after + 1] for i in at])
