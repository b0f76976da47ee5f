"""Where the embeddings of training recordings lie, and how far from there others are.

A Gaussian with few principal axes and the same variance in all other directions: small enough to
ship, and it holds no recording of anybody.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from clocs.encoders.base import Weights
from clocs.errors import SettingError

AXES: Final = 32  # the most that are kept
ABSTAINED: Final = 0.02  # share of validation recordings beyond each limit


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
