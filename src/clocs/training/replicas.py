"""Replicas: everything that changes while members train, one row per member, and its steps.

A member is one training (a seed). All its weights are one row of `theta`, all its batch-norm
statistics one row of `buffers`, so masking, keeping the best and saving handle whole members.

Numbers that change from step to step are functions of the steps that a member has made, a tensor
that stays in place, so that a step can be captured and replayed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path

import torch
from torch import Tensor

from clocs.encoders.base import Weights
from clocs.errors import CheckpointError, StoreError, warn
from clocs.files import remove_leftovers
from clocs.kernels.gpu import can_use_triton
from clocs.kernels.native import adam
from clocs.sealed import ArrayFile
from clocs.training import Schedule, Settings

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8  # Adam's
_FILE = ArrayFile(
    "a training state that can be resumed",
    key="clocs.state",
    format=1,
    remedy="to start again, delete it and the previous one beside it",
)
_STEPPED = ("theta", "moment1", "moment2", "buffers", "steps", "live", "broken")
_SHORT = 1024  # numbers of a row that are read where they are: statistics of batch norm


@dataclass
class Replicas:
    """The state of all members between two steps."""

    theta: Tensor  # (members, weights)
    buffers: Tensor  # (members, statistics)
    moment1: Tensor  # (members, weights), Adam's first moment
    moment2: Tensor  # (members, weights), Adam's second moment
    steps: Tensor  # (members,) optimizer steps made
    best_theta: Tensor  # (members, weights) at the lowest validation loss
    best_buffers: Tensor  # (members, statistics) there
    best_loss: Tensor  # (members,) the lowest validation loss
    best_epoch: Tensor  # (members,) when, from 1
    stale: Tensor  # (members,) consecutive epochs without a strictly lower validation loss
    live: Tensor  # (members,) whether it still trains; a finished member no longer changes
    broken: Tensor  # (members,) whether it stopped because its loss was not finite
    epoch: Tensor  # (1,) epochs done
    average: Tensor | None = None  # (members, weights) averaged over steps, where wanted
    average_buffers: Tensor | None = None  # (members, statistics) likewise

    @classmethod
    def start(cls, theta: Tensor, buffers: Tensor, *, averaged: bool = False) -> Replicas:
        """Members as initialized, nothing done yet."""
        members, device = len(theta), theta.device

        def full(value: float | bool, dtype: torch.dtype) -> Tensor:
            return torch.full((members,), value, dtype=dtype, device=device)

        return cls(
            theta=theta,
            buffers=buffers,
            moment1=torch.zeros_like(theta),
            moment2=torch.zeros_like(theta),
            steps=full(0, torch.int64),
            best_theta=theta.clone(),
            best_buffers=buffers.clone(),
            best_loss=full(torch.inf, torch.float64),
            best_epoch=full(0, torch.int64),
            stale=full(0, torch.int64),
            live=full(True, torch.bool),
            broken=full(False, torch.bool),
            epoch=torch.zeros(1, dtype=torch.int64),
            average=theta.clone() if averaged else None,
            average_buffers=buffers.clone() if averaged else None,
        )

    @property
    def state(self) -> dict[str, Tensor]:
        """All that it has, by name."""
        every = ((f.name, getattr(self, f.name)) for f in fields(self))
        return {name: tensor for name, tensor in every if tensor is not None}

    @property
    def kept(self) -> tuple[Tensor, Tensor]:
        """The rows that are validated and kept: weights and statistics, or their averages."""
        if self.average is None or self.average_buffers is None:
            return self.theta, self.buffers
        return self.average, self.average_buffers

    def of(self, members: list[int]) -> Replicas:
        """A copy of the state of some members, in this order."""
        state = self.state
        epoch = state.pop("epoch").clone()
        return Replicas(**{k: v.detach()[members] for k, v in state.items()}, epoch=epoch)

    def put(self, members: list[int], part: Replicas) -> None:
        """Take over the state of some members, as `of` gave it and as it has changed since."""
        if part is not self:
            self.epoch.copy_(part.epoch)
            for name, tensor in part.state.items():
                if name != "epoch":
                    getattr(self, name)[members] = tensor

    @torch.no_grad()
    def step(
        self, gradient: Tensor, buffers: Tensor, loss: Tensor, optimizer: Optimizer, on: Tensor
    ) -> Tensor:
        """One step of the members that are `on` and live; a non-finite loss ends a member.

        All in place and without waiting for the host, so that a step can be captured and replayed.

        Args:
            gradient: (members, weights).
            buffers: (members, statistics) after this step's batch.
            loss: (members,) of this step's batch.
            optimizer: How far they move.
            on: (members,) bool: which have a batch in this step.

        Returns:
            (members, 1) bool: which moved.
        """
        if optimizer.plain:
            kernel: Callable[..., Tensor | None] = adam  # in C, where there is a compiler
            if self.in_kernels(loss):
                from clocs.kernels import step_triton

                kernel = step_triton.adam
            numbers = {"lr": optimizer.lr, "beta1": BETA1, "beta2": BETA2, "epsilon": EPSILON}
            state = {name: getattr(self, name) for name in _STEPPED}
            given = {"gradient": gradient, "after": buffers}
            moved = kernel(numbers, on, loss, given, **state)
            if moved is not None:
                return moved[:, None]
        failed = on & self.live & ~(loss.isfinite() & gradient.abs().amax(dim=1).isfinite())
        self.broken |= failed
        self.live &= ~failed
        moving = on & self.live
        column = moving[:, None]
        share = column.to(gradient.dtype)  # 0 leaves a row exactly as it is
        # in place where it can be: a new tensor costs as much as the arithmetic
        gradient = torch.where(column, gradient, 0)
        rate = share * optimizer.rate(self.steps, gradient.dtype)
        self.steps += moving
        self.moment1.lerp_(gradient, share * (1 - BETA1))
        self.moment2.lerp_(gradient.square_(), share * (1 - BETA2))
        count = self.steps.clamp(min=1)[:, None].to(gradient.dtype)
        spread = torch.div(self.moment2, 1 - BETA2**count, out=gradient).sqrt_().add_(EPSILON)
        if optimizer.decay is not None:
            self.theta.addcmul_(self.theta * optimizer.decay, rate, value=-1)
        self.theta.addcdiv_(self.moment1 * (rate / (1 - BETA1**count)), spread, value=-1)
        self.buffers.copy_(torch.where(column, buffers, self.buffers))
        return column

    @torch.no_grad()
    def take_average(self, optimizer: Optimizer, moved: Tensor) -> None:
        """Let the averages, where there are any, follow the members that moved, (members, 1)."""
        if self.average is None or self.average_buffers is None or optimizer.average is None:
            return
        made = self.steps[:, None].to(self.theta.dtype)
        # the first steps, far from where they lead, are soon forgotten
        decay = ((1 + made) / (10 + made)).clamp(max=optimizer.average)
        share = moved * (1 - decay)
        self.average.lerp_(self.theta, share)
        self.average_buffers.lerp_(self.buffers, share)

    def in_kernels(self, loss: Tensor) -> bool:
        """Whether Triton kernels make a step with losses like this one: by device and type."""
        single = self.theta.dtype == self.buffers.dtype == loss.dtype == torch.float32
        return single and can_use_triton(self.theta, torch.float32)

    @torch.no_grad()
    def end_epoch(self, validation: Tensor, patience: int, *, keep_last: bool = False) -> None:
        """Keep the best weights, count stale epochs, stop members with `patience` of them.

        validation: (members,) validation loss. With `keep_last`, the weights of every epoch count
        as the best so far, so that nobody stops early.
        """
        self.epoch += 1
        validation = validation.to(self.best_loss)
        # a weight may be infinite and the loss not: ReLU hides it
        finite = validation.isfinite()
        theta, buffers = self.kept
        for rows in (theta, buffers):
            finite &= (rows * 0).sum(dim=1) == 0  # ten times as fast as isfinite().all()
        failed = self.live & ~finite
        self.broken |= failed
        self.live &= ~failed
        better = self.live if keep_last else self.live & (validation < self.best_loss)
        self.best_loss.copy_(torch.where(better, validation, self.best_loss))
        self.best_epoch.copy_(torch.where(better, int(self.epoch), self.best_epoch))
        self.best_theta.copy_(torch.where(better[:, None], theta, self.best_theta))
        self.best_buffers.copy_(torch.where(better[:, None], buffers, self.best_buffers))
        self.stale.copy_(torch.where(better, 0, self.stale + self.live))
        self.live &= self.stale < patience

    def save(self, path: Path) -> None:
        """Write the whole state and its checksum; the one before stays beside it."""
        state = {name: tensor.detach().cpu().numpy() for name, tensor in self.state.items()}
        _FILE.write(path, {}, state, keep=_previous(path))

    @classmethod
    def load(cls, path: Path, device: torch.device) -> Replicas:
        """Read what `save` wrote last; where that is damaged, what it wrote before.

        Raises:
            CheckpointError: Both are damaged.
        """
        damaged = ""
        for file in filter(Path.exists, (path, _previous(path))):
            try:
                state = {name: torch.tensor(array) for name, array in _FILE.read(file)[1].items()}
                epoch = state.pop("epoch")
                replicas = cls(**{k: v.to(device) for k, v in state.items()}, epoch=epoch)
            except (StoreError, TypeError, KeyError) as error:
                damaged = damaged or str(error)
                continue
            if damaged:
                before = f"resuming from {file.name}, epoch {int(epoch)}"
                warn(f"{damaged}; {before}")
            return replicas
        raise CheckpointError(damaged)


def is_saved(path: Path) -> bool:
    """Whether there is a state to load; a run killed while saving leaves the previous one."""
    return path.exists() or _previous(path).exists()


def epochs_done(path: Path) -> int:
    """Epochs in a saved state; 0 where there is none."""
    return int(Replicas.load(path, torch.device("cpu")).epoch) if is_saved(path) else 0


def remove_state(path: Path) -> None:
    """Remove everything that `save` has written, unfinished writes included."""
    for file in (path, _previous(path)):
        file.unlink(missing_ok=True)
    remove_leftovers(path)


def _previous(path: Path) -> Path:
    return path.with_name(f"{path.stem}.previous{path.suffix}")


@dataclass(frozen=True)
class Optimizer:
    """How far a gradient moves the weights: Adam, with decay, a schedule or an average."""

    lr: float
    schedule: Schedule = "constant"
    warm_up: Tensor | None = None  # (members, 1) steps in which the learning rate rises
    total: Tensor | None = None  # (members, 1) steps of the whole training
    factors: Tensor | None = None  # (1, weights) of the learning rate; None: 1
    decay: Tensor | None = None  # (1, weights), AdamW's
    average: float | None = None

    @classmethod
    def from_settings(
        cls,
        settings: Settings,
        shapes: Mapping[str, tuple[int, ...]],
        steps: Tensor,
        lr_factor: Callable[[str], float],
        dtype: torch.dtype,
    ) -> Optimizer:
        """The optimizer of all members.

        Args:
            settings: What users have chosen.
            shapes: Of a member's weights, by name, in the order of its row.
            steps: (members,) in an epoch.
            lr_factor: The factor of the learning rate of the weights of a name.
            dtype: Of weights.
        """

        def row(values: list[float]) -> Tensor:
            each = zip(shapes.values(), values, strict=True)
            parts = [torch.full((math.prod(shape),), value, dtype=dtype) for shape, value in each]
            return torch.cat(parts)[None].to(steps.device)

        factors = [lr_factor(name) for name in shapes]
        # biases and scales of norms have one dimension
        decays = [settings.decay * (len(shape) > 1) for shape in shapes.values()]
        total = settings.epochs * steps[:, None].double()
        varies = settings.schedule != "constant" or settings.warm_up > 0
        return cls(
            lr=settings.lr,
            schedule=settings.schedule,
            warm_up=(settings.warm_up * total).round() if varies else None,
            total=total if varies else None,
            factors=row(factors) if any(factor != 1 for factor in factors) else None,
            decay=row(decays) if any(decays) else None,
            average=settings.average,
        )

    @property
    def plain(self) -> bool:
        """Whether its steps are Adam's alone, for which there are kernels."""
        return all(x is None for x in (self.total, self.factors, self.decay))

    def rate(self, done: Tensor, dtype: torch.dtype) -> Tensor | float:
        """The learning rate after (members,) steps: (members, 1), or by weight."""
        rate: Tensor | float = self.lr
        if self.total is not None and self.warm_up is not None:
            share = schedule(self.schedule, done[:, None], self.warm_up, self.total)
            rate = (self.lr * share).to(dtype)
        return rate if self.factors is None else rate * self.factors


