"""Training: one engine for every task. Knows a task only by its losses.

Everything random is a function of (seed, epoch, step, …), so that a fleet of S members equals S
single trainings, and a resumed run an uninterrupted one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from clocs import counter
from clocs.errors import SettingError
from clocs.fleet import Fleet, Layout, Weights


@dataclass(frozen=True)
class Settings:
    """How long and how fast; the paper's values by default."""

    epochs: int = 400
    patience: int = 15
    batch_size: int = 256
    lr: float = 1e-4

    def __post_init__(self) -> None:
        for name in ("epochs", "patience", "batch_size"):
            if getattr(self, name) < 1:
                raise SettingError(f"{name} must be at least 1, not {getattr(self, name)}")
        if not self.lr > 0:
            raise SettingError(f"the learning rate must be above 0, not {self.lr}")


class Task(Protocol):
    """What is learned: initial weights, a loss on training rows, a loss on validation data."""

    @property
    def counts(self) -> Tensor:
        """(members,) training rows of each member."""
        ...

    def parameters(self, keys: Tensor) -> Weights: ...
    def buffers(self, members: int) -> Weights: ...
    def train_loss(
        self, weights: Weights, buffers: Weights, rows: Tensor, keys: Tensor
    ) -> tuple[Tensor, Weights]:
        """rows: (members, batch) -> (members,) losses, and the buffers after this batch.

        A row of −1 is padding, for members with fewer rows than a batch; it never occurs where all
        members have equally many.
        """
        ...

    def validate(self, weights: Weights, buffers: Weights, keys: Tensor) -> dict[str, Tensor]:
        """'loss' and any other metric, (members,) each, in evaluation mode."""
        ...


@dataclass(frozen=True)
class Epoch:
    """What is known at the end of an epoch, one value a member."""

    number: int
    seconds: float
    instances: int
    train_loss: list[float]
    validation: dict[str, list[float]]
    live: list[bool]


@dataclass(frozen=True)
class Trained:
    """The best weights of each member, and how it went."""

    weights: Weights
    buffers: Weights
    validation_loss: list[float]
    best_epoch: list[int]
    epochs: int
    status: list[str]


def fit(
    task: Task,
    seeds: list[int],
    settings: Settings,
    *,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
    state: Path | None = None,
    on_step: Callable[[int, int], None] = lambda step, steps: None,
    on_epoch: Callable[[Epoch], None] = lambda epoch: None,
) -> Trained:
    """Train one member a seed, all at once, each until its own validation loss stops falling.

    Args:
        task: What is learned.
        seeds: One a member.
        settings: How long and how fast.
        device: Where.
        dtype: Of weights and activations.
        state: Where to keep the state after each epoch; training goes on from it if it is there.
        on_step: Called with the steps done and the steps an epoch has.
        on_epoch: Called after each epoch, before the state is written.
    """
    keys = counter.member_keys(seeds, device)
    parameters = {k: v.to(device, dtype) for k, v in task.parameters(keys).items()}
    buffers = {k: v.to(device, dtype) for k, v in task.buffers(len(seeds)).items()}
    layouts = Layout.of(parameters), Layout.of(buffers)
    if state is not None and state.exists():
        fleet = Fleet.load(state, device)
    else:
        fleet = Fleet.start(layouts[0].pack(parameters), layouts[1].pack(buffers))
    size, steps = _batches(task.counts, settings.batch_size)
    while int(fleet.epoch) < settings.epochs and bool(fleet.live.any()):
        began, number = time.perf_counter(), int(fleet.epoch)
        was_live = fleet.live.tolist()
        train_loss = _train_epoch(task, fleet, layouts, keys, size, steps, settings.lr, on_step)
        with torch.no_grad():
            metrics = task.validate(*_unpack(layouts, fleet.theta, fleet.buffers), keys)
        fleet.end_epoch(metrics["loss"], settings.patience)
        on_epoch(
            Epoch(
                number=number + 1,
                seconds=time.perf_counter() - began,
                instances=int((steps * size)[torch.tensor(was_live)].sum()),
                train_loss=train_loss.tolist(),
                validation={name: value.tolist() for name, value in metrics.items()},
                live=was_live,
            )
        )
        if state is not None:
            fleet.save(state)
    weights, statistics = _unpack(layouts, fleet.best_theta, fleet.best_buffers)
    return Trained(
        weights=weights,
        buffers=statistics,
        validation_loss=fleet.best_loss.tolist(),
        best_epoch=fleet.best_epoch.tolist(),
        epochs=int(fleet.epoch),
        status=[
            "not finite" if broken else "all epochs" if live else "stopped early"
            for broken, live in zip(fleet.broken.tolist(), fleet.live.tolist(), strict=True)
        ],
    )


def _train_epoch(
    task: Task,
    fleet: Fleet,
    layouts: tuple[Layout, Layout],
    keys: Tensor,
    size: int,
    steps: Tensor,
    lr: float,
    on_step: Callable[[int, int], None],
) -> Tensor:
    """One epoch of all live members; returns the mean training loss of each."""
    epoch = int(fleet.epoch)
    order = epoch_order(counter.fold(keys, counter.stream("order"), epoch), task.counts)
    total = torch.zeros_like(fleet.best_loss)
    longest = int(steps.max())
    for step in range(longest):
        rows = order[:, step * size : (step + 1) * size]
        step_keys = counter.fold(keys, counter.stream("step"), epoch, step)
        theta = fleet.theta.requires_grad_()
        losses, buffers = task.train_loss(*_unpack(layouts, theta, fleet.buffers), rows, step_keys)
        (gradient,) = torch.autograd.grad(losses.sum(), theta)
        fleet.theta = theta.detach()
        on = fleet.live & (step < steps)
        fleet.step(gradient, layouts[1].pack(buffers), losses.detach(), lr, on)
        total += torch.where(on, losses.detach(), 0)
        on_step(step + 1, longest)
    return total / steps


def epoch_order(keys: Tensor, counts: Tensor) -> Tensor:
    """(members, rows): a random order of each member's rows, then −1 up to the longest."""
    longest = int(counts.max())
    beyond = torch.arange(longest, device=keys.device) >= counts[:, None]
    last = torch.iinfo(torch.int64).max
    order = counter.bits(keys, longest).masked_fill(beyond, last).argsort(dim=1, stable=True)
    return order.masked_fill(beyond, -1)


def _batches(counts: Tensor, batch_size: int) -> tuple[int, Tensor]:
    """The batch size, and the steps an epoch of each member has.

    The last partial batch is dropped; a set smaller than a batch is one batch.
    """
    if int(counts.min()) < 1:
        raise SettingError("there is nothing to train on: the training part has no instances")
    size = min(batch_size, int(counts.max()))
    return size, (counts // size).clamp(min=1)


def _unpack(
    layouts: tuple[Layout, Layout], theta: Tensor, buffers: Tensor
) -> tuple[Weights, Weights]:
    return layouts[0].unpack(theta), layouts[1].unpack(buffers)
