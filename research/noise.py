"""Noise of the kinds that real ECGs have, added at an exact ratio of signal to noise.

It is simulated, with the spectra of the real kinds, not cut from recorded noise. A lead's noise is
a function of its key, so that all encoders hear the same. Leads are independent of each other; real
noise is partly shared by leads that have an electrode in common.

The ratio holds within the band of the frames: an encoder of frames at 100 Hz hears noise of the
same power as one of frames at 500 Hz, all of it below 50 Hz. Nothing is aliased. What the filter
before sampling would have removed is not there, so frames at 100 Hz have no mains hum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clocs.errors import SettingError
from clocs.evaluation.labeled import LabeledPart
from clocs.frames.frames import ABSENT, Frames
from clocs.frames.splits import PARTS, keys_of, row_keys
from clocs.kernels.keyed_random import bits, fold, stream, uniform
from clocs.pretraining.perturbations import normals

WANDER_HZ: Final = (0.05, 0.5)  # breathing and slow movement
MUSCLE_HZ: Final = (20.0, 150.0)  # the upper limit is that of a diagnostic recorder
MOTION_HZ: Final = (1.0, 10.0)
_PASSED = 0.45  # of the rate: what a filter before sampling lets through
_SINES = 8  # of baseline wander
_HARMONICS = {1: 1.0, 2: 0.1, 3: 0.3}  # of the mains, and their amplitudes
_STEPS = 2**15 - 1
_AT_ONCE = 1 << 23  # samples made noisy together
_LEADS = 8192  # of frames made noisy together: no more keys than a GPU's grid has rows

Make = Callable[[Tensor, int, float, torch.dtype], Tensor]  # (keys, samples, rate, dtype)


def add_noise(x: Tensor, kind: str, snr_db: float, keys: Tensor, rate: float) -> Tensor:
    """x: (…, samples), in any unit -> the same with noise, lead by lead; nan stays nan.

    Signal and noise are measured by their variance within the frame. A flat lead has no power, and
    stays flat.

    Args:
        x: Frames of leads; a missing lead is nan.
        kind: One of `KINDS`.
        snr_db: Signal to noise in dB: 0 for equal power, 6 for noise of half the amplitude.
        keys: (…) int64, one per lead of a frame: `noise_keys` makes them.
        rate: Samples per second.

    Raises:
        SettingError: There is no such kind, or no such noise at this rate.
    """
    check_noise(kind, snr_db)
    if kind not in kinds_at(rate):
        raise SettingError(
            f"there is no {kind} noise in frames of {rate:g} samples per second: the filter before "
            f"sampling removes it; choose from {', '.join(kinds_at(rate))}"
        )
    samples, exact = x.shape[-1], torch.promote_types(x.dtype, torch.float32)
    each = fold(keys.to(x.device).expand(x.shape[:-1]).reshape(-1), stream(kind))
    noisy = [
        _noisy(some, KINDS[kind][0](own, samples, rate, exact), snr_db)
        for some, own in zip(x.reshape(-1, samples).split(_LEADS), each.split(_LEADS), strict=True)
    ]
    return torch.cat(noisy).view(x.shape)


def _noisy(x: Tensor, noise: Tensor, snr_db: float) -> Tensor:
    """x, noise: (leads, samples), of any power -> x with noise of the power asked for."""
    noise = noise - noise.mean(dim=-1, keepdim=True)
    loudness = noise.square().mean(dim=-1, keepdim=True)
    power = x.to(noise.dtype).var(dim=-1, correction=0, keepdim=True)
    gain = (power / loudness * 10 ** (-snr_db / 10)).sqrt()
    return (x + gain * noise).to(x.dtype)


def with_noise(
    frames: Frames, kind: str, snr_db: float, *, seed: int = 0, device: torch.device | str = "cpu"
) -> Frames:
    """The same frames with noise added to the test part; the signals of the others are absent.

    Values are rounded to the steps of the recording, or to coarser ones where they would not fit.

    Args:
        frames: Recordings cut into frames.
        kind: One of `KINDS`.
        snr_db: Signal to noise in dB.
        seed: Another one, another noise.
        device: Where the noise is made.
    """
    samples, rate = frames.spec.samples, frames.spec.rate
    chosen = frames.split == PARTS.index("test")
    row, lead = np.nonzero(chosen[:, None] & (frames.starts != ABSENT))
    keys = noise_keys(frames, np.arange(len(frames)), seed=seed)
    starts, scale = frames.starts.copy(), frames.scale.copy()
    starts[~chosen], scale[~chosen] = ABSENT, np.nan
    signals = np.empty(len(row) * samples, np.int16)
    windows = np.lib.stride_tricks.sliding_window_view(frames.signals, samples)
    step = max(1, _AT_ONCE // samples)
    for first in range(0, len(row), step):
        some = slice(first, first + step)
        x = torch.from_numpy(windows[frames.starts[row[some], lead[some]]]).to(device).float()
        own = keys[torch.from_numpy(row[some]), torch.from_numpy(lead[some])]
        noisy = add_noise(x, kind, snr_db, own, rate)
        coarser = (noisy.abs().amax(dim=1) / _STEPS).clamp(min=1)
        made = (noisy / coarser[:, None]).round().to(torch.int16).cpu().numpy()
        signals[first * samples : first * samples + made.size] = made.ravel()
        starts[row[some], lead[some]] = (first + np.arange(len(made))) * samples
        scale[row[some], lead[some]] *= coarser.cpu().numpy()
    return replace(frames, signals=signals, starts=starts, scale=scale)


def noisy_test(
    part: LabeledPart, kind: str, snr_db: float, device: torch.device | str = "cpu"
) -> LabeledPart:
    """A test part with noise."""
    noisy, rows = with_noise(part.frames, kind, snr_db, device=device), part.rows
    starts, scale = noisy.starts[rows.frame], noisy.scale[rows.frame]
    if not rows.leads_at_once:
        each = np.arange(len(rows)), rows.lead
        starts, scale = starts[each][:, None], scale[each][:, None]
    return replace(part, frames=noisy, rows=replace(rows, windows=starts, scale=scale))


def fewer_leads(part: LabeledPart, leads: Sequence[str]) -> LabeledPart:
    """The rows of a part that have one of these leads, without their other leads."""
    rows, known = part.rows, np.array([lead in leads for lead in part.frames.leads])
    kept = known[rows.lead]
    if rows.leads_at_once:
        windows = np.where(known, rows.windows, ABSENT)
        scale = np.where(known, rows.scale, np.float32(np.nan))
        kept, rows = (windows != ABSENT).any(axis=1), replace(rows, windows=windows, scale=scale)
    if not kept.any():
        raise SettingError(
            f"no test frame of {part.frames.dataset} has one of the leads {', '.join(leads)}; the "
            f"encoder sees {', '.join(part.frames.leads)}"
        )
    return replace(part, rows=rows.where(kept))


def noise_keys(frames: Frames, rows: NDArray[np.integer], *, seed: int = 0) -> Tensor:
    """(rows, leads) int64: a function of seed, recording, segment and the lead's name."""
    recordings = keys_of(frames.keyed(frames.recording_ids))[frames.recording[rows]]
    names = keys_of(frames.leads)
    found = row_keys(recordings[:, None], frames.segment[rows][:, None], names[None])
    return fold(torch.from_numpy(found.view(np.int64)), stream("noise"), seed)


