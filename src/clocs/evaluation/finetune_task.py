"""Encoder and a new linear layer trained together on labels: a training task.

Each member starts from its own checkpoint, weights and batch-norm statistics; the checkpoint itself
never changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from clocs.encoders.base import Encoder, Weights
from clocs.errors import CheckpointError, SettingError
from clocs.evaluation.classifier_loss import head_logits, summed_loss
from clocs.evaluation.heads import Head
from clocs.evaluation.labeled import Averaging, LabeledPart, MemberLabels
from clocs.frames.frames import ABSENT, Frames
from clocs.frames.views import room
from clocs.kernels import keyed_random
from clocs.pretraining.batches import random_subsets
from clocs.pretraining.perturbations import normals
from clocs.training.checkpoint import Checkpoint
from clocs.training.embed import stack
from clocs.training.signals import Signals

# Views in evaluation mode encoded at a time, over all members: bounds the memory.
_AT_ONCE = {"cpu": 2048, "cuda": 16384}


@dataclass(frozen=True)
class LabeledWindows:
    """Labeled rows of one part."""

    starts: Tensor  # (rows,) where their signals begin; of many leads at once (rows, leads)
    scale: Tensor  # the same shape: mV per step
    targets: Tensor  # (rows, classes), or (recordings, classes) where logits are averaged
    average: Averaging | None = None  # over the rows of each recording

    @classmethod
    def from_part(cls, part: LabeledPart, device: torch.device) -> LabeledWindows:
        """What is scored of a part."""
        arrays = part.rows.in_view(), part.rows.scale_in_view(), part.targets
        starts, scale, targets = (
            torch.from_numpy(np.ascontiguousarray(array)).to(device) for array in arrays
        )
        return cls(starts, scale, targets, part.averaging(device))

    def of(self, members: list[int]) -> LabeledWindows:
        """The same: all members see these rows."""
        return self


class FinetuneTask(Head):
    """All weights trained, dropout on; stopped by the loss on the validation part."""

    def __init__(
        self,
        checkpoints: Sequence[Checkpoint],
        signals: Signals,
        train: LabeledWindows,
        validation: LabeledWindows,
        labels: MemberLabels,
        *,
        encoder_lr: float = 1.0,
        head_dropout: float = 0.0,
        by_auc: bool = False,
        augmentation: Augmentation | None = None,
        layers: Sequence[Tensor] | None = None,
    ) -> None:
        """As `LinearHead`, but each member starts from a checkpoint.

        `encoder_lr` is the learning rate of the encoder as a share of that of the layer on top,
        `head_dropout` is of embeddings, `layers` are weights (members, dim, classes) and biases
        (members, classes) to start from. Together, all members have equally many labeled rows, or
        at least a batch: batch norm cannot mask padding.
        """
        self.encoder = checkpoints[0].encoder
        if self.encoder.samples != signals.samples:
            raise CheckpointError(
                f"this encoder sees frames of {self.encoder.samples} samples, not {signals.samples}"
            )
        super().__init__(train, validation, labels, by_auc=by_auc)
        self.initial = _in_order(self.encoder, *stack(checkpoints))
        self.capturable, self.streamed = self.encoder.capturable, signals.streamed
        self.card = checkpoints[0].card
        self.signals, self.encoder_lr, self.head_dropout = signals, encoder_lr, head_dropout
        self.augmentation, self.layers = augmentation or Augmentation(), layers

    def lr_factor(self, name: str) -> float:
        return 1.0 if name.startswith("head.") else self.encoder_lr

    def parameters(self, keys: Tensor) -> Weights:
        """The checkpoints' encoders; the layer on top as given, or as torch initializes it."""
        dim, classes = self.encoder.embedding_dim, self.train.targets.shape[1]
        if self.layers is not None:
            layers = zip(("head.weight", "head.bias"), self.layers, strict=True)
            return self.initial[0] | {name: one.float() for name, one in layers}
        return self.initial[0] | {
            "head.weight": keyed_random.symmetric(keys, "head.weight", (dim, classes), dim),
            "head.bias": keyed_random.symmetric(keys, "head.bias", (classes,), dim),
        }

    def buffers(self, members: int) -> Weights:
        return self.initial[1]

    def stage(self, order: Tensor, size: int, steps: int, keys: Tensor) -> Iterator[object]:
        if not self.streamed:
            return iter(range(steps))
        host = [one.cpu() for one in (self.rows, self.train.starts, order, keys)]
        augmentation = self.augmentation.on_host()

        def starts() -> Iterator[Tensor]:
            rows, every, order, keys = host
            for step in range(steps):
                own = rows.gather(1, order[:, step * size : (step + 1) * size].clamp(min=0))
                yield augmentation.starts(every[own], own, keys[step])

        return iter(self.signals.staged(starts()))

    def train_loss(
        self, weights: Weights, buffers: Weights, rows: Tensor, keys: Tensor
    ) -> tuple[Tensor, Weights]:
        """rows: (members, batch), numbers of labeled rows."""
        own = self.rows.gather(1, rows.clamp(min=0))  # −1: a member that has finished its epoch
        starts = self.augmentation.starts(self.train.starts[own], own, keys)
        where = self.signals.located(starts)
        x = self.signals.as_input(self.card, where, self.train.scale[own])
        x = self.augmentation.signals(x, keys)
        z, buffers = self.encoder.encode_training(weights, buffers, x, keys)
        if self.head_dropout:
            key = keyed_random.fold(keys, keyed_random.stream("head"))
            z = keyed_random.dropout(z, self.head_dropout, key)
        logits = torch.baddbmm(weights["head.bias"][:, None], z, weights["head.weight"])
        return self.loss(logits, self.train.targets[own]), buffers

    def validate(self, weights: Weights, buffers: Weights, keys: Tensor) -> dict[str, Tensor]:
        part, labels, place = self.validation, self.labels, 0
        if part.average is not None:
            return self.scored(self.logits(weights, buffers, part))
        total, share = [torch.zeros_like(weights["head.bias"][:, 0]) for _ in range(2)]
        kept = []
        for logits in self._pieces(weights, buffers, part, self.signals):
            piece = slice(place, place + logits.shape[1])
            own = None if labels.validated is None else labels.validated[:, piece]
            targets = part.targets[piece]
            losses, shares = summed_loss(logits, targets, labels.multilabel, labels.weights, own)
            total, share, place = total + losses, share + shares, place + logits.shape[1]
            kept += [logits] if self.auc else []
        auc = {"auc": self.auc(torch.cat(kept, dim=1), labels.validated)} if self.auc else {}
        return {"loss": total / share} | auc

    @torch.no_grad()
    def logits(
        self,
        weights: Weights,
        buffers: Weights,
        part: LabeledWindows,
        signals: Signals | None = None,
    ) -> Tensor:
        """(members, rows or recordings, classes) of a part, in evaluation mode.

        signals: Those of the part where they are not those of training.
        """
        found = torch.cat(list(self._pieces(weights, buffers, part, signals or self.signals)), 1)
        return found if part.average is None else part.average(found)

    def _pieces(
        self, weights: Weights, buffers: Weights, part: LabeledWindows, signals: Signals
    ) -> Iterator[Tensor]:
        members, leads = len(weights["head.bias"]), len(self.encoder.leads)
        size = rows_at_once(part.starts.device, members, leads)
        pieces: Iterable[Tensor] = part.starts.split(size)
        if signals.streamed:
            pieces = signals.staged(part.starts.cpu().split(size))
        for some, scale in zip(pieces, part.scale.split(size), strict=True):
            x = signals.as_input(self.card, some, scale)
            x = x.expand(members, *x.shape[-3 if leads else -2 :])
            yield head_logits(self.encoder, weights, buffers, x)


