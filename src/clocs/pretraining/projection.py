"""A projection head between embeddings and a loss: Linear, ReLU, Linear; dropped after training."""

from __future__ import annotations

import torch
from torch import Tensor

from clocs.encoders.base import Weights
from clocs.encoders.linear import linear_relu

HIDDEN = 512
_SECOND = "projection.2."


def projection_shapes(dim: int, out: int) -> dict[str, tuple[int, ...]]:
    """Shapes of the head's weights; none where `out` is 0."""
    if not out:
        return {}
    return {
        "projection.1.weight": (dim, HIDDEN),
        "projection.1.bias": (HIDDEN,),
        f"{_SECOND}weight": (HIDDEN, out),
        f"{_SECOND}bias": (out,),
    }


def head_inputs(name: str, dim: int) -> int:
    """How many numbers a weight of that name reads: those of an embedding, or of a hidden layer."""
    return HIDDEN if name.startswith(_SECOND) else dim


def project(z: Tensor, weights: Weights) -> Tensor:
    """z: (members, …, dim) -> (members, …, out)."""
    rows = z.flatten(1, -2)
    hidden = linear_relu(rows, weights["projection.1.weight"], weights["projection.1.bias"])
    bias = weights[f"{_SECOND}bias"][:, None]
    made = torch.baddbmm(bias, hidden, weights[f"{_SECOND}weight"])
    return made.view(*z.shape[:-1], made.shape[-1])
