"""BYOL: an online network predicts a slowly moving target network's embedding of the other copy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from clocs.frames.views import perturbed
from clocs.pretraining.method import Method, option
from clocs.pretraining.projection import Projecting, through_two_layers, two_layers

if TYPE_CHECKING:
    from torch import Tensor

    from clocs.encoders.base import Encoder, Weights
    from clocs.pretraining.batches import Batch

TARGET, PREDICTOR = "target.", "predictor"


def byol_loss(predicted: Tensor, target: Tensor, of: int | None = None) -> Tensor:
    """predicted, target: (members, 2, batch, dim) -> (members,); the target gets no gradient.

    Squared distances between the unit vectors of each view's prediction and of the target's
    embedding of the other view, summed over both directions, mean over the batch; where these are
    some of its instances, `of` is the number of all.
    """
    from clocs.pretraining.losses import in_kernels, unit

    if in_kernels(predicted):
        from clocs.kernels.contrast_triton import squared_distance

        return squared_distance(predicted, target, of or predicted.shape[2])
    apart = unit(predicted) - unit(target.detach().flip(1))
    each = apart.square().sum(dim=(1, 3))
    return each.mean(dim=1) if of is None else each.sum(dim=1) / of


@dataclass(frozen=True)
class BYOL(Projecting):
    """The target network is a moving average of the online one, kept among the buffers.

    The predictor is the encoder's last layer repeated (Linear(E, E) and ReLU); the embedding is
    taken before it. With a projection, which the target network has, too, it is a head like that.
    """

    shares_batches = True

    tau_d: float = option(
        0.9, "Share of the target network that is kept at each step.", minimum=0, maximum=1
    )

    def heads(self, *, dim: int, classes: int, copies: int) -> dict[str, tuple[int, ...]]:
        if not self.projection:
            return {"predictor.weight": (dim, dim), "predictor.bias": (dim,)}
        own = super().heads(dim=dim, classes=classes, copies=copies)
        return own | two_layers(PREDICTOR, self.projection, self.projection)

    def extra_buffers(self, weights: Weights, buffers: Weights, *, dim: int) -> Weights:
        online = {k: v for k, v in weights.items() if not k.startswith(PREDICTOR)} | buffers
        return {f"{TARGET}{name}": tensor for name, tensor in online.items()}

    def train_loss(
        self, encoder: Encoder, weights: Weights, buffers: Weights, batch: Batch, keys: Tensor
    ) -> tuple[Tensor, Weights]:
        import torch

        from clocs.kernels import keyed_random
        from clocs.kernels.collectives import run_concurrently

        updated: Weights = {}

        def targets() -> Tensor:
            with torch.no_grad():
                key = keyed_random.fold(keys, keyed_random.stream("target"))
                theirs = _target(encoder, buffers)
                z, _ = encoder.encode_training(*theirs, batch.x, key, 0.0)
                return self.projected(z, theirs[0])

        def predictions() -> Tensor:
            z, after = encoder.encode_training(weights, buffers, batch.x, keys)
            updated.update(after)
            return self._predicted(z, weights)

        target, predicted = (
            batch.by_view(z) for z in run_concurrently(batch.x, targets, predictions)
        )
        return self._distance(predicted, target, batch), buffers | updated

    def validation_loss(
        self, encoder: Encoder, weights: Weights, buffers: Weights, batch: Batch
    ) -> tuple[Tensor, Tensor]:
        z = encoder.encode(weights, buffers, batch.x)
        theirs = _target(encoder, buffers)
        target = batch.by_view(self.projected(encoder.encode(*theirs, batch.x), theirs[0]))
        predicted = batch.by_view(self._predicted(z, weights))
        return self._distance(predicted, target, batch), batch.by_view(z)

    def _distance(self, predicted: Tensor, target: Tensor, batch: Batch) -> Tensor:
        return byol_loss(predicted, target, batch.share.batch if batch.share else None)

    def _predicted(self, z: Tensor, weights: Weights) -> Tensor:
        """z: (members, n, dim) -> (members, n, dim of the target's vectors)."""
        from clocs.encoders.cnn import linear_relu

        if self.projection:
            return through_two_layers(self.projected(z, weights), weights, PREDICTOR)
        return linear_relu(z, weights["predictor.weight"], weights["predictor.bias"])

    def after_step(self, weights: Weights, buffers: Weights, moved: Tensor) -> None:
        """The target network moves toward the online one, statistics included."""
        from clocs.training.rows import move_toward

        online = weights | {k: v for k, v in buffers.items() if not k.startswith(TARGET)}
        theirs = {k: v for k, v in buffers.items() if k.startswith(TARGET)}
        ours = [online[name.removeprefix(TARGET)] for name in theirs]
        move_toward(list(theirs.values()), ours, self.tau_d, moved)

    def metrics(self, z: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Spread and effective rank: the loss also falls when the embeddings collapse.

        The rank is the participation ratio of the covariance's eigenvalues, (Σλ)² / Σλ²: from its
        trace and its norm, without computing them.
        """
        from clocs.pretraining.losses import unit

        u = unit(z).flatten(1, 2)
        centered = u - u.mean(dim=1, keepdim=True)
        covariance = centered.transpose(1, 2) @ centered / centered.shape[1]
        trace = covariance.diagonal(dim1=1, dim2=2).sum(dim=1)
        squares = covariance.square().sum(dim=(1, 2))
        return {"spread": trace.sqrt(), "rank": trace.square() / squares.clamp(min=1e-12)}


def _target(encoder: Encoder, buffers: Weights) -> tuple[Weights, Weights]:
    """Weights and buffers of the target network."""
    own = {k.removeprefix(TARGET): v for k, v in buffers.items() if k.startswith(TARGET)}
    names = encoder.buffers(1).keys()
    return {k: v for k, v in own.items() if k not in names}, {k: own[k] for k in names}


byol = Method("byol", of="lead", views=perturbed("gaussian"), objective=BYOL)