def _in_order(encoder: Encoder, weights: Weights, buffers: Weights) -> tuple[Weights, Weights]:
    """The same in the encoder's order: a file's varies, and with it a state's to resume from."""
    names = encoder.parameters(torch.zeros(0, dtype=torch.int64)), encoder.buffers(0)
    return {k: weights[k] for k in names[0]}, {k: buffers[k] for k in names[1]}


def rows_at_once(device: torch.device, members: int, leads: int) -> int:
    """Rows of a part that are encoded at a time; `leads` is 0 for encoders of one lead."""
    return max(1, _AT_ONCE.get(device.type, 2048) // members // max(1, leads))


def signals_of(
    frames: Frames,
    device: torch.device,
    dtype: torch.dtype,
    encoder: Encoder,
    *,
    members: int,
    batch_size: int,
    stream: bool | None = None,
) -> Signals:
    """Signals to fine-tune on, all on the device or streamed to it batch by batch.

    Args:
        frames: Whose signals.
        device: Where to train.
        dtype: Of activations.
        encoder: Which sees one lead or many.
        members: That train at once.
        batch_size: Rows of each per step; 0 where nothing is trained.
        stream: As for `Signals.from_frames`: None decides by the memory of the device.
    """
    leads = len(encoder.leads)
    # fewer members, once others have finished, encode more rows at a time
    most = max(members * batch_size, rows_at_once(device, 1, leads))
    return Signals.from_frames(frames, device, dtype, windows=most * max(1, leads), stream=stream)


def members_together(counts: Sequence[int], batch_size: int) -> list[list[int]]:
    """Which members may train together: those with a batch or more, and those with equally many.

    A member with less than a batch would be padded beside one that has more, and batch norm would
    take the padding for data.
    """
    together: dict[int, list[int]] = {}
    for member, count in enumerate(counts):
        together.setdefault(min(count, batch_size), []).append(member)
    return list(together.values())


@dataclass(frozen=True)
class Augmentation:
    """Crops, subsets of leads and noise; all functions of the step's keys."""

    # (rows,) how many samples a row may begin earlier, and later; None: rows stay in place
    room: tuple[Tensor, Tensor] | None = None
    lead_subsets: float = 0.0  # share of rows that are seen through a random subset of their leads
    gaussian: float = 0.0  # the greatest standard deviation of noise, in units of the input

    @classmethod
    def of(
        cls,
        part: LabeledPart,
        device: torch.device,
        *,
        crops: bool,
        lead_subsets: float,
        gaussian: float,
    ) -> Augmentation:
        """For the rows of a training part."""
        if lead_subsets and not part.rows.leads_at_once:
            raise SettingError("`lead_subsets` is for encoders that see many leads at once")
        found = None
        if crops:
            early, late = (
                torch.from_numpy(one[part.rows.frame]).to(device) for one in room(part.frames)
            )
            found = early, late
        return cls(found, lead_subsets, gaussian)

    def on_host(self) -> Augmentation:
        """The same for rows and keys in the host's memory."""
        if self.room is None:
            return self
        early, late = (one.cpu() for one in self.room)
        return replace(self, room=(early, late))

    def starts(self, starts: Tensor, rows: Tensor, keys: Tensor) -> Tensor:
        """starts: (members, batch) or (members, batch, leads); rows: (members, batch)."""
        if self.room is not None:
            early, late = (one[rows] for one in self.room)
            key = keyed_random.fold(keys, keyed_random.stream("crop"))
            share = keyed_random.uniform(key, rows.shape[1])
            moved = (share * (early + late + 1)).to(torch.int64) - early
            moved = moved if starts.ndim == 2 else moved[..., None]
            starts = torch.where(starts == ABSENT, ABSENT, starts + moved)
        if self.lead_subsets:
            some = random_subsets(starts != ABSENT, keys, starts.shape[-1])
            key = keyed_random.fold(keys, keyed_random.stream("subset"))
            chosen = keyed_random.uniform(key, rows.shape[1]) < self.lead_subsets
            starts = torch.where(some | ~chosen[..., None], starts, ABSENT)
        return starts

    def signals(self, x: Tensor, keys: Tensor) -> Tensor:
        """x: (members, batch, …, samples) -> the same with noise; nan stays nan."""
        if not self.gaussian:
            return x
        key = keyed_random.fold(keys, keyed_random.stream("gaussian"))
        size = x[0].numel()
        noise = normals(keyed_random.bits(key, -(-size // 2)), torch.float32)[:, :size]
        strength_key = keyed_random.fold(key, keyed_random.stream("strength"))
        strength = keyed_random.uniform(strength_key, x.shape[1], torch.float32) * self.gaussian
        strength = strength.view(*x.shape[:2], *[1] * (x.ndim - 2))
        return (x + strength * noise.view(x.shape)).to(x.dtype)
