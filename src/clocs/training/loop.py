"""Training: one loop for every task.

Everything random is a function of (seed, epoch, step, …), so that a fleet of S members equals S
single trainings, and a resumed run an uninterrupted one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from clocs import keyed_random
from clocs.encoders.base import Weights
from clocs.errors import CheckpointError, SettingError
from clocs.kernels.triton_support import can_use_triton
from clocs.training.card import NOT_FINITE
from clocs.training.cuda_graph import Captured
from clocs.training.fleet import Fleet, Layout, Unpacked, is_saved
from clocs.training.memory import TRAINED, require_memory
from clocs.training.optimiser import Optimiser
from clocs.training.settings import Keep as Keep  # noqa: PLC0414 (passed on)
from clocs.training.settings import Settings as Settings  # noqa: PLC0414
from clocs.training.task import Task

SAVE_EVERY = 5.0  # seconds
LOOK_EVERY = 1.0  # seconds between two looks at who still trains; each waits for the device
FEWER = 2 / 3  # share of the members that still train at which the others are left out


@dataclass(frozen=True)
class Epoch:
    """What is known at the end of an epoch, one value per member."""

    number: int
    seconds: float
    instances: int
    train_loss: list[float]
    validation: dict[str, list[float]]
    live: list[bool]


@dataclass(frozen=True)
class Trained:
    """The weights of each member that are kept, usually the best, and how it went."""

    weights: Weights
    buffers: Weights
    validation_loss: list[float]
    best_epoch: list[int]
    epochs: int
    status: list[str]

    @property
    def diverged(self) -> list[bool]:
        """(members,) whether training ended because a loss was not finite."""
        return [status == NOT_FINITE for status in self.status]


def fit(
    task: Task,
    seeds: list[int],
    settings: Settings,
    *,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
    state: Path | None = None,
    save_every: float = SAVE_EVERY,
    on_step: Callable[[int, int], None] = lambda step, steps: None,
    on_epoch: Callable[[Epoch], None] = lambda epoch: None,
) -> Trained:
    """Train one member per seed, all at once, each until its own validation loss stops falling.

    With `keep` "last" in the settings, each trains for all epochs instead; with `average`, the
    averaged weights are validated and kept.

    Training resumes from `state` if that exists. It is written after an epoch, but not sooner than
    `save_every` seconds after the last time: on a GPU an epoch takes less than writing it. It is
    also written after the last epoch.
    `on_step` is called with the steps done and the steps in an epoch, `on_epoch` after each epoch,
    before the state is written. Weights and activations are of `dtype`.
    """
    keys = keyed_random.member_keys(seeds, device)
    averaged = settings.average is not None
    require_memory(
        task.parameters(keys[:0]),
        task.buffers(0),
        members=len(seeds),
        device=device,
        copies=TRAINED + averaged,
    )
    parameters = {k: v.to(device, dtype) for k, v in task.parameters(keys).items()}
    buffers = {k: v.to(device, dtype) for k, v in task.buffers(len(seeds)).items()}
    layouts = Layout.of(parameters), Layout.of(buffers)
    theta = layouts[0].pack(parameters)
    statistics = layouts[1].pack(buffers, theta.new_zeros(len(seeds), 0))
    if state is not None and is_saved(state):
        fleet = Fleet.load(state, device)
        shapes = fleet.theta.shape, fleet.buffers.shape, fleet.average is not None
        if shapes != (theta.shape, statistics.shape, averaged):
            raise CheckpointError(f"{state} is of another training; delete it to start again")
    else:
        fleet = Fleet.start(theta, statistics, averaged=averaged)
    crew = Crew(task, fleet, layouts, keys, settings)
    saved, unsaved = time.perf_counter(), False
    try:
        while int(crew.part.epoch) < settings.epochs and bool(crew.part.live.any()):
            began = time.perf_counter()
            crew.leave_out_finished()
            on_epoch(crew.epoch(began, on_step))
            if state is not None and time.perf_counter() - saved >= save_every:
                crew.gather().save(state)
                saved, unsaved = time.perf_counter(), False
            else:
                unsaved = True
    finally:
        crew.engine.release()
    fleet = crew.gather()
    if state is not None and unsaved:  # what follows may be interrupted, too
        fleet.save(state)
    weights, buffers = _unpack(layouts, fleet.best_theta.detach(), fleet.best_buffers)
    return Trained(
        weights=weights,
        buffers=buffers,
        validation_loss=fleet.best_loss.tolist(),
        best_epoch=fleet.best_epoch.tolist(),
        epochs=int(fleet.epoch),
        status=[
            NOT_FINITE if broken else "all epochs" if live else "stopped early"
            for broken, live in zip(fleet.broken.tolist(), fleet.live.tolist(), strict=True)
        ],
    )


class Crew:
    """A fleet of which those members work that still train."""

    def __init__(
        self,
        task: Task,
        fleet: Fleet,
        layouts: tuple[Layout, Layout],
        keys: Tensor,
        settings: Settings,
    ) -> None:
        self.task, self.fleet, self.layouts = task, fleet, layouts
        self.keys, self.settings = keys, settings
        self.members = list(range(len(keys)))  # of the fleet, that are in the part
        self.part = fleet
        self.engine = Engine(task, fleet, layouts, keys, settings)
        self._values: dict[str, list[float]] = {}  # of the last epoch of each member

    def leave_out_finished(self) -> None:
        """Go on with those that still train, once they are few enough to pay for a new start."""
        live = self.part.live.tolist()
        if sum(live) > FEWER * len(live):
            return
        members = [member for member, trains in zip(self.members, live, strict=True) if trains]
        task = self.task.of(members)
        if task is None:
            return
        part = self.gather().of(members)
        self.engine.release()
        self.members, self.part = members, part
        self.engine = Engine(task, part, self.layouts, self.keys[members], self.settings)

    def epoch(self, began: float, on_step: Callable[[int, int], None]) -> Epoch:
        """One epoch; what is known of all members at its end."""
        live = self.part.live.tolist()
        train_loss = self.engine.train_epoch(on_step)
        metrics = self.engine.validate()
        keep_last = self.settings.keep == "last"
        chosen = metrics[self.task.criterion]
        lowest = chosen if self.task.criterion == "loss" else 1 - chosen
        self.part.end_epoch(lowest, self.settings.patience, keep_last=keep_last)
        for name, values in metrics.items():
            known = self._values.setdefault(name, [0.0] * len(self.keys))
            for member, value in zip(self.members, values.tolist(), strict=True):
                known[member] = value
        losses, alive = [0.0] * len(self.keys), [False] * len(self.keys)
        for member, loss, trains in zip(self.members, train_loss.tolist(), live, strict=True):
            losses[member], alive[member] = loss, trains
        return Epoch(
            number=int(self.part.epoch),
            seconds=time.perf_counter() - began,
            instances=self.engine.instances(live),
            train_loss=losses,
            validation={name: list(values) for name, values in self._values.items()},
            live=alive,
        )

    def gather(self) -> Fleet:
        """The state of all members."""
        self.fleet.put(self.members, self.part)
        return self.fleet


class Engine:
    """The step and the validation of one fleet, captured once and replayed on a GPU.

    Whatever changes from step to step (order, step, epoch, weights) is in tensors that stay in
    place.
    """

    def __init__(
        self,
        task: Task,
        fleet: Fleet,
        layouts: tuple[Layout, Layout],
        keys: Tensor,
        settings: Settings,
    ) -> None:
        self.task, self.fleet, self.layouts, self.keys = task, fleet, layouts, keys
        self.size, self.steps = _batches(task.counts, settings.batch_size)
        self.optimiser = Optimiser.of(
            settings, layouts[0].shapes, self.steps, task.lr_factor, fleet.theta.dtype
        )
        self.longest = int(self.steps.max())
        self.order = torch.zeros(
            (len(keys), int(task.counts.max())), dtype=torch.int64, device=keys.device
        )
        self.step_keys = keys.new_zeros(self.longest, len(keys))
        self.place = torch.arange(self.size, device=keys.device)
        self.number = torch.zeros((), dtype=torch.int64, device=keys.device)  # of the step
        self.epoch = torch.zeros((), dtype=torch.int64, device=keys.device)
        self.total = torch.zeros_like(fleet.best_loss)
        self.weights = Unpacked(layouts[0], fleet.theta)
        captured = keys.device.type == "cuda" and task.capturable
        self._step = Captured(self._one_step, fleet) if captured else self._one_step
        captured = captured and not task.streamed  # what waits for the host cannot be captured
        self.validate = Captured(self._validation, fleet) if captured else self._validation

    def release(self) -> None:
        """Free what was captured; the engine is not used any more."""
        for one in (self._step, self.validate):
            if isinstance(one, Captured):
                one.release()

    def instances(self, live: list[bool]) -> int:
        """Instances that the live members see per epoch."""
        return self.size * int(self.steps.cpu()[torch.tensor(live)].sum())

    def train_epoch(self, on_step: Callable[[int, int], None]) -> Tensor:
        """One epoch of all live members; returns the mean training loss of each."""
        if isinstance(self._step, Captured):
            self._step.ready()
        self.epoch.fill_(int(self.fleet.epoch))
        self.number.zero_()
        self.total.zero_()
        key = keyed_random.fold(self.keys, keyed_random.stream("order"), self.epoch)
        self.order.copy_(self.task.epoch_order(key))
        every = torch.arange(self.longest, device=self.keys.device)[:, None]
        self.step_keys.copy_(
            keyed_random.fold(self.keys, keyed_random.stream("step"), self.epoch, every)
        )
        looked = time.perf_counter()
        staged = self.task.stage(self.order, self.size, self.longest, self.step_keys)
        for step, _ in enumerate(staged):
            self._step()
            on_step(step + 1, self.longest)
            if time.perf_counter() - looked >= LOOK_EVERY:
                if not bool(self.fleet.live.any()):  # all diverged: the rest would change nothing
                    break
                looked = time.perf_counter()
        return self.total / self.steps

    def _one_step(self) -> dict[str, Tensor]:
        fleet = self.fleet
        rows, keys, on = self._inputs()
        weights, before = self.weights(fleet.theta), self.layouts[1].unpack(fleet.buffers)
        losses, after = self.task.train_loss(weights, before, rows, keys)
        leaves = list(weights.values())
        ones = torch.ones_like(losses)
        slopes = torch.autograd.grad(losses, leaves, ones, materialize_grads=True)
        losses = losses.detach()
        gradient = self.layouts[0].pack(dict(zip(weights, slopes, strict=True)))
        moved = fleet.step(
            gradient, self.layouts[1].pack(after, fleet.buffers), losses, self.optimiser, on
        )
        with torch.no_grad():
            weights, before = _unpack(self.layouts, fleet.theta, fleet.buffers)
            later = self.task.after_step(weights, before)
            if later is not None:
                fleet.buffers.copy_(torch.where(moved, self.layouts[1].pack(later), fleet.buffers))
            fleet.take_average(self.optimiser, moved)
        self._count(on, losses)
        return {}

    def _inputs(self) -> tuple[Tensor, Tensor, Tensor]:
        """Rows and keys of this step, and which members have it."""
        live, size = self.fleet.live, self.size
        if can_use_triton(self.keys, torch.float32):
            from clocs.kernels.step_triton import step_inputs

            return step_inputs(self.order, self.step_keys, self.number, size, live, self.steps)
        number = self.number % self.longest  # in range also while warming up
        rows = self.order.index_select(1, number * size + self.place)
        keys = self.step_keys.index_select(0, number.view(1))[0]
        return rows, keys, live & (self.number < self.steps)

    def _count(self, on: Tensor, losses: Tensor) -> None:
        """Add up the losses, and the step."""
        if self.fleet.in_kernels(losses):
            from clocs.kernels.step_triton import count_step

            count_step(self.total, self.number, on, losses)
        else:
            self.total += torch.where(on, losses, 0)
            self.number += 1

    @torch.no_grad()
    def _validation(self) -> dict[str, Tensor]:
        """The task's metrics of the weights as they are, or of their average."""
        weights, buffers = _unpack(self.layouts, *self.fleet.kept)
        return self.task.validate(weights, buffers, self.keys)


def _batches(counts: Tensor, batch_size: int) -> tuple[int, Tensor]:
    """The batch size, and the steps in an epoch of each member.

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