def schedule(name: Schedule, done: Tensor, warm_up: Tensor, total: Tensor) -> Tensor:
    """The learning rate as a share of its highest, for the step after `done` ones; float64.

    It rises in equal parts in the first `warm_up` steps and then stays ('constant') or falls along
    half a cosine to 0 after `total` steps ('cosine').
    """
    rising = (done + 1) / warm_up.clamp(min=1)
    if name == "constant":
        return rising.clamp(max=1)
    way = ((done - warm_up) / (total - warm_up).clamp(min=1)).clamp(0, 1)
    falling = 0.5 + 0.5 * torch.cos(math.pi * way)
    return torch.where(done < warm_up, rising, falling)


@dataclass(frozen=True)
class Layout:
    """Names and shapes of the tensors that make up a row."""

    shapes: dict[str, tuple[int, ...]]

    @classmethod
    def from_tensors(cls, tensors: Weights) -> Layout:
        return cls({name: tuple(tensor.shape[1:]) for name, tensor in tensors.items()})

    def pack(self, tensors: Weights, none: Tensor | None = None) -> Tensor:
        """Tensors -> (members, numbers): a copy, unless they are parts of such rows already.

        `none`, (members, 0), is what there is where a row has no tensors.
        """
        if none is not None and not self.shapes:
            return none
        parts = [tensors[name] for name in self.shapes]
        rows = _rows_of(parts)
        return torch.cat([part.flatten(1) for part in parts], dim=1) if rows is None else rows

    def unpack(self, rows: Tensor) -> Weights:
        """(members, numbers) -> tensors, as views of the rows."""
        parts = rows.split(self.sizes, dim=1) if self.shapes else ()
        return {
            name: part.unflatten(1, shape) if len(shape) != 1 else part
            for part, (name, shape) in zip(parts, self.shapes.items(), strict=True)
        }

    @property
    def sizes(self) -> list[int]:
        """Numbers in each tensor."""
        return [torch.Size(shape).numel() for shape in self.shapes.values()]


