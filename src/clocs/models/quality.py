"""Signal quality: how much of a frame's power looks like an ECG, from 0 to 1.

The waves of the heartbeat fill a band of frequencies for a short part of the time, and noise fills
it all of the time: the band is as quiet as its median. What lies beside the band is wander, muscle
or hum. The measure needs no beats to be found, so that it works at any rate and rhythm. How well
it follows added noise, and what people have marked as noise, is in docs/prediction.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import max_pool1d, pad

from clocs.patients.encode import Windows

QRS_HZ: Final = (5.0, 40.0)
SLOW_HZ: Final = 0.7  # P and T waves lie between this and the QRS complex; below is wander
_MAX_SLOW = 2.0  # times the power of the QRS band: slow waves alone are no ECG
_MEDIAN = 0.6745  # of the absolute value of Gaussian noise of variance 1
_FLAT_SECONDS, _FLAT_SHARE = 1.0, 0.01  # no heart is that still for so long; of the frame's range
_CLIP_SECONDS, _CLIP_SHARE = 0.04, 0.002  # no wave has so broad a top; of the frame's range
_CLIPS = 5.0  # a fifth of the time at the limit: nothing of the QRS complexes is left
_AT_ONCE = 1 << 21  # samples looked at together


@torch.no_grad()
def signal_quality(x: Tensor, rate: float) -> Tensor:
    """x: (…, samples) of single leads, in any unit -> (…) from 0, noise or flat, to 1.

    Args:
        x: Frames as the encoder sees them, before or after normalization.
        rate: Samples per second.
    """
    return quality_and_flat(x, rate)[0]


@torch.no_grad()
def quality_and_flat(x: Tensor, rate: float) -> Tensor:
    """x: (…, samples) -> (2, …): `signal_quality`, and the share of the time that is flat."""
    rows = x.reshape(-1, x.shape[-1])
    step = max(1, _AT_ONCE // rows.shape[-1])
    found = [_quality(some.float(), rate) for some in rows.split(step) if len(some)]
    made = torch.cat([x.new_zeros((2, 0), dtype=torch.float32), *found], dim=1)
    return made.view(2, *x.shape[:-1])


def window_quality(
    windows: Windows, rate: float
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
    """Of windows as an encoder sees them: (n,) each.

    The sums over leads of their quality and of the share of time that is flat, and the leads.
    """
    values, there = windows if isinstance(windows, tuple) else (windows, None)
    if there is None:
        own, flat = quality_and_flat(torch.from_numpy(values), rate).double().numpy()
        return own, flat, np.ones(len(own), np.int64)
    made = np.zeros((2, *there.shape))
    made[:, there] = quality_and_flat(torch.from_numpy(values[there]), rate).numpy()
    return made[0].sum(axis=1), made[1].sum(axis=1), there.sum(axis=1)


def _quality(x: Tensor, rate: float) -> Tensor:
    """x: (rows, samples) -> (2, rows)."""
    low, high = torch.aminmax(x, dim=-1, keepdim=True)
    x = (x - low) / (high - low).clamp(min=torch.finfo(x.dtype).tiny)
    flat = _share(x, _flat, _FLAT_SECONDS * rate)
    clipped = _share(x, _clipped, _CLIP_SECONDS * rate)
    usable = (1 - flat - _CLIPS * clipped).clamp(min=0)
    x = x - x.mean(dim=-1, keepdim=True)
    spectrum = torch.fft.rfft(x)
    hertz = torch.fft.rfftfreq(x.shape[-1], 1 / rate, device=x.device)

    def band(low: float, high: float) -> Tensor:
        inside = (hertz >= low) & (hertz < high)
        made: Tensor = torch.fft.irfft(spectrum * inside, n=x.shape[-1])
        return made

    qrs = band(*QRS_HZ)
    floor = (qrs.abs().median(dim=-1).values / _MEDIAN).square()
    beats = (qrs.square().mean(dim=-1) - floor).clamp(min=0)
    slow = band(SLOW_HZ, QRS_HZ[0]).square().mean(dim=-1)
    total = x.square().mean(dim=-1).clamp(min=torch.finfo(x.dtype).tiny)
    ecg = (beats + torch.minimum(slow, _MAX_SLOW * beats)) / total
    return torch.stack([(ecg * usable).clamp(max=1), flat])


def _flat(low: Tensor, high: Tensor) -> Tensor:
    return high - low < _FLAT_SHARE


def _clipped(low: Tensor, high: Tensor) -> Tensor:
    return (low > 1 - _CLIP_SHARE) | (high < _CLIP_SHARE)


def _share(x: Tensor, is_so: Callable[[Tensor, Tensor], Tensor], width: float) -> Tensor:
    """x: (rows, samples) in [0, 1] -> (rows,) the share of time within windows that are so.

    Windows are `width` samples wide and begin at each quarter of it; `is_so` decides by their least
    and greatest values.
    """
    block = max(1, min(round(width), x.shape[-1]) // 4)
    of = 4 if x.shape[-1] >= 4 * block else 1
    low, high = -max_pool1d(-x, block), max_pool1d(x, block)
    low, high = -max_pool1d(-low, of, stride=1), max_pool1d(high, of, stride=1)
    padded = pad(is_so(low, high).to(x.dtype), (of - 1, of - 1))
    return max_pool1d(padded, of, stride=1).mean(dim=-1)
