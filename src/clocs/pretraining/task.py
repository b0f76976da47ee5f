"""The training task of a method on one dataset: its objective, computed on batches of views.

Several processes can share every batch: each has the signals of its own patients, and knows of all
others which rows of the table they are. So it finds its own rows in the batches that one process
would have, and computes these. Members are then computed one after another: of each, it has another
number of rows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from clocs.encoders.base import Weights, per_view
from clocs.errors import SettingError
from clocs.frames.frames import Frames
from clocs.frames.views import Instances, instances
from clocs.kernels import keyed_random
from clocs.kernels.collectives import Share, sharing
from clocs.pretraining import Objective, head_inputs
from clocs.pretraining.batches import Batch, BatchMaker, DeviceInstances
from clocs.pretraining.plan import Plan
from clocs.training.loop import Task
from clocs.training.ranks import Ranks
from clocs.training.signals import Signals, StreamedSignals


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
        sharing_ranks: Ranks | None = None,
    ) -> None:
        """Put the data where it is needed.

        `dtype` is that of signals and activations, the plan's precision by default; `start` are the
        weights and buffers of the encoders to start from; `stream` is as for `Signals.of`;
        `sharing_ranks` are the processes that share every batch; of `frames`, other patients'
        signals are then not read.
        """
        parts = learnable_parts(frames, plan)
        assert plan.objective is not None
        self.objective, self.encoder = plan.objective, plan.encoder_for(frames)
        self.batch_size, self.device, self.ranks = plan.settings.batch_size, device, sharing_ranks
        self.shared = sharing_ranks is not None
        views, members = plan.views_on(frames.dataset), len(plan.seeds)
        size = min(self.batch_size, max(len(part) for part in parts))
        self.signals = Signals.of(
            frames,
            device,
            dtype or getattr(torch, plan.precision),
            windows=members * size * parts[0].windows.shape[1],  # of all leads at once
            stream=stream,
        )
        self.streamed = self.signals.streamed
        # of a shared batch, the number of its rows differs from step to step
        self.capturable = self.encoder.capturable and not self.shared
        self.train, self.validation = (DeviceInstances.of(frames, part, device) for part in parts)
        self.batches = BatchMaker(
            self.signals,
            views,
            multilabel=frames.multilabel,
            in_mv=plan.normalization == "none",
            shared=self.shared,
        )
        if sharing_ranks is not None:
            owner = torch.from_numpy(sharing_ranks.owners(frames.keyed(frames.patient_ids)))
            # (instances,) which process has them; on the host, where batches are divided
            self._owners = {
                id(part): owner[part.patients.cpu()] for part in (self.train, self.validation)
            }
        self._shares: list[Share] = []  # of the batch at hand, one per member, where it is shared
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
        if not (self.streamed or self.shared):
            return range(steps)
        rows, keys = order.cpu(), keys.cpu()
        each = ((rows[:, i * size : (i + 1) * size], keys[i]) for i in range(steps))
        return self._staged(self.train, each)

    def _staged(
        self, part: DeviceInstances, batches: Iterable[tuple[Tensor, Tensor]]
    ) -> Iterator[object]:
        """Yields when the data of a batch are ready, whose shares are then in `_shares`."""
        waiting = deque[list[Share]]()

        def starts() -> Iterator[Tensor]:
            for rows, keys in batches:
                shares = self._divided(part, rows)
                waiting.append(shares)
                if not self.streamed:
                    yield rows[:0]
                elif shares:
                    yield self._starts(part, rows, keys, shares)
                else:
                    yield part.starts(rows, keys)

        for _ in self.signals.staged(starts()) if self.streamed else starts():
            self._shares = [share.to(self.device) for share in waiting.popleft()]
            yield None

    def _divided(self, part: DeviceInstances, rows: Tensor) -> list[Share]:
        """Of each member, the rows that this process has; none where batches are not shared."""
        if self.ranks is None:
            return []
        owners, ranks = self._owners[id(part)], self.ranks
        return [Share.from_owners(owners[own], ranks.rank, ranks.size) for own in rows]

    def _starts(
        self, part: DeviceInstances, rows: Tensor, keys: Tensor, shares: list[Share]
    ) -> Tensor:
        """Where the windows of this process's rows are, those of one member after another."""
        made = []
        for member, share in enumerate(shares):
            own = slice(member, member + 1)
            with sharing(share, part.windows.shape[1]):
                made.append(part.starts(rows[own, share.places], keys[own]).flatten())
        return torch.cat(made)

    def _batches(
        self, part: DeviceInstances, rows: Tensor, keys: Tensor
    ) -> Iterator[tuple[slice, Batch]]:
        """rows: (members, batch) -> members, and their batch: all at once, or of shared ones each.

        A shared batch has the rows of this process.
        """
        if not self.shared:
            yield slice(None), self.batches.batch(part, rows, keys)
        before = 0
        for member, share in enumerate(self._shares):
            own = slice(member, member + 1)
            if isinstance(self.signals, StreamedSignals):
                self.signals.first = before
                before += part.windows[0].numel() * len(share.places)
            with sharing(share, part.windows.shape[1]):
                batch = self.batches.batch(part, rows[own, share.places], keys[own])
            yield own, replace(batch, share=share, all_rows=rows[own])

    def train_loss(
        self, weights: Weights, buffers: Weights, rows: Tensor, keys: Tensor
    ) -> tuple[Tensor, Weights]:
        losses, after = [], []
        for own, batch in self._batches(self.train, rows, keys):
            encoder = per_view(self.encoder, batch.views) if self._per_view else self.encoder
            if not self.shared:
                return self.objective.train_loss(encoder, weights, buffers, batch, keys)
            mine = _of(weights, own), _of(buffers, own)
            with _within(batch):
                loss, changed = self.objective.train_loss(encoder, *mine, batch, keys[own])
            losses.append(loss)
            after.append(changed)
        return torch.cat(losses), {k: torch.cat([own[k] for own in after]) for k in after[0]}

    def after_step(self, weights: Weights, buffers: Weights, moved: Tensor) -> None:
        self.objective.after_step(weights, buffers, moved)

    def validate(self, weights: Weights, buffers: Weights, keys: Tensor) -> dict[str, Tensor]:
        """Means over full batches, the same every epoch; the last is filled by wrapping around.

        A contrastive loss depends on the batch's size and mix, so these must not change. Of shared
        batches, the loss is this process's part of it.
        """
        parts, step_keys = self._validation_batches(keys)
        each: Iterable[tuple[Tensor, Tensor]] = zip(parts, step_keys, strict=True)
        if self.streamed or self.shared:
            each = ((rows.cpu(), key.cpu()) for rows, key in each)
        sums: dict[str, Tensor] = {}
        for rows, key, _ in zip(parts, step_keys, self._staged(self.validation, each), strict=True):
            found: dict[str, list[Tensor]] = {}
            for own, batch in self._batches(self.validation, rows, key):
                mine = _of(weights, own), _of(buffers, own)
                with _within(batch):
                    loss, z = self.objective.validation_loss(self.encoder, *mine, batch)
                z = batch.share.all_gather(z) if batch.share else z
                dead = (z == 0).all(dim=-1).to(z.dtype).mean(dim=(1, 2))
                metrics = self.objective.metrics(z, batch.whole)
                for name, value in {"loss": loss, "dead": dead, **metrics}.items():
                    found.setdefault(name, []).append(value)
            for name, values in found.items():
                value = torch.cat(values) / len(parts)
                sums[name] = sums[name] + value if name in sums else value
        return sums

    def _validation_batches(self, keys: Tensor) -> tuple[Sequence[Tensor], list[Tensor]]:
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


def _of(tensors: Weights, members: slice) -> Weights:
    return {name: tensor[members] for name, tensor in tensors.items()}


def _within(batch: Batch) -> AbstractContextManager[None]:
    return sharing(batch.share, batch.views) if batch.share else nullcontext()