class Unpacked:
    """Tensors out of rows; on a GPU, contiguous copies of long rows, which cost one kernel."""

    def __init__(self, layout: Layout, rows: Tensor) -> None:
        self.layout, self.order = layout, None
        if rows.is_cuda and rows.shape[1] > _SHORT:
            # where the numbers of the tensors, one after another, are in the rows
            places = torch.arange(rows.numel(), device=rows.device).view(rows.shape)
            self.order = torch.cat([part.flatten() for part in places.split(layout.sizes, dim=1)])

    def __call__(self, rows: Tensor) -> Weights:
        """(members, numbers) -> tensors, which no graph has made yet."""
        if self.order is None:
            return self.layout.unpack(rows.detach())
        flat = rows.detach().view(-1).index_select(0, self.order)
        parts = flat.split([len(rows) * size for size in self.layout.sizes])
        names = zip(parts, self.layout.shapes.items(), strict=True)
        return {name: part.view(len(rows), *shape) for part, (name, shape) in names}


def move_toward(tensors: list[Tensor], others: list[Tensor], kept: float, moved: Tensor) -> None:
    """Keep a share of tensors and take the rest of others, for those that moved, (members, 1) bool.

    In place, where they are; on a GPU, adjacent parts of rows are moved by one kernel.
    """
    rows = _rows_of(tensors)
    if rows is not None:
        ours = torch.cat([other.flatten(1) for other in others], dim=1)
        rows.lerp_(ours, moved.to(rows.dtype) * (1 - kept))
        return
    for tensor, other in zip(tensors, others, strict=True):
        who = moved.view(-1, *(1 for _ in tensor.shape[1:]))
        tensor.copy_(torch.where(who, other.lerp(tensor, kept), tensor))


def _rows_of(parts: list[Tensor]) -> Tensor | None:
    """(members, numbers) of which these are the parts, in this order; None where they are not.

    The rows may be parts of longer ones themselves.
    """
    numbers, place = sum(part[0].numel() for part in parts), 0
    for part in parts:
        adjacent = part.data_ptr() == parts[0].data_ptr() + place * part.element_size()
        if not (
            part.is_cuda
            and adjacent
            and part.stride(0) == parts[0].stride(0)
            and part[0].is_contiguous()
        ):
            return None
        place += part[0].numel()
    if not parts:
        return None
    return parts[0].as_strided((len(parts[0]), numbers), (parts[0].stride(0), 1))
