"""Pretext: what each method of learning an encoder asks, as a task for the engine.

A batch is gathered, perturbed, normalised and encoded on the device. Knows nothing about files or
how training proceeds.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from clocs import counter, losses
from clocs.encoders import Encoder, Weights
from clocs.errors import SettingError
from clocs.frames import Frames
from clocs.methods import Method
from clocs.perturb import Chain, parse
from clocs.signals import Signals, min_max
from clocs.views import Instances, instances


@dataclass(frozen=True)
class Choices:
    """The numbers that a method's loss depends on."""

    temperature: float = 0.1
    tau_d: float = 0.9  # how much of BYOL's target network stays at each step


@dataclass(frozen=True)
class _Part:
    windows: Tensor  # (instances, windows)
    scale: Tensor  # (instances, windows)
    patients: Tensor  # (instances,)
    targets: Tensor  # (instances, classes)

    @classmethod
    def of(cls, frames: Frames, rows: Instances, device: torch.device) -> _Part:
        arrays: list[Any] = [
            rows.windows,
            rows.scale,
            frames.patient[rows.frame].astype(np.int64),
            frames.target[rows.frame],
        ]
        return cls(*(torch.from_numpy(np.ascontiguousarray(a)).to(device) for a in arrays))


@dataclass(frozen=True)
class _Batch:
    x: Tensor  # (members, views·batch, samples)
    patients: Tensor  # (members, batch)
    targets: Tensor  # (members, batch, classes)
    size: int

    def by_view(self, z: Tensor) -> Tensor:
        """(members, views·batch, dim) -> (members, views, batch, dim)."""
        return z.view(len(z), -1, self.size, z.shape[-1])


