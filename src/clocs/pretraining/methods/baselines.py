"""What the CLOCS family is compared with: BYOL, MT-SSL, supervised training, untrained encoders."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from clocs.errors import SettingError
from clocs.frames.frames import Frames
from clocs.frames.views import Instances, Views, perturbed, transformed
from clocs.pretraining import (
    Method,
    Objective,
    Segments,
    option,
    through_two_layers,
    two_layers,
)

if TYPE_CHECKING:
    from torch import Tensor

    from clocs.encoders.base import Encoder, Weights
    from clocs.pretraining.batches import Batch

TARGET, PREDICTOR = "target.", "predictor"
TASKS = {
    "noise": "noise_snr(db=15)",
    "scaling": "scaling(factor=1.1)",
    "negation": "flip_x(always=true)",
    "inversion": "flip_y(always=true)",
    "permutation": "permutation(pieces=20)",
    "time_warp": "time_warp(pieces=9, factor=1.05)",
}
# those that CLOCS kept; elsewhere all
PAPER_TASKS: dict[str, tuple[str, ...]] = {"chapman": ("scaling", "negation", "inversion")}


def byol_loss(
    predicted: Tensor, target: Tensor, of: int | None = None, patients: Tensor | None = None
) -> Tensor:
    """predicted, target: (members, 2, batch, dim) -> (members,); the target gets no gradient.

    Squared distances between the unit vectors of each view's prediction and of the target's
    embedding of the other view, summed over both directions, mean over the batch; where these are
    some of its instances, `of` is the number of all. With patients: (members, batch), the mean over
    pairs of different instances of one patient is added.
    """
    from clocs.pretraining.losses import in_kernels, same_patient_pairs, unit

    if patients is not None:
        others = same_patient_pairs(patients)
        cosine = unit(predicted) @ unit(target.detach().flip(1)).transpose(-1, -2)
        far = (2 - 2 * cosine).sum(dim=1).masked_fill(~others, 0).sum(dim=(1, 2))
        near = byol_loss(predicted, target, of)
        return near + far / others.sum(dim=(1, 2)).clamp(min=1)
    if in_kernels(predicted):
        from clocs.kernels.contrast_triton import squared_distance

        return squared_distance(predicted, target, of or predicted.shape[2])
    apart = unit(predicted) - unit(target.detach().flip(1))
    each = apart.square().sum(dim=(1, 3))
    return each.mean(dim=1) if of is None else each.sum(dim=1) / of


@dataclass(frozen=True)
class BYOL(Segments):
    """BYOL: an online network predicts a target network's embedding of the other copy.

    The target network is a moving average of the online one, kept among the buffers.

    The predictor is the encoder's last layer repeated (Linear(E, E) and ReLU); the embedding is
    taken before it. With a projection, which the target network has, too, it is a head like that.
    """

    shares_batches = True

    tau_d: float = option(
        0.9, "Share of the target network that is kept at each step.", minimum=0, maximum=1
    )

    def views(self, own: Views, dataset: str) -> Views:
        own = super().views(own, dataset)
        if own.segments > 2:
            raise SettingError("byol compares two views; give at most 2 `segments`")
        return own

    def heads(self, *, dim: int, classes: int, copies: int) -> dict[str, tuple[int, ...]]:
        if not self.projection:
            return {"predictor.weight": (dim, dim), "predictor.bias": (dim,)}
        own = super().heads(dim=dim, classes=classes, copies=copies)
        return own | two_layers(PREDICTOR, self.projection, self.projection)

    def extra_buffers(self, weights: Weights, buffers: Weights) -> Weights:
        online = {k: v for k, v in weights.items() if not k.startswith(PREDICTOR)} | buffers
        return {f"{TARGET}{name}": tensor for name, tensor in online.items()}

    def train_loss(
        self, encoder: Encoder, weights: Weights, buffers: Weights, batch: Batch, keys: Tensor
    ) -> tuple[Tensor, Weights]:
        import torch

        from clocs.kernels import keyed_random
        from clocs.kernels.ranks import run_concurrently

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
        if self.positives != "patient":
            return byol_loss(predicted, target, batch.rows.shape[1] if batch.share else None)
        if batch.share:
            raise SettingError("byol with `positives` of one patient cannot share its batches")
        return byol_loss(predicted, target, patients=batch.patients)

    def _predicted(self, z: Tensor, weights: Weights) -> Tensor:
        """z: (members, n, dim) -> (members, n, dim of the target's vectors)."""
        from clocs.encoders.cnn import linear_relu

        if self.projection:
            return through_two_layers(self.projected(z, weights), weights, PREDICTOR)
        return linear_relu(z, weights["predictor.weight"], weights["predictor.bias"])

    def after_step(self, weights: Weights, buffers: Weights, moved: Tensor) -> None:
        """The target network moves toward the online one, statistics included."""
        from clocs.training.replicas import move_toward

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


def multitask_loss(z: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Head t distinguishes the original (view 0) from the copy of task t (view t + 1).

    z: (members, 1 + tasks, batch, dim), weight: (members, tasks, dim), bias: (members, tasks)
    -> (members,) mean binary cross-entropy over tasks.
    """
    from torch import einsum
    from torch.nn.functional import softplus

    original = einsum("mbd,mtd->mtb", z[:, 0], weight) + bias[..., None]
    copy = einsum("mtbd,mtd->mtb", z[:, 1:], weight) + bias[..., None]
    return (softplus(original) + softplus(-copy)).mean(dim=(1, 2)) / 2


@dataclass(frozen=True)
class MultiTask(Objective):
    """MT-SSL (Sarkar and Etemad, 2020): one binary head per task tells a copy from the original."""

    tasks: tuple[str, ...] | None = option(
        None,
        "Transformations to recognize, such as noise,scaling,negation,inversion,permutation,"
        "time_warp; those of the paper for the dataset where not given.",
        kind=tuple,
    )

    def views(self, own: Views, dataset: str) -> Views:
        from clocs.pretraining.perturbations import parse

        chosen = self.tasks or PAPER_TASKS.get(dataset, tuple(TASKS))
        unknown = [task for task in chosen if task not in TASKS]
        if unknown:
            raise SettingError(
                f"there is no task {', '.join(unknown)}; choose `tasks` from {', '.join(TASKS)}"
            )
        return transformed(*(str(parse(TASKS[task])) for task in chosen))

    def heads(self, *, dim: int, classes: int, copies: int) -> dict[str, tuple[int, ...]]:
        return {"head.weight": (copies - 1, dim), "head.bias": (copies - 1,)}

    def loss(self, z: Tensor, batch: Batch, weights: Weights) -> Tensor:
        return multitask_loss(z, weights["head.weight"], weights["head.bias"])


@dataclass(frozen=True)
class Labels(Objective):
    """Supervised: a linear layer predicts the labels of labeled instances from embeddings."""

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


byol = Method("byol", of="lead", views=perturbed("gaussian"), objective=BYOL)
mtssl = Method("mtssl", of="lead", views=transformed(), objective=MultiTask, perturbable=False)
supervised = Method("supervised", of="lead", views=Views(), objective=Labels, perturbable=False)
random = Method("random", of="lead", views=Views(), perturbable=False)
random_bn = Method("random-bn", of="lead", views=Views(), perturbable=False, fits_batch_norm=True)