def kinds_at(rate: float) -> tuple[str, ...]:
    """The kinds that frames of this rate can have."""
    return tuple(name for name, (_, lowest) in KINDS.items() if lowest <= _PASSED * rate)


def check_noise(kind: str, snr_db: float) -> None:
    """SettingError where there is no such noise."""
    if kind not in KINDS:
        raise SettingError(f"there is no noise {kind!r}; choose from {', '.join(KINDS)}")
    if math.isnan(snr_db) or snr_db < -100:
        raise SettingError(f"`snr_db` is {snr_db:g}; give a number of dB from -100 upwards")


def _baseline_wander(keys: Tensor, samples: int, rate: float, dtype: torch.dtype) -> Tensor:
    """Slow sines; a frame shorter than their period sees a slope."""
    draws = uniform(keys, 3 * _SINES).view(-1, 3, _SINES)
    low, high = map(math.log, WANDER_HZ)
    hertz = (low + (high - low) * draws[:, 0]).exp()
    time = _seconds(samples, rate, keys.device)
    total = torch.zeros(len(keys), samples, dtype=dtype, device=keys.device)
    for n in range(_SINES):
        angle = 2 * math.pi * (hertz[:, n, None] * time + draws[:, 1, n, None])
        total += draws[:, 2, n, None].to(dtype) * angle.to(dtype).sin()
    return total


