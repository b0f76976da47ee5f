"""The training task of a method on one dataset: its objective, computed on batches of views.

Several processes can share every batch: each computes some rows of the batches that one process
would have.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy

import numpy as np
import torch
from torch import Tensor

from clocs.encoders.base import Weights, per_view
from clocs.errors import SettingError
from clocs.frames.frames import Frames
from clocs.frames.views import Instances, instances
from clocs.kernels import keyed_random
from clocs.kernels.ranks import ALONE, Ranks, sharing
from clocs.pretraining import Objective, head_inputs
from clocs.pretraining.batches import BatchMaker, DeviceInstances
from clocs.pretraining.plan import Plan
from clocs.training.loop import Task
from clocs.training.signals import Signals


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
        ranks: Ranks = ALONE,
    ) -> None:
        """Put the data where it is needed.

        `dtype` is that of signals and activations, the plan's precision by default; `start` are the
        weights and buffers of the encoders to start from; `stream` is as for `Signals.from_frames`;
        `ranks` are the processes, which share every batch where they are more than the members.
        """
        parts = learnable_parts(frames, plan)
        assert plan.objective is not None
        self.objective, self.encoder = plan.objective, plan.encoder_for(frames)
        self.batch_size, self.device = plan.settings.batch_size, device
        self.shared = ranks.share(len(plan.seeds))
        views, members = plan.views_on(frames.dataset), len(plan.seeds)
        size = min(self.batch_size, max(len(part) for part in parts))
        self.signals = Signals.from_frames(
            frames,
            device,
            dtype or getattr(torch, plan.precision),
            windows=members * size * parts[0].windows.shape[1],  # of all leads at once
            stream=stream,
        )
        self.streamed = self.signals.streamed
        self.capturable = self.encoder.capturable and not self.shared
        self.train, self.validation = (
            DeviceInstances.from_instances(frames, part, device) for part in parts
        )
        self.batches = BatchMaker(
            self.signals,
            views,
            multilabel=frames.multilabel,
            leads_at_once=plan.multilead,
            in_mv=plan.in_mv,
            ranks=ranks if self.shared else None,
        )
        self._per_view = plan.batch_norm == "view"
        self._heads = self.objective.heads(
            dim=self.encoder.embedding_dim, classes=len(frames.labels), copies=len(views.copies)
        )
        self._start = start or ({}, {})
        self.counts = torch.full((members,), len(self.train.windows), device=device)

    def of(self, members: list[int]) -> PretrainingTask:
        some = copy(self)
        some.counts = self.counts[members]
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
        return own | self.objective.extra_buffers(self._initial, own)

    def epoch_order(self, key: Tensor) -> Tensor:
        return keyed_random.permutation(key, len(self.train.windows))

    def stage(self, order: Tensor, size: int, steps: int, keys: Tensor) -> Iterable[object]:
        if not self.streamed:
            return range(steps)
        return self._staged(self.train, order.split(size, dim=1)[:steps], keys)

    def _staged(
        self, part: DeviceInstances, rows: Iterable[Tensor], keys: Iterable[Tensor]
    ) -> Iterable[object]:
        """Yields when the windows of a batch, its (members, batch) rows, are on the device."""
        on_host = ((own.cpu(), key.cpu()) for own, key in zip(rows, keys, strict=True))
        return self.signals.staged(self.batches.starts(part, *each) for each in on_host)

    def train_loss(
        self, weights: Weights, buffers: Weights, rows: Tensor, keys: Tensor
    ) -> tuple[Tensor, Weights]:
        batch = self.batches.batch(self.train, rows, keys)
        encoder = per_view(self.encoder, batch.views) if self._per_view else self.encoder
        with sharing(batch.share, batch.views, self.device):
            return self.objective.train_loss(encoder, weights, buffers, batch, keys)

    def after_step(self, weights: Weights, buffers: Weights, moved: Tensor) -> None:
        self.objective.after_step(weights, buffers, moved)

    def validate(self, weights: Weights, buffers: Weights, keys: Tensor) -> dict[str, Tensor]:
        """Means over full batches, the same every epoch; the last is filled by wrapping around.

        A contrastive loss depends on the batch's size and mix, so these must not change. Of shared
        batches, the loss is this process's part of it.
        """
        keys = keyed_random.fold(keys, keyed_random.stream("validation"))
        part, count = self.validation, len(self.validation.windows)
        size = min(self.batch_size, count)
        steps = -(-count // size)
        order = keyed_random.permutation(keys, count)
        order = order[:, torch.arange(steps * size, device=order.device) % count]
        batches = order.split(size, dim=1)
        step_keys = [keyed_random.fold(keys, i) for i in range(steps)]
        staged = self._staged(part, batches, step_keys) if self.streamed else range(steps)
        sums: dict[str, Tensor] = {}
        for rows, key, _ in zip(batches, step_keys, staged, strict=True):
            batch = self.batches.batch(part, rows, key)
            with sharing(batch.share, batch.views, self.device):
                loss, z = self.objective.validation_loss(self.encoder, weights, buffers, batch)
            z = batch.share.all_gather(z) if batch.share else z
            dead = (z == 0).all(dim=-1).to(z.dtype).mean(dim=(1, 2))
            found = {"loss": loss, "dead": dead, **self.objective.metrics(z, batch)}
            sums = {name: sums.get(name, 0) + value / steps for name, value in found.items()}
        return sums


def learnable_parts(frames: Frames, plan: Plan) -> list[Instances]:
    """The instances to train on and those to validate on; refuses data that teach nothing."""
    if plan.objective is None:
        raise SettingError(f"{plan.method} has nothing to train")
    plan.check_leads(frames.leads, frames.dataset)
    views, parts = plan.views_on(frames.dataset), []
    for split, name in enumerate(("training", "validation")):
        part = instances(
            frames, of=plan.row.of, views=views, split=split, leads_at_once=plan.multilead
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


def check_shareable(plan: Plan, frames: Frames) -> None:
    """Refuse what processes cannot train together."""
    remedy = "train at least as many `seeds` as there are processes, or start one process"
    if not plan.encoder_for(frames).shares_batches:
        raise SettingError(
            f"the encoder {plan.encoder!r} cannot be trained by several processes on one batch, as "
            f"its batch norm and dropout are its own; {remedy}"
        )
    if plan.objective is not None and not _is_shareable(type(plan.objective)):
        raise SettingError(
            f"{plan.method} does not say how several processes compute its loss on one batch; "
            f"{remedy}"
        )


def _is_shareable(kind: type[Objective]) -> bool:
    """Whether its losses know of batches that are shared; a class that changes one must say so."""
    definers = (
        next(each for each in kind.__mro__ if name in vars(each))
        for name in ("train_loss", "validation_loss")
    )
    return all(each is Objective or vars(each).get("shares_batches", False) for each in definers)
