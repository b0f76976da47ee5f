"""Objectives: what each method asks of the embeddings of its views, one class each.

Gathering, perturbing and encoding are `pretext`'s. Knows nothing about files or how training
proceeds.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from clocs import keyed_random
from clocs.encoders.base import Encoder, Weights
from clocs.errors import SettingError
from clocs.frames.frames import Frames
from clocs.frames.views import Instances
from clocs.pretraining import losses
from clocs.pretraining.batches import Batch, Pretext
from clocs.pretraining.methods import Method


class PatientNCE(Pretext):
    """CLOCS: views of one patient belong together, if not recorded too far apart."""

    def check(self, frames: Frames) -> None:
        if self.choices.positives_within is not None and not np.isfinite(frames.day).any():
            raise SettingError(
                f"no recording of {frames.dataset} says when it was taken, so --positives-within "
                "cannot be kept; leave it out"
            )

    def loss(self, z: Tensor, batch: Batch, weights: Weights) -> Tensor:
        return losses.patient_nce(z, *self._pairs(batch), self.choices.temperature)

    def metrics(self, z: Tensor, batch: Batch) -> dict[str, Tensor]:
        return {"same_patient_pairs": self._pairs(batch)[0].sum(dim=(1, 2)).to(z.dtype)}

    def _pairs(self, batch: Batch) -> tuple[Tensor, Tensor | None]:
        """(members, batch, batch) bool: positives, and those of one patient that are none."""
        same = losses.same_patient_pairs(batch.patients)
        if self.choices.positives_within is None:
            return same, None
        apart = (batch.days[:, :, None] - batch.days[:, None, :]).abs()
        near = apart <= self.choices.positives_within  # never where a day is unknown
        near |= batch.recordings[:, :, None] == batch.recordings[:, None, :]
        return same & near, same & ~near


class NTXent(Pretext):
    """SimCLR: copies of one instance belong together."""

    def loss(self, z: Tensor, batch: Batch, weights: Weights) -> Tensor:
        return losses.nt_xent(z, self.choices.temperature)


class Multitask(Pretext):
    """MT-SSL: one binary head a task tells the original from the transformed copy."""

    def heads(self, keys: Tensor) -> Weights:
        tasks, dim = len(self.chains) - 1, self.encoder.embedding_dim
        return {
            "head.weight": keyed_random.symmetric(keys, "head.weight", (tasks, dim), dim),
            "head.bias": keyed_random.symmetric(keys, "head.bias", (tasks,), dim),
        }

    def loss(self, z: Tensor, batch: Batch, weights: Weights) -> Tensor:
        return losses.multitask(z, weights["head.weight"], weights["head.bias"])


class Labels(Pretext):
    """Supervised pre-training: a linear layer reads the labels off the embedding."""

    def heads(self, keys: Tensor) -> Weights:
        dim = self.encoder.embedding_dim
        return {
            "head.weight": keyed_random.symmetric(keys, "head.weight", (dim, self.classes), dim),
            "head.bias": keyed_random.symmetric(keys, "head.bias", (self.classes,), dim),
        }

    def loss(self, z: Tensor, batch: Batch, weights: Weights) -> Tensor:
        logits = torch.baddbmm(weights["head.bias"][:, None], z[:, 0], weights["head.weight"])
        return losses.classification(logits, batch.targets, self.multilabel).mean(dim=1)

    def instances(self, frames: Frames, split: int) -> Instances:
        part = super().instances(frames, split)
        labelled = part.where(frames.has_label[part.frame])
        if len(labelled) < 2:
            raise SettingError(
                f"{frames.dataset} has no labels to learn from, or not the same classes in all its "
                "parts; use another method"
            )
        return labelled


class BYOL(Pretext):
    """BYOL: the online network predicts the target network's embedding of the other copy.

    The target network is a moving average of the online one, kept among the buffers; the predictor
    is the encoder's last layer repeated (Linear(E, E) and ReLU), the embedding is taken before it.
    """

    TARGET = "target."

    def heads(self, keys: Tensor) -> Weights:
        dim = self.encoder.embedding_dim
        return {
            "predictor.weight": keyed_random.symmetric(keys, "predictor.weight", (dim, dim), dim),
            "predictor.bias": keyed_random.symmetric(keys, "predictor.bias", (dim,), dim),
        }

    def parameters(self, keys: Tensor) -> Weights:
        parameters = super().parameters(keys)
        # where the target network starts, too
        self._initial = {name: parameters[name] for name in self.encoder.parameters(keys[:0])}
        return parameters

    def buffers(self, members: int) -> Weights:
        online = super().buffers(members)
        target = self._initial | online
        return online | {f"{self.TARGET}{name}": tensor for name, tensor in target.items()}

    def train_loss(
        self, weights: Weights, buffers: Weights, rows: Tensor, keys: Tensor
    ) -> tuple[Tensor, Weights]:
        batch = self.batch(self.train, rows, keys)
        z, updated = self.encoder.encode_training(weights, buffers, batch.x, keys)
        target_weights, target_buffers = self._target(buffers)
        with torch.no_grad():
            key = keyed_random.fold(keys, keyed_random.stream("target"))
            target, _ = self.encoder.encode_training(target_weights, target_buffers, batch.x, key)
        loss = losses.byol(batch.by_view(self._predict(z, weights)), batch.by_view(target))
        return loss, buffers | updated

    def validation_loss(
        self, weights: Weights, buffers: Weights, batch: Batch
    ) -> tuple[Tensor, Tensor]:
        z = self.encoder.encode(weights, buffers, batch.x)
        target = self.encoder.encode(*self._target(buffers), batch.x)
        predicted = batch.by_view(self._predict(z, weights))
        return losses.byol(predicted, batch.by_view(target)), batch.by_view(z)

    def after_step(self, weights: Weights, buffers: Weights) -> Weights:
        """The target network moves towards the online one, statistics included."""
        online = weights | {k: v for k, v in buffers.items() if not k.startswith(self.TARGET)}
        moved = {
            name: torch.lerp(
                online[name.removeprefix(self.TARGET)], buffers[name], self.choices.tau_d
            )
            for name in buffers
            if name.startswith(self.TARGET)
        }
        return buffers | moved

    def metrics(self, z: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Spread and effective rank: the loss also falls when the embeddings collapse.

        The rank is the participation ratio of the covariance's eigenvalues, (Σλ)² / Σλ²: from its
        trace and its norm, without finding them.
        """
        u = losses.unit(z).flatten(1, 2)
        centred = u - u.mean(dim=1, keepdim=True)
        covariance = centred.transpose(1, 2) @ centred / centred.shape[1]
        trace = covariance.diagonal(dim1=1, dim2=2).sum(dim=1)
        squares = covariance.square().sum(dim=(1, 2))
        return {"spread": trace.sqrt(), "rank": trace.square() / squares.clamp(min=1e-12)}

    def _target(self, buffers: Weights) -> tuple[Weights, Weights]:
        own = {
            k.removeprefix(self.TARGET): v for k, v in buffers.items() if k.startswith(self.TARGET)
        }
        names = self.encoder.buffers(1).keys()
        weights = {k: v for k, v in own.items() if k not in names}
        return weights, {k: own[k] for k in names}

    @staticmethod
    def _predict(z: Tensor, weights: Weights) -> Tensor:
        return torch.relu(
            torch.baddbmm(weights["predictor.bias"][:, None], z, weights["predictor.weight"])
        )


_TASKS: dict[str, type[Pretext]] = {
    "patient_nce": PatientNCE,
    "nt_xent": NTXent,
    "byol": BYOL,
    "multitask": Multitask,
    "labels": Labels,
}


def make_task(frames: Frames, method: Method, encoder: Encoder, **settings: Any) -> Pretext:
    """The task of a method; `settings` as of `Pretext`."""
    if method.asks is None:
        raise SettingError("a method without a loss has nothing to train")
    return partial(_TASKS[method.asks], frames, method, encoder)(**settings)