def _muscle(keys: Tensor, samples: int, rate: float, dtype: torch.dtype) -> Tensor:
    """A steady tension and bursts of it."""
    seconds = samples / rate
    bursts = max(1, round(seconds / 2))
    draws = uniform(fold(keys, stream("bursts")), 3 * bursts, dtype).view(-1, 3, bursts)
    time = _seconds(samples, rate, keys.device)
    tension = torch.full((len(keys), samples), 0.3, dtype=dtype, device=keys.device)
    for n in range(bursts):
        center, width, height = (draws[:, i, n, None] for i in range(3))
        apart = (time - center * seconds) / (0.1 + 0.4 * width)
        tension += height * (-apart.square()).exp()
    return _band(tension * _white(keys, samples, dtype), rate, *MUSCLE_HZ)


def _electrode_motion(keys: Tensor, samples: int, rate: float, dtype: torch.dtype) -> Tensor:
    """Half of the power is jumps that fade within a second, half a restless line."""
    seconds = samples / rate
    jumps = 1 + round(seconds / 2)
    draws = uniform(fold(keys, stream("jumps")), 3 * jumps, dtype).view(-1, 3, jumps)
    time = _seconds(samples, rate, keys.device)
    total = torch.zeros(len(keys), samples, dtype=dtype, device=keys.device)
    for n in range(jumps):
        when, height, fade = (draws[:, i, n, None] for i in range(3))
        since = time - (when * (seconds + 0.5) - 0.5)  # or just before the frame
        total += (2 * height - 1) * (-since.clamp(min=0) / (0.1 + 0.9 * fade)).exp() * (since >= 0)
    restless = _band(_white(keys, samples, dtype), rate, *MOTION_HZ)
    return _even(total) + _even(restless)


def _mains(hertz: float) -> Make:
    def hum(keys: Tensor, samples: int, rate: float, dtype: torch.dtype) -> Tensor:
        draws = uniform(keys, 2 + len(_HARMONICS))
        time = _seconds(samples, rate, keys.device)
        exact = hertz + 0.2 * (draws[:, :1] - 0.5)  # the grid's own deviation
        total = torch.zeros(len(keys), samples, dtype=dtype, device=keys.device)
        for n, (multiple, height) in enumerate(_HARMONICS.items()):
            if hertz * multiple <= _PASSED * rate:
                angle = 2 * math.pi * (multiple * exact * time + draws[:, 2 + n, None])
                total += height * angle.to(dtype).sin()
        drift = (2 * math.pi * (0.3 * time + draws[:, 1:2])).sin()
        return total * (1 + 0.2 * drift).to(dtype)

    return hum


def _seconds(samples: int, rate: float, device: torch.device) -> Tensor:
    """(samples,) when each sample is, in float32.

    Computed on the CPU, because a GPU multiplies by the reciprocal of a number instead of dividing
    by it: its last digit differs, and with it the phase of a hum at 50 Hz by 1e-4.
    """
    return (torch.arange(samples) / rate).to(device)


def _white(keys: Tensor, samples: int, dtype: torch.dtype) -> Tensor:
    draws = bits(fold(keys, stream("white")), (samples + 1) // 2)
    return normals(draws, dtype)[:, :samples]


def _band(x: Tensor, rate: float, low: float, high: float) -> Tensor:
    """x: (…, samples) without what lies outside of the band."""
    samples = x.shape[-1]
    hertz = torch.fft.rfftfreq(samples, 1 / rate).to(x.device)  # on the CPU, as `_seconds`
    kept = (hertz >= low) & (hertz <= min(high, _PASSED * rate))
    if not bool(kept.any()):
        raise SettingError(
            f"frames of {samples / rate:g} s are too short for noise of {low:g} to {high:g} Hz; "
            "use longer ones"
        )
    banded: Tensor = torch.fft.irfft(torch.fft.rfft(x) * kept, n=samples)
    return banded


def _even(x: Tensor) -> Tensor:
    """x: (…, samples) with variance 1 about 0, or 0 where it is flat."""
    spread = x.std(dim=-1, correction=0, keepdim=True)
    return (x - x.mean(dim=-1, keepdim=True)) / spread.clamp(min=torch.finfo(x.dtype).tiny)


# what makes a kind, (leads,) keys -> (leads, samples) of any power; below which Hz it has next to
# nothing
KINDS: Final[dict[str, tuple[Make, float]]] = {
    "baseline-wander": (_baseline_wander, 0.0),
    "muscle": (_muscle, MUSCLE_HZ[0]),
    "electrode-motion": (_electrode_motion, MOTION_HZ[0]),
    "mains": (_mains(50.0), 50.0),
    "mains-60": (_mains(60.0), 60.0),
}
