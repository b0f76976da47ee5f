"""VICReg across leads: embeddings of all leads agree, and their dimensions vary independently."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from clocs.frames.views import Views
from clocs.pretraining import Method, Objective, option

if TYPE_CHECKING:
    from torch import Tensor

    from clocs.encoders.base import Weights
    from clocs.pretraining.batches import Batch


@dataclass(frozen=True)
class VICReg(Objective):
    """Variance, invariance and covariance; the weight of invariance is 1."""

    variance: float = option(1.0, "Weight of the variance term.", minimum=0)
    covariance: float = option(0.04, "Weight of the covariance term.", minimum=0)

    def loss(self, z: Tensor, batch: Batch, weights: Weights) -> Tensor:
        """z: (members, views, batch, dim) -> (members,)."""
        invariance = z.var(dim=1).mean(dim=(1, 2))
        centered = z - z.mean(dim=2, keepdim=True)
        covariance = centered.transpose(2, 3) @ centered / (z.shape[2] - 1)
        own = covariance.diagonal(dim1=2, dim2=3)
        variance = (1 - (own + 1e-4).sqrt()).relu().mean(dim=(1, 2))
        between = covariance.square().sum(dim=(2, 3)) - own.square().sum(dim=2)
        between = between.mean(dim=1) / z.shape[3]
        return invariance + self.variance * variance + self.covariance * between


vicreg = Method("vicreg", of="frame", views=Views(all_leads=True), objective=VICReg)
