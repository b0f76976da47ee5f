"""The training task of a method on one dataset: its objective, computed on batches of views."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy

import numpy as np
import torch
from torch import Tensor

from clocs.encoders.base import Encoder, Weights, per_view
from clocs.errors import SettingError
from clocs.frames.frames import Frames
from clocs.frames.views import Instances, instances
from clocs.kernels import keyed_random
from clocs.pretraining.batches import Batch, BatchMaker, Part, PatientLimit
from clocs.pretraining.many_lead_batches import ManyLeadBatchMaker
from clocs.pretraining.plan import Plan
from clocs.pretraining.projection import head_inputs
from clocs.training.signals import Signals
from clocs.training.task import Task


class PretrainingTask(Task):
    """What the training loop learns: initial weights and losses of all members of a plan."""

    def __init__(
        self,
        frames: Frames,
        plan: Plan,
        *,
        device: torch.device,
        dtype: torch.dtype | None = None,
        start: tuple[Weights, Weights] | None = None,
        stream: bool | None = None,
        shared: bool = False,
    ) -> None:
        """Put the data where it is needed.

        `dtype` is that of signals and activations, the plan's precision by default; `start` are the
        weights and buffers of the encoders to start from; `stream` is as for `Signals.of`; `shared`
        says that other processes compute the other rows of a batch.
        """
        if plan.objective is None:
            raise SettingError(f"{plan.method} has nothing to train")
        self.objective, self.encoder = plan.objective, plan.encoder_for(frames)
        self.batch_size, members = plan.settings.batch_size, len(plan.members)
        views = plan.views_on(frames.dataset)
        parts = learnable_parts(frames, plan)
        size = min(self.batch_size, max(len(part) for part in parts))
        self.signals = Signals.of(
            frames,
            device,
            dtype or getattr(torch, plan.precision),
            windows=members * size * parts[0].windows.shape[1],  # of all leads at once
            stream=stream,
        )
        self.train, self.validation = (Part.of(frames, part, device) for part in parts)
        chains = [chain for chain in plan.chains if chain for _ in plan.seeds]

        def batches(some: list[int]) -> BatchMaker | ManyLeadBatchMaker:
            own = [chains[member] for member in some] if chains else []
            given = (self.signals, views, len(some), own)
            if plan.many_leads:
                return ManyLeadBatchMaker(*given, multilabel=frames.multilabel)
            return BatchMaker(
                *given,
                multilabel=frames.multilabel,
                in_mv=plan.normalization == "none",
                shared=shared,
            )

        self._make_batches = batches
        self.batches = batches(list(range(members)))
        self._per_view = plan.batch_norm == "view"
        self._heads = self.objective.heads(
            dim=self.encoder.embedding_dim, classes=len(frames.labels), copies=len(views.copies)
        )
        self._start = start or ({}, {})
        self._limit = PatientLimit.of(self.train.patients, plan.instances_per_patient)
        count = self._limit.count if self._limit else len(self.train.windows)
        self.counts = torch.full((members,), count, device=device)

    @property
    def streamed(self) -> bool:
        return self.signals.streamed

    @property
    def capturable(self) -> bool:
        return self.encoder.capturable

    def of(self, members: list[int]) -> PretrainingTask:
        some = copy(self)
        some.batches, some.counts = self._make_batches(members), self.counts[members]
        return some

    def parameters(self, keys: Tensor) -> Weights:
        dim = self.encoder.embedding_dim
        heads = {
            name: keyed_random.symmetric(keys, name, shape, head_inputs(name, dim))
            for name, shape in self._heads.items()
        }
        # where a target network starts, too
        self._initial = self.encoder.parameters(keys) | self._start[0] | heads
        return self._initial

    def buffers(self, members: int) -> Weights:
        own = self.encoder.buffers(members) | self._start[1]
        dim = self.encoder.embedding_dim
        return own | self.objective.extra_buffers(self._initial, own, dim=dim)

    def epoch_order(self, key: Tensor) -> Tensor:
        """(members, count): the rows of an epoch in a random order."""
        order = keyed_random.permutation(key, len(self.train.windows))
        return self._limit.applied(order) if self._limit else order

    def stage(self, order: Tensor, size: int, steps: int, keys: Tensor) -> Iterator[object]:
        if not self.streamed:
            return iter(range(steps))
        rows, keys = order.cpu(), keys.cpu()
        batches = (
            self.train.starts(rows[:, i * size : (i + 1) * size], keys[i]) for i in range(steps)
        )
        return iter(self.signals.staged(batches))

    def train_loss(
        self, weights: Weights, buffers: Weights, rows: Tensor, keys: Tensor
    ) -> tuple[Tensor, Weights]:
        batch = self.batches.batch(self.train, rows, keys)
        return self.objective.train_loss(self.trained(batch), weights, buffers, batch, keys)

    def trained(self, batch: Batch) -> Encoder:
        """The encoder as it trains on such batches."""
        return per_view(self.encoder, batch.views) if self._per_view else self.encoder

    def after_step(self, weights: Weights, buffers: Weights, moved: Tensor) -> None:
        self.objective.after_step(weights, buffers, moved)

    def validate(self, weights: Weights, buffers: Weights, keys: Tensor) -> dict[str, Tensor]:
        """Means over full batches, the same every epoch; the last is filled by wrapping around.

        A contrastive loss depends on the batch's size and mix, so these must not change.
        """
        parts, step_keys = self.validation_batches(keys)
        steps = len(parts)
        if self.streamed:
            each = zip(parts, step_keys, strict=True)
            staged = self.signals.staged(
                self.validation.starts(rows.cpu(), key.cpu()) for rows, key in each
            )
        sums: dict[str, Tensor] = {}
        for rows, key in zip(parts, step_keys, strict=True):
            if self.streamed:
                next(staged)
            batch = self.batches.batch(self.validation, rows, key)
            loss, z = self.objective.validation_loss(self.encoder, weights, buffers, batch)
            dead = (z == 0).all(dim=-1).to(z.dtype).mean(dim=(1, 2))
            found = {"loss": loss, "dead": dead, **self.objective.metrics(z, batch)}
            for name, value in found.items():
                sums[name] = sums.get(name, torch.zeros_like(value)) + value / steps
        return sums

    def validation_batches(self, keys: Tensor) -> tuple[Sequence[Tensor], list[Tensor]]:
        """(members, batch) rows of each batch to validate on, and its (members,) keys."""
        keys = keyed_random.fold(keys, keyed_random.stream("validation"))
        count = len(self.validation.windows)
        size = min(self.batch_size, count)
        steps = -(-count // size)
        order = keyed_random.permutation(keys, count)
        order = order[:, torch.arange(steps * size, device=order.device) % count]
        return order.split(size, dim=1), [keyed_random.fold(keys, i) for i in range(steps)]


def learnable_parts(frames: Frames, plan: Plan) -> list[Instances]:
    """The instances to train on and those to validate on; refuses data that teach nothing."""
    if plan.objective is None:
        raise SettingError(f"{plan.method} has nothing to train")
    plan.check_leads(frames.leads, frames.dataset)
    plan.objective.check(frames)
    views, parts = plan.views_on(frames.dataset), []
    for split, name in enumerate(("training", "validation")):
        part = instances(
            frames, of=plan.row.of, views=views, split=split, leads_at_once=plan.many_leads
        )
        part = plan.objective.usable(frames, part)
        counts = {"instances": len(part)}
        if plan.objective.compares_patients:
            counts["patients"] = len(np.unique(frames.patient[part.frame]))
        for what, count in counts.items():
            if count < 2:
                raise SettingError(
                    f"the {name} part of {frames.dataset} has too few {what} ({count}) for "
                    f"{plan.method}, which needs at least 2; prepare more patients or longer "
                    "recordings"
                )
        parts.append(part)
    return parts
