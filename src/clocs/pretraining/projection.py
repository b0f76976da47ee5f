"""Projection heads between embeddings and a loss, dropped after training.

Linear, standardized over the batch, ReLU, Linear. There are no running statistics: nobody encodes a
single ECG with a head.

Torch is imported inside functions, as in the modules of methods.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from clocs.pretraining.method import Objective, option

if TYPE_CHECKING:
    from typing import Self

    from torch import Tensor

    from clocs.encoders.base import Weights

HIDDEN = 512
EPSILON = 1e-5  # of variances
PROJECTION = 128  # dimensions, for encoders of many leads


@dataclass(frozen=True)
class Projecting(Objective):
    """An objective that may project embeddings before it compares them."""

    projection: int | None = option(
        None,
        "Dimension to which a head of two layers, dropped after training, projects embeddings for "
        "the loss; 0: none. Where not given, 128 for encoders of many leads and 0 for others.",
        kind=int,
        minimum=0,
    )

    def for_encoder(self, *, many_leads: bool) -> Self:
        if many_leads and self.projection is None:
            return replace(self, projection=PROJECTION)
        return self

    def heads(self, *, dim: int, classes: int, copies: int) -> dict[str, tuple[int, ...]]:
        return two_layers("projection", dim, self.projection) if self.projection else {}

    def projected(self, z: Tensor, weights: Weights) -> Tensor:
        """z: (members, …, dim) -> what is compared, of the projection's dimension."""
        return through_two_layers(z, weights, "projection") if self.projection else z


def two_layers(name: str, dim: int, out: int) -> dict[str, tuple[int, ...]]:
    """Shapes of the weights of a head."""
    return {
        f"{name}.1.weight": (dim, HIDDEN),
        f"{name}.1.bias": (HIDDEN,),
        f"{name}.2.weight": (HIDDEN, out),
        f"{name}.2.bias": (out,),
    }


def head_inputs(name: str, dim: int) -> int:
    """How many numbers a head's weight of that name reads: an embedding, or a hidden layer."""
    return HIDDEN if ".2." in name else dim


def through_two_layers(z: Tensor, weights: Weights, name: str) -> Tensor:
    """z: (members, …, dim) -> (members, …, out), by the head of that name."""
    import torch

    from clocs.kernels import collectives

    hidden = torch.bmm(z.flatten(1, -2), weights[f"{name}.1.weight"])
    if collectives.is_shared():
        mean, variance = (x[:, None] for x in collectives.moments(hidden, [1])[:2])
    else:
        variance, mean = torch.var_mean(hidden, dim=1, correction=0, keepdim=True)
    hidden = (hidden - mean) * (variance + EPSILON).rsqrt() + weights[f"{name}.1.bias"][:, None]
    hidden = torch.relu(hidden)
    made = torch.baddbmm(weights[f"{name}.2.bias"][:, None], hidden, weights[f"{name}.2.weight"])
    return made.view(*z.shape[:-1], made.shape[-1])