class Pretext:
    """The task of one method on one dataset; subclasses say what is asked of the embeddings."""

    def __init__(
        self,
        frames: Frames,
        method: Method,
        encoder: Encoder,
        *,
        members: int,
        batch_size: int,
        choices: Choices,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.method, self.encoder, self.choices = method, encoder, choices
        self.batch_size, self.classes = batch_size, len(frames.labels)
        self.multilabel = frames.multilabel
        self.chains: list[Chain | None] = [
            parse(text) if text else None for text in method.views.copies
        ]
        self.signals = Signals.of(frames, device, dtype)
        self.train, self.validation = (
            _Part.of(frames, self._instances(frames, split), device) for split in (0, 1)
        )
        self.counts = torch.full((members,), len(self.train.windows), device=device)

    def parameters(self, keys: Tensor) -> Weights:
        return self.encoder.parameters(keys) | self.heads(keys)

    def buffers(self, members: int) -> Weights:
        return self.encoder.buffers(members)

    def heads(self, keys: Tensor) -> Weights:
        """Weights beside the encoder's; they are not kept."""
        return {}

    def loss(self, z: Tensor, batch: _Batch, weights: Weights) -> Tensor:
        """z: (members, views, batch, dim) -> (members,)."""
        raise SettingError("a method without a loss has nothing to train")

    def metrics(self, z: Tensor, batch: _Batch) -> dict[str, Tensor]:
        """Further values to log, (members,) each."""
        return {}

    def train_loss(
        self, weights: Weights, buffers: Weights, rows: Tensor, keys: Tensor
    ) -> tuple[Tensor, Weights]:
        """rows: (members, batch) -> (members,) losses, and the buffers after this batch."""
        batch = self._batch(self.train, rows, keys)
        z, buffers = self.encoder.encode_training(weights, buffers, batch.x, keys)
        return self.loss(batch.by_view(z), batch, weights), buffers

    def validation_loss(
        self, weights: Weights, buffers: Weights, batch: _Batch
    ) -> tuple[Tensor, Tensor]:
        """Losses in evaluation mode, and the embeddings they are of."""
        z = batch.by_view(self.encoder.encode(weights, buffers, batch.x))
        return self.loss(z, batch, weights), z

    def validate(self, weights: Weights, buffers: Weights, keys: Tensor) -> dict[str, Tensor]:
        """Mean over full batches, the same every epoch, the last filled by wrapping.

        A contrastive loss depends on the batch's size and mix, so these must not change.
        """
        keys = counter.fold(keys, counter.stream("validation"))
        count = len(self.validation.windows)
        size = min(self.batch_size, count)
        steps = -(-count // size)
        order = counter.permutation(keys, count)
        order = order[:, torch.arange(steps * size, device=order.device) % count]
        sums: dict[str, Tensor] = {}
        for step in range(steps):
            rows = order[:, step * size : (step + 1) * size]
            batch = self._batch(self.validation, rows, counter.fold(keys, step))
            loss, z = self.validation_loss(weights, buffers, batch)
            dead = (z == 0).all(dim=-1).to(z.dtype).mean(dim=(1, 2))
            for name, value in {"loss": loss, "dead": dead, **self.metrics(z, batch)}.items():
                sums[name] = sums.get(name, torch.zeros_like(value)) + value / steps
        return sums

    def _instances(self, frames: Frames, split: int) -> Instances:
        part = instances(frames, of=self.method.of, views=self.method.views, split=split)
        if len(part) < 2:
            raise SettingError(
                f"the {('training', 'validation')[split]} part of {frames.dataset} has {len(part)} "
                "instances for this method; it needs at least 2, so prepare more patients or "
                "longer recordings"
            )
        return part

    def _batch(self, part: _Part, rows: Tensor, keys: Tensor) -> _Batch:
        """rows: (members, batch) -> their views: every copy of every window."""
        starts = part.windows[rows].transpose(1, 2).flatten(1)  # (members, windows·batch)
        if self.chains == [None] and not self.method.views.normalised_first:
            x = self.signals.normalised(starts)
        else:
            x = self._copies(starts, part.scale[rows].transpose(1, 2).flatten(1), keys)
        return _Batch(x, part.patients[rows], part.targets[rows], rows.shape[1])

    def _copies(self, starts: Tensor, scale: Tensor, keys: Tensor) -> Tensor:
        first = self.method.views.normalised_first
        # normalised first, a frame lies around zero: or negation and scaling could not be seen
        x = self.signals.normalised(starts) - 0.5 if first else self.signals.raw(starts, scale)
        copies = []
        for i, chain in enumerate(self.chains):
            key = counter.fold(keys, counter.stream("copy"), i)
            copy = x if chain is None else chain(x, key)
            copies.append(copy if first else min_max(copy))
        return torch.cat(copies, dim=1)


class PatientNCE(Pretext):
    """CLOCS: views of one patient belong together."""

    def loss(self, z: Tensor, batch: _Batch, weights: Weights) -> Tensor:
        return losses.patient_nce(z, batch.patients, self.choices.temperature)

    def metrics(self, z: Tensor, batch: _Batch) -> dict[str, Tensor]:
        pairs = losses.same_patient_pairs(batch.patients).sum(dim=(1, 2))
        return {"same_patient_pairs": pairs.to(z.dtype)}


class NTXent(Pretext):
    """SimCLR: copies of one instance belong together."""

    def loss(self, z: Tensor, batch: _Batch, weights: Weights) -> Tensor:
        return losses.nt_xent(z, self.choices.temperature)


class Multitask(Pretext):
    """MT-SSL: one binary head a task tells the original from the transformed copy."""

    def heads(self, keys: Tensor) -> Weights:
        tasks, dim = len(self.chains) - 1, self.encoder.embedding_dim
        return {
            "head.weight": counter.symmetric(keys, "head.weight", (tasks, dim), dim),
            "head.bias": counter.symmetric(keys, "head.bias", (tasks,), dim),
        }

    def loss(self, z: Tensor, batch: _Batch, weights: Weights) -> Tensor:
        return losses.multitask(z, weights["head.weight"], weights["head.bias"])


class Labels(Pretext):
    """Supervised pre-training: a linear layer reads the labels off the embedding."""

    def heads(self, keys: Tensor) -> Weights:
        dim = self.encoder.embedding_dim
        return {
            "head.weight": counter.symmetric(keys, "head.weight", (dim, self.classes), dim),
            "head.bias": counter.symmetric(keys, "head.bias", (self.classes,), dim),
        }

    def loss(self, z: Tensor, batch: _Batch, weights: Weights) -> Tensor:
        logits = torch.baddbmm(weights["head.bias"][:, None], z[:, 0], weights["head.weight"])
        return losses.classification(logits, batch.targets, self.multilabel).mean(dim=1)

    def _instances(self, frames: Frames, split: int) -> Instances:
        part = super()._instances(frames, split)
        labelled = part.where(frames.has_label[part.frame])
        if len(labelled) < 2:
            raise SettingError(f"{frames.dataset} has no labels to learn from; use another method")
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
            "predictor.weight": counter.symmetric(keys, "predictor.weight", (dim, dim), dim),
            "predictor.bias": counter.symmetric(keys, "predictor.bias", (dim,), dim),
        }

    def parameters(self, keys: Tensor) -> Weights:
        parameters = super().parameters(keys)
        self._initial = self.encoder.parameters(keys)  # where the target network starts, too
        return parameters

    def buffers(self, members: int) -> Weights:
        online = super().buffers(members)
        target = self._initial | online
        return online | {f"{self.TARGET}{name}": tensor for name, tensor in target.items()}

    def train_loss(
        self, weights: Weights, buffers: Weights, rows: Tensor, keys: Tensor
    ) -> tuple[Tensor, Weights]:
        batch = self._batch(self.train, rows, keys)
        z, updated = self.encoder.encode_training(weights, buffers, batch.x, keys)
        target_weights, target_buffers = self._target(buffers)
        with torch.no_grad():
            key = counter.fold(keys, counter.stream("target"))
            target, _ = self.encoder.encode_training(target_weights, target_buffers, batch.x, key)
        loss = losses.byol(batch.by_view(self._predict(z, weights)), batch.by_view(target))
        return loss, buffers | updated

    def validation_loss(
        self, weights: Weights, buffers: Weights, batch: _Batch
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

    def metrics(self, z: Tensor, batch: _Batch) -> dict[str, Tensor]:
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
