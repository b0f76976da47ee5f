"""The training task of a method in one of several processes that share every batch.

Each process has the signals of its own patients, and knows of all others which rows of the table
they are. So it finds its own rows in the batches that one process would have, and computes these.
Members are computed one after another: of each, it has another number of rows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from clocs.encoders.base import Weights
from clocs.errors import SettingError
from clocs.frames.frames import Frames
from clocs.kernels import collectives
from clocs.kernels.collectives import Share, sharing
from clocs.pretraining.batches import Batch, Part
from clocs.pretraining.method import Objective
from clocs.pretraining.plan import Plan
from clocs.pretraining.task import PretrainingTask
from clocs.training.ranks import Ranks
from clocs.training.signals import StreamedSignals


class SharedTask(PretrainingTask):
    """What the training loop of each process learns; together they learn what one would."""

    def __init__(
        self,
        frames: Frames,
        plan: Plan,
        *,
        ranks: Ranks,
        device: torch.device,
        dtype: torch.dtype | None = None,
        start: tuple[Weights, Weights] | None = None,
        stream: bool | None = None,
    ) -> None:
        """Arguments as for `PretrainingTask`; of `frames`, other patients' signals are not read."""
        super().__init__(
            frames, plan, device=device, dtype=dtype, start=start, stream=stream, shared=True
        )
        self.ranks, self.device = ranks, device
        owner = torch.from_numpy(ranks.owners(frames.keyed(frames.patient_ids)))
        # (instances,) which process has them; on the host, where batches are divided
        self._owners = {
            id(part): owner[part.patients.cpu()] for part in (self.train, self.validation)
        }
        self._makers = [self._make_batches([member]) for member in range(len(plan.members))]
        self._shares: list[Share] = []  # of the batch at hand, one per member

    @property
    def shared(self) -> bool:
        return True

    @property
    def capturable(self) -> bool:
        return False  # the number of its rows differs from batch to batch

    def of(self, members: list[int]) -> SharedTask:
        some = super().of(members)
        assert isinstance(some, SharedTask)
        some._makers = [self._makers[member] for member in members]
        return some

    def summed(self, part: Tensor) -> Tensor:
        return collectives.summed(part)

    def stage(self, order: Tensor, size: int, steps: int, keys: Tensor) -> Iterator[object]:
        rows, keys = order.cpu(), keys.cpu()
        each = ((rows[:, i * size : (i + 1) * size], keys[i]) for i in range(steps))
        return self._staged(self.train, each)

    def _staged(self, part: Part, batches: Iterable[tuple[Tensor, Tensor]]) -> Iterator[object]:
        """Yields when the data of a batch are ready, whose shares are then in `_shares`."""
        owners, waiting = self._owners[id(part)], deque[list[Share]]()

        def starts() -> Iterator[Tensor]:
            for rows, keys in batches:
                shares = [
                    Share.from_owners(owners[own], self.ranks.rank, self.ranks.size) for own in rows
                ]
                waiting.append(shares)
                yield self._starts(part, rows, keys, shares) if self.streamed else rows[:0]

        for _ in self.signals.staged(starts()) if self.streamed else starts():
            self._shares = [share.to(self.device) for share in waiting.popleft()]
            yield None

    def _starts(self, part: Part, rows: Tensor, keys: Tensor, shares: list[Share]) -> Tensor:
        """Where the windows of this process's rows are, those of one member after another."""
        made = []
        for member, share in enumerate(shares):
            own = slice(member, member + 1)
            with sharing(share, part.windows.shape[1]):
                made.append(part.starts(rows[own, share.places], keys[own]).flatten())
        return torch.cat(made)

    def _batches(self, part: Part, rows: Tensor, keys: Tensor) -> Iterator[Batch]:
        """rows: (members, batch) of all processes -> each member's batch of this one's rows."""
        before = 0
        for member, share in enumerate(self._shares):
            own = slice(member, member + 1)
            if isinstance(self.signals, StreamedSignals):
                self.signals.first = before
                before += part.windows[0].numel() * len(share.places)
            with sharing(share, part.windows.shape[1]):
                batch = self._makers[member].batch(part, rows[own, share.places], keys[own])
            yield replace(batch, share=share, all_rows=rows[own])

    def train_loss(
        self, weights: Weights, buffers: Weights, rows: Tensor, keys: Tensor
    ) -> tuple[Tensor, Weights]:
        losses, after = [], []
        for member, batch in enumerate(self._batches(self.train, rows, keys)):
            own = slice(member, member + 1)
            mine = _of(weights, own), _of(buffers, own)
            with sharing(self._shares[member], batch.views):
                loss, changed = self.objective.train_loss(
                    self.trained(batch), *mine, batch, keys[own]
                )
            losses.append(loss)
            after.append(changed)
        return torch.cat(losses), {k: torch.cat([own[k] for own in after]) for k in after[0]}

    def validate(self, weights: Weights, buffers: Weights, keys: Tensor) -> dict[str, Tensor]:
        parts, step_keys = self.validation_batches(keys)
        each = zip(parts, step_keys, strict=True)
        staged = self._staged(self.validation, ((rows.cpu(), key.cpu()) for rows, key in each))
        sums: dict[str, Tensor] = {}
        for rows, key, _ in zip(parts, step_keys, staged, strict=True):
            found: dict[str, list[Tensor]] = {}
            for member, batch in enumerate(self._batches(self.validation, rows, key)):
                own, share = slice(member, member + 1), self._shares[member]
                mine = _of(weights, own), _of(buffers, own)
                with sharing(share, batch.views):
                    loss, z = self.objective.validation_loss(self.encoder, *mine, batch)
                z = share.all_gather(z)
                dead = (z == 0).all(dim=-1).to(z.dtype).mean(dim=(1, 2))
                metrics = self.objective.metrics(z, batch.whole)
                for name, value in {"loss": loss, "dead": dead, **metrics}.items():
                    found.setdefault(name, []).append(value)
            for name, values in found.items():
                value = torch.cat(values) / len(parts)
                sums[name] = sums[name] + value if name in sums else value
        return sums | {"loss": self.summed(sums["loss"])}


def check_shareable(plan: Plan, frames: Frames) -> None:
    """Refuse what processes cannot train together."""
    if not plan.encoder_for(frames).shares_batches:
        raise SettingError(
            f"the encoder {plan.encoder!r} cannot be trained by several processes on one batch, as "
            "its batch norm and dropout are its own; train at least as many `seeds` as there are "
            "processes, or start one process"
        )
    if plan.objective is not None and not _is_shareable(type(plan.objective)):
        raise SettingError(
            f"{plan.method} does not say how several processes compute its loss on one batch; "
            "train at least as many `seeds` as there are processes, or start one process"
        )


def _is_shareable(kind: type[Objective]) -> bool:
    """Whether its losses know of batches that are shared: whoever changes one must say so."""

    def definer(name: str) -> type:
        return next(each for each in kind.__mro__ if name in vars(each))

    divided = definer("shared_loss")
    own = (definer(name) for name in ("train_loss", "validation_loss"))
    return (divided is Objective or issubclass(divided, definer("loss"))) and all(
        each is Objective or vars(each).get("shares_batches", False) for each in own
    )


def _of(tensors: Weights, members: slice) -> Weights:
    return {name: tensor[members] for name, tensor in tensors.items()}
