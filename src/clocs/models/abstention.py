"""When a classifier abstains: the quality of signals, and the distance from the training data.

Quality is how much of a frame's power looks like an ECG, from 0 to 1. The waves of the heartbeat
fill a band of frequencies for a short part of the time, and noise fills it all of the time: the
band is as quiet as its median. What lies beside the band is wander, muscle or hum. The measure
needs no beats to be found, so that it works at any rate and rhythm. How well it follows added
noise, and what people have marked as noise, is in docs/prediction.md.

The training data are a Gaussian of embeddings with few principal axes and the same variance in all
other directions: small enough to ship, and it holds no recording of anybody.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from clocs.encoders.base import Weights
from clocs.errors import SettingError

QRS_HZ: Final = (5.0, 40.0)
SLOW_HZ: Final = 0.7  # P and T waves lie between this and the QRS complex; below is wander
_MAX_SLOW = 2.0  # times the power of the QRS band: slow waves alone are no ECG
_MEDIAN = 0.6745  # of the absolute value of Gaussian noise of variance 1
_FLAT_SECONDS, _FLAT_SHARE = 1.0, 0.01  # no heart is that still for so long; of the frame's range
_CLIP_SECONDS, _CLIP_SHARE = 0.04, 0.002  # no wave has so broad a top; of the frame's range
_CLIPS = 5.0  # a fifth of the time at the limit: nothing of the QRS complexes is left
_AT_ONCE = 1 << 21  # samples looked at together
AXES: Final = 32  # the most that are kept
ABSTAINED: Final = 0.02  # share of validation recordings beyond each limit


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
    values: NDArray[np.int16], present: NDArray[np.bool_], rate: float
) -> NDArray[np.float64]:
    """(3, n) of windows: sums over leads of quality and flat share, and the number of leads.

    Args:
        values: (n, leads, samples).
        present: (n, leads) which have a signal.
        rate: Samples per second.
    """
    made = np.zeros((3, *present.shape))
    made[:2, present] = quality_and_flat(torch.from_numpy(values[present]), rate).numpy()
    made[2] = present
    return np.asarray(made.sum(axis=2))


def _quality(x: Tensor, rate: float) -> Tensor:
    """x: (rows, samples) -> (2, rows)."""
    low, high = torch.aminmax(x, dim=-1, keepdim=True)
    x = (x - low) / (high - low).clamp(min=torch.finfo(x.dtype).tiny)
    flat = _share(x, lambda low, high: high - low < _FLAT_SHARE, _FLAT_SECONDS * rate)
    clipped = _share(
        x,
        lambda low, high: (low > 1 - _CLIP_SHARE) | (high < _CLIP_SHARE),
        _CLIP_SECONDS * rate,
    )
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


def _share(x: Tensor, is_so: Callable[[Tensor, Tensor], Tensor], width: float) -> Tensor:
    """x: (rows, samples) in [0, 1] -> (rows,) the share of time within windows that are so.

    Windows are `width` samples wide and begin at each quarter of it; `is_so` decides by their least
    and greatest values.
    """
    block = max(1, min(round(width), x.shape[-1]) // 4)
    of = 4 if x.shape[-1] >= 4 * block else 1
    low, high = torch.aminmax(x.unfold(1, block, block), dim=-1)
    low, high = low.unfold(1, of, 1).amin(dim=-1), high.unfold(1, of, 1).amax(dim=-1)
    padded = pad(is_so(low, high).to(x.dtype), (of - 1, of - 1))
    return padded.unfold(1, of, 1).amax(dim=-1).mean(dim=-1)


@torch.no_grad()
def fit_reference(vectors: Tensor) -> Weights:
    """The reference of training recordings, one per member.

    Args:
        vectors: (members, recordings, dim), the mean of the embeddings of each recording's rows.

    Returns:
        "mean" (members, dim), "axes" (members, k, dim) of length 1, "variance" (members, k) along
        them, and "rest" (members,), the mean variance along all other directions; in float32.
    """
    count, dim = vectors.shape[1:]
    if count < 2:
        raise SettingError(f"a reference needs at least two training recordings, not {count}")
    exact = vectors.double()
    mean = exact.mean(dim=1, keepdim=True)
    # of the covariance, or of the products of recordings, which have the same: whichever is smaller
    away = exact - mean
    small = count < dim
    squared, found = torch.linalg.eigh(away @ away.mT if small else away.mT @ away)
    variance, found = squared.flip(1).clamp(min=0) / (count - 1), found.flip(2).mT
    kept = min(AXES, dim - 1, len(variance[0]))
    axes = found[:, :kept]
    if small:
        axes = torch.nn.functional.normalize(axes @ away, dim=-1)
    others = variance[:, kept:].sum(dim=1) / (dim - kept)
    # a network may have directions that it never uses: no distance along them is infinite
    least = 1e-6 * variance.sum(dim=1) / dim + torch.finfo(torch.float32).tiny
    made = {
        "mean": mean[:, 0],
        "axes": axes[:, :kept],
        "variance": variance[:, :kept].clamp(min=least[:, None]),
        "rest": others.clamp(min=least),
    }
    return {name: tensor.float().contiguous() for name, tensor in made.items()}


@torch.no_grad()
def distance(reference: Weights, vectors: Tensor) -> Tensor:
    """How far recordings are from those of training; about 1 for these themselves.

    Args:
        reference: What `fit_reference` gave.
        vectors: (members, recordings, dim), the mean of the embeddings of each recording's rows.

    Returns:
        (recordings,) Mahalanobis distances, divided by the root of the dimension; the root mean
        square over the members.
    """
    mean, axes, variance, rest = (
        reference[name].to(vectors.device).double() for name in ("mean", "axes", "variance", "rest")
    )
    away = vectors.double() - mean[:, None]
    along = away @ axes.mT
    beside = (away.square().sum(dim=-1) - along.square().sum(dim=-1)).clamp(min=0)
    squared = (along.square() / variance[:, None]).sum(dim=-1) + beside / rest[:, None]
    return (squared / vectors.shape[-1]).mean(dim=0).sqrt()


def choose_limits(
    quality: Sequence[float] | Tensor, distances: Sequence[float] | Tensor
) -> dict[str, float]:
    """Limits beyond which a classifier abstains: of 2 % of validation recordings, each of them.

    Args:
        quality: (recordings,) of validation recordings.
        distances: (recordings,) of the same.

    Returns:
        The least "quality" and the greatest "distance" of a recording that is predicted.
    """
    least = torch.as_tensor(quality, dtype=torch.float64).quantile(ABSTAINED)
    greatest = torch.as_tensor(distances, dtype=torch.float64).quantile(1 - ABSTAINED)
    return {"quality": float(least), "distance": float(greatest)}
