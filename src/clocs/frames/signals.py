"""Recordings -> frames: where they begin, and their samples, filtered and at the frame's rate.

Positions are in samples of the recording as stored, at its own rate. Also memory for frames.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clocs.files import from_environment, writing
from clocs.recording import Filters, FrameSpec, Gap

CutWindows: TypeAlias = tuple[NDArray[np.int16], NDArray[np.float64]]
TOGETHER = 16  # recordings of one shape cut at once, so that most of the time is spent in numpy
LONG = 50_000  # samples per lead; a longer recording is cut on its own, to save memory
# Relative. Durations like 2500/300 s are not exact in binary, but mean a whole number of samples.
NEARLY = 1e-6
BASELINE_HZ = 0.5  # below it lies the wandering of the baseline
NOTCH_QUALITY = 30.0  # the notch is a thirtieth of its frequency wide
_ORDER = 2  # of each Butterworth filter; twice that, as it runs forwards and backwards
_PADDING = 2.0  # seconds of mirrored signal at each end
_CONTAINER = ("memory.max", "memory/memory.limit_in_bytes")  # under /sys/fs/cgroup
_NO_LIMIT = 1e5  # GiB


def frame_width(rate: ArrayLike, spec: FrameSpec) -> NDArray[np.float64]:
    """Samples that a frame covers at `rate` Hz: whole where it nearly is, else fractional."""
    width = np.asarray(rate, dtype=np.float64) * spec.seconds
    nearest = np.rint(width)
    return np.where(np.abs(width - nearest) <= NEARLY * width, nearest, width)


@dataclass(frozen=True, slots=True)
class Cuts:
    """All frames of all recordings, in order of recording, then time."""

    recording: NDArray[np.int64]  # (frames,) index of the recording
    frame: NDArray[np.int64]  # (frames,) index of the frame in its recording
    start: NDArray[np.int64]  # (frames,) first sample in its recording


def frame_count(samples: ArrayLike, rate: ArrayLike, spec: FrameSpec) -> NDArray[np.int64]:
    """Whole frames, without overlap, in `samples` samples at `rate` Hz; broadcasts."""
    ratio = np.asarray(samples, dtype=np.float64) / frame_width(rate, spec)
    return np.asarray(np.floor(ratio + NEARLY), dtype=np.int64)


def cut(samples: ArrayLike, rate: ArrayLike, spec: FrameSpec) -> Cuts:
    """Cut recordings of (n,) `samples` at (n,) `rate` Hz into frames."""
    counts = np.atleast_1d(frame_count(samples, rate, spec))
    recording = np.repeat(np.arange(counts.size), counts)
    frame = np.arange(recording.size) - np.repeat(np.cumsum(counts) - counts, counts)
    rates = np.broadcast_to(np.asarray(rate, dtype=np.float64), counts.shape)
    start = np.rint(frame.astype(np.float64) * frame_width(rates[recording], spec))
    return Cuts(recording, frame, start.astype(np.int64))


def touched(start: NDArray[np.int64], rate: float, spec: FrameSpec, gap: Gap) -> NDArray[np.bool_]:
    """(frames,) which frames of a recording, given by their first samples, a gap touches."""
    width = int(np.ceil(frame_width(rate, spec)))
    return np.asarray((start < gap.stop) & (start + width > gap.start), np.bool_)


def within(start: NDArray[np.int64], rate: float, spec: FrameSpec, flat: Gap) -> NDArray[np.bool_]:
    """(frames,) which frames, given by their first samples, lie within a flat stretch."""
    width = int(frame_width(rate, spec))
    return np.asarray((start >= flat.start) & (start + width <= flat.stop), np.bool_)


def bridged(
    digital: NDArray[np.int16], leads: Sequence[str], gaps: Sequence[Gap]
) -> NDArray[np.int16]:
    """(leads, samples) with straight lines across gaps, so that nothing else spreads from them.

    Resampling and filters see a whole recording, and a step would ring in the frames beside the
    gap. At the ends of a recording, the nearest value is repeated.
    """
    if not gaps:
        return digital
    made = digital.copy()
    for place, lead in enumerate(leads):
        missing = np.zeros(digital.shape[1], np.bool_)
        for gap in gaps:
            if gap.lead == lead:
                missing[gap.start : gap.stop] = True
        if missing.any() and not missing.all():
            known = np.flatnonzero(~missing)
            line = np.interp(np.flatnonzero(missing), known, digital[place, known])
            made[place, missing] = np.rint(line).astype(np.int16)
    return made


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
    from scipy import fft  # as `scipy.signal.resample`, which takes a second to import

    rows = signal.reshape(-1, signal.shape[-1])
    if left := len(rows) % 8:
        rows = np.concatenate([rows, np.zeros((8 - left, rows.shape[1]))])
    given = rows.shape[1]
    fewer = min(samples, given)
    spectrum = fft.rfft(rows)[:, : fewer // 2 + 1]
    if fewer % 2 == 0 and samples != given:  # the last frequency has no pair
        spectrum[:, fewer // 2] *= 2 if samples < given else 0.5
    made = fft.irfft(spectrum / (given / samples), n=samples)[: signal.size // signal.shape[-1]]
    return np.reshape(made, (*signal.shape[:-1], samples))


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


def memory_for_signals() -> int:
    """Bytes of signals that may be in memory at once: half of what this process may take."""
    return process_memory() // 2


def process_memory() -> int:
    """Bytes that this process may take: the machine's, its container's, `CLOCS_MEMORY_GIB`."""
    limits = [int(from_environment("CLOCS_MEMORY_GIB", _NO_LIMIT) * 2**30)]
    with suppress(AttributeError, OSError, ValueError):  # Windows does not say
        limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    for name in _CONTAINER:
        with suppress(OSError, ValueError):  # no container, or one without a limit
            limits.append(int((Path("/sys/fs/cgroup") / name).read_text()))
    return min(limits)


def allocate_signals(
    samples: int, *, beside: Path | None = None, memory: int | None = None
) -> NDArray[np.int16]:
    """(samples,) to fill: in memory, or beyond `memory` bytes in a mapped file without a name.

    Args:
        samples: Their number.
        beside: The file's folder; the system's temporary folder where None or not writable.
        memory: The most bytes in memory; `memory_for_signals` where None.
    """
    if samples * 2 <= (memory_for_signals() if memory is None else memory):
        return np.empty(samples, np.int16)
    writable = beside is not None and os.access(beside, os.W_OK)
    folder = os.fspath(beside) if beside is not None and writable else tempfile.gettempdir()
    with writing(folder), tempfile.TemporaryFile(dir=folder) as file:
        file.truncate(samples * 2)
        if hasattr(os, "posix_fallocate"):  # or a full disk would end the process without a word
            os.posix_fallocate(file.fileno(), 0, samples * 2)
        return np.memmap(file, np.int16, "r+", shape=(samples,))
