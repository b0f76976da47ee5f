"""Supervised pre-training: a linear layer predicts the labels from the embedding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from clocs.errors import SettingError
from clocs.frames.frames import Frames
from clocs.frames.views import Instances, single
from clocs.pretraining.method import Method, Objective

if TYPE_CHECKING:
    from torch import Tensor

    from clocs.encoders.base import Weights
    from clocs.pretraining.batches import Batch


@dataclass(frozen=True)
class Labels(Objective):
    """Cross-entropy on the labeled instances."""

    compares_views = False

    def heads(self, *, dim: int, classes: int, copies: int) -> dict[str, tuple[int, ...]]:
        return {"head.weight": (dim, classes), "head.bias": (classes,)}

    def loss(self, z: Tensor, batch: Batch, weights: Weights) -> Tensor:
        from clocs.pretraining.losses import classification

        logits = weights["head.bias"][:, None].baddbmm(z[:, 0], weights["head.weight"])
        return classification(logits, batch.targets, batch.multilabel).mean(dim=1)

    def usable(self, frames: Frames, part: Instances) -> Instances:
        labeled = part.where(frames.has_label[part.frame])
        if len(labeled) < 2:
            raise SettingError(
                f"{frames.dataset} has no labels to learn from, or not the same classes in all its "
                "parts; use another `method`"
            )
        return labeled


supervised = Method("supervised", of="lead", views=single(), objective=Labels, perturbable=False)
