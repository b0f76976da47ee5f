"""Pretext: a batch of any method: gathered, perturbed, normalised and encoded on the device.

What is asked of the embeddings is in `objectives`. Knows nothing about files or how training
proceeds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch import Tensor

from clocs import keyed_random
from clocs.encoders.base import Encoder, Weights
from clocs.errors import SettingError
from clocs.frames import views
from clocs.frames.frames import Frames
from clocs.frames.views import Instances
from clocs.pretraining.methods import Method
from clocs.pretraining.perturbations import Chain, parse
from clocs.training.signals import Signals, min_max
from clocs.training.task import Task


@dataclass(frozen=True)
class Choices:
    """The numbers that a method depends on.

    Attributes:
        temperature: τ of the contrastive losses.
        tau_d: How much of BYOL's target network stays at each step.
        positives_within: Days; recordings of one patient further apart are no positive pair.
        instances_per_patient: The most that a patient gives to an epoch, drawn anew for each.
    """

    temperature: float = 0.1
    tau_d: float = 0.9
    positives_within: float | None = None
    instances_per_patient: int | None = None

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise SettingError(f"the temperature must be above 0, not {self.temperature}")
        if not 0 <= self.tau_d <= 1:
            raise SettingError(f"τ_d must be from 0 to 1, not {self.tau_d}")
        if self.positives_within is not None and not self.positives_within >= 0:
            raise SettingError(
                f"--positives-within is in days, 0 or more, not {self.positives_within}"
            )
        if self.instances_per_patient is not None and self.instances_per_patient < 1:
            raise SettingError(
                f"a patient gives at least 1 instance, not {self.instances_per_patient}"
            )


@dataclass(frozen=True)
class _Part:
    """Instances of the training or validation part; `starts` is a copy of `windows` on the host."""

    windows: Tensor  # (instances, windows)
    scale: Tensor  # (instances, windows)
    patients: Tensor  # (instances,)
    recordings: Tensor  # (instances,)
    days: Tensor  # (instances,)
    targets: Tensor  # (instances, classes)
    starts: Tensor

    @classmethod
    def of(cls, frames: Frames, rows: Instances, device: torch.device) -> _Part:
        recording = frames.recording[rows.frame].astype(np.int64)
        arrays: list[Any] = [
            rows.windows,
            rows.scale,
            frames.patient[rows.frame].astype(np.int64),
            recording,
            frames.day[recording],
            frames.target[rows.frame],
        ]
        tensors = [torch.from_numpy(np.ascontiguousarray(a)) for a in arrays]
        there = [tensor.to(device) for tensor in tensors]
        return cls(*[*there, tensors[0]])


@dataclass(frozen=True)
class Batch:
    """All views of a batch, and what is known of its instances."""

    x: Tensor  # (members, views·batch, samples)
    patients: Tensor  # (members, batch)
    recordings: Tensor  # (members, batch)
    days: Tensor  # (members, batch)
    targets: Tensor  # (members, batch, classes)
    size: int

    def by_view(self, z: Tensor) -> Tensor:
        """(members, views·batch, dim) -> (members, views, batch, dim)."""
        return z.view(len(z), -1, self.size, z.shape[-1])


class Pretext(Task):
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
        perturb: Sequence[str] = (),
        start: tuple[Weights, Weights] | None = None,
        stream: bool | None = None,
    ) -> None:
        """Put the data where it is needed.

        Args:
            frames: The data.
            method: Views and what is asked of them.
            encoder: What is learned.
            members: How many are trained.
            batch_size: Instances a step.
            choices: The method's numbers.
            device: Where.
            dtype: Of signals and activations.
            perturb: A chain for each member, in place of the method's own.
            start: Weights and buffers of the encoders to go on from, (members, …) each.
            stream: See `Signals.of`.
        """
        self.method, self.encoder, self.choices = method, encoder, choices
        self.batch_size, self.classes = batch_size, len(frames.labels)
        self.multilabel = frames.multilabel
        self.check(frames)
        # for each copy of a window: chains, each with the number of members in a row that it is of
        self.chains = [
            [(parse(chain) if chain else None, len(list(same))) for chain, same in groupby(each)]
            for each in (list(perturb) or [copy] * members for copy in method.views.copies)
        ]
        self._start = start or ({}, {})
        parts = [self.instances(frames, split) for split in (0, 1)]
        size = min(batch_size, max(len(part) for part in parts))
        self.signals = Signals.of(
            frames, device, dtype, windows=members * size * parts[0].windows.shape[1], stream=stream
        )
        self.train, self.validation = (_Part.of(frames, part, device) for part in parts)
        self._cap = _Cap.of(self.train.patients, choices.instances_per_patient)
        count = self._cap.count if self._cap else len(self.train.windows)
        self.counts = torch.full((members,), count, device=device)

    @property
    def streamed(self) -> bool:
        """Whether windows are brought to the device batch by batch."""
        return type(self.signals) is not Signals

    @property
    def capturable(self) -> bool:
        return self.encoder.capturable

    def check(self, frames: Frames) -> None:
        """Refuse frames that the method cannot learn from."""

    def parameters(self, keys: Tensor) -> Weights:
        return self.encoder.parameters(keys) | self._start[0] | self.heads(keys)

    def buffers(self, members: int) -> Weights:
        return self.encoder.buffers(members) | self._start[1]

    def heads(self, keys: Tensor) -> Weights:
        """Weights beside the encoder's; they are not kept."""
        return {}

    def loss(self, z: Tensor, batch: Batch, weights: Weights) -> Tensor:
        """z: (members, views, batch, dim) -> (members,)."""
        raise SettingError("a method without a loss has nothing to train")

    def metrics(self, z: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Further values to log, (members,) each."""
        return {}

    def epoch_order(self, key: Tensor) -> Tensor:
        """(members, count): the rows of an epoch in a random order."""
        order = keyed_random.permutation(key, len(self.train.windows))
        return self._cap.applied(order) if self._cap else order

    def stage(self, order: Tensor, size: int, steps: int) -> Iterator[object]:
        """Yields once a step, when the windows of its rows are on the device."""
        if not self.streamed:
            return iter(range(steps))
        rows = order.cpu()
        batches = (_starts(self.train, rows[:, i * size : (i + 1) * size]) for i in range(steps))
        return iter(self.signals.staged(batches))

    def train_loss(
        self, weights: Weights, buffers: Weights, rows: Tensor, keys: Tensor
    ) -> tuple[Tensor, Weights]:
        """rows: (members, batch) -> (members,) losses, and the buffers after this batch."""
        batch = self.batch(self.train, rows, keys)
        z, buffers = self.encoder.encode_training(weights, buffers, batch.x, keys)
        return self.loss(batch.by_view(z), batch, weights), buffers

    def validation_loss(
        self, weights: Weights, buffers: Weights, batch: Batch
    ) -> tuple[Tensor, Tensor]:
        """Losses in evaluation mode, and the embeddings they are of."""
        z = batch.by_view(self.encoder.encode(weights, buffers, batch.x))
        return self.loss(z, batch, weights), z

    def validate(self, weights: Weights, buffers: Weights, keys: Tensor) -> dict[str, Tensor]:
        """Mean over full batches, the same every epoch, the last filled by wrapping.

        A contrastive loss depends on the batch's size and mix, so these must not change.
        """
        keys = keyed_random.fold(keys, keyed_random.stream("validation"))
        count = len(self.validation.windows)
        size = min(self.batch_size, count)
        steps = -(-count // size)
        order = keyed_random.permutation(keys, count)
        order = order[:, torch.arange(steps * size, device=order.device) % count]
        parts = order.split(size, dim=1)
        if self.streamed:
            at_hand = self.signals.staged(_starts(self.validation, rows.cpu()) for rows in parts)
        sums: dict[str, Tensor] = {}
        for step, rows in enumerate(parts):
            if self.streamed:
                next(at_hand)
            batch = self.batch(self.validation, rows, keyed_random.fold(keys, step))
            loss, z = self.validation_loss(weights, buffers, batch)
            dead = (z == 0).all(dim=-1).to(z.dtype).mean(dim=(1, 2))
            for name, value in {"loss": loss, "dead": dead, **self.metrics(z, batch)}.items():
                sums[name] = sums.get(name, torch.zeros_like(value)) + value / steps
        return sums

    def instances(self, frames: Frames, split: int) -> Instances:
        """The instances of the training (0) or validation (1) part."""
        part = views.instances(frames, of=self.method.of, views=self.method.views, split=split)
        if len(part) < 2:
            raise SettingError(
                f"the {('training', 'validation')[split]} part of {frames.dataset} has {len(part)} "
                "instances for this method; it needs at least 2, so prepare more patients or "
                "longer recordings"
            )
        return part

    def batch(self, part: _Part, rows: Tensor, keys: Tensor) -> Batch:
        """rows: (members, batch) -> their views: every copy of every window."""
        starts = self.signals.located(_by_view(part.windows[rows]))
        if self.method.views.copies == ("",) and not self.method.views.normalised_first:
            x = self.signals.normalised(starts)
        else:
            x = self._copies(starts, _by_view(part.scale[rows]), keys)
        return Batch(
            x=x.to(self.signals.dtype),
            patients=part.patients[rows],
            recordings=part.recordings[rows],
            days=part.days[rows],
            targets=part.targets[rows],
            size=rows.shape[1],
        )

    def _copies(self, starts: Tensor, scale: Tensor, keys: Tensor) -> Tensor:
        first = self.method.views.normalised_first
        # normalised first, a frame lies around zero: or negation and scaling could not be seen
        x = self.signals.normalised(starts) - 0.5 if first else self.signals.raw(starts, scale)
        copies = []
        for i, chains in enumerate(self.chains):
            copy = _perturbed(x, chains, keyed_random.fold(keys, keyed_random.stream("copy"), i))
            copies.append(copy if first else min_max(copy))
        return torch.cat(copies, dim=1)


def _perturbed(x: Tensor, chains: list[tuple[Chain | None, int]], keys: Tensor) -> Tensor:
    """x: (members, n, samples), each member by its own chain."""
    sizes = [members for _, members in chains]
    done = [
        own if chain is None else chain(own, key)
        for (chain, _), own, key in zip(chains, x.split(sizes), keys.split(sizes), strict=True)
    ]
    return done[0] if len(done) == 1 else torch.cat(done)


def _by_view(values: Tensor) -> Tensor:
    """(members, batch, windows) -> (members, windows·batch)."""
    return values.transpose(1, 2).flatten(1)


def _starts(part: _Part, rows: Tensor) -> Tensor:
    """The same as a batch's, on the host."""
    return _by_view(part.starts[rows])


@dataclass(frozen=True)
class _Cap:
    """At most so many instances a patient and epoch: whose many recordings must not drown others'.

    Attributes:
        patients: (instances,) numbered from 0 without gaps.
        first: (patients,) where a patient's instances begin when they are sorted by patient.
        most: Instances a patient.
        count: Instances an epoch.
    """

    patients: Tensor
    first: Tensor
    most: int
    count: int

    @classmethod
    def of(cls, patients: Tensor, most: int | None) -> _Cap | None:
        if most is None:
            return None
        _, number, sizes = torch.unique(patients, return_inverse=True, return_counts=True)
        count = int(sizes.clamp(max=most).sum())
        return cls(number, sizes.cumsum(0) - sizes, most, count) if count < len(patients) else None

    def applied(self, order: Tensor) -> Tensor:
        """order: (members, instances) -> (members, count): the first `most` of each patient."""
        patients = self.patients[order]
        sorted_by = patients.argsort(dim=1, stable=True)
        places = torch.arange(order.shape[1], device=order.device).expand_as(order)
        rank = torch.empty_like(order).scatter_(1, sorted_by, places) - self.first[patients]
        kept_first = (rank >= self.most).argsort(dim=1, stable=True)[:, : self.count]
        return order.gather(1, kept_first)
