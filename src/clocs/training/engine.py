"""The engine of a training: the step and the validation of the members that train."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor

from clocs.encoders.base import Weights
from clocs.errors import SettingError
from clocs.kernels import keyed_random
from clocs.kernels.gpu import can_use_triton
from clocs.training.cuda_graph import Captured
from clocs.training.fleet import Fleet
from clocs.training.optimizer import Optimizer
from clocs.training.rows import Layout, Unpacked
from clocs.training.settings import Settings
from clocs.training.task import Task

LOOK_EVERY = 1.0  # seconds between two looks at who still trains; each waits for the device


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
        self.optimizer = Optimizer.of(
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
        self.weights, self.buffers = (
            Unpacked(layout, rows)
            for layout, rows in zip(layouts, (fleet.theta, fleet.buffers), strict=True)
        )
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
            # where processes make their steps together, none may leave before the others
            if not self.task.shared and time.perf_counter() - looked >= LOOK_EVERY:
                if not bool(self.fleet.live.any()):  # all diverged: the rest would change nothing
                    break
                looked = time.perf_counter()
        return self.total / self.steps

    def _one_step(self) -> dict[str, Tensor]:
        fleet = self.fleet
        rows, keys, on = self._inputs()
        weights, before = self.weights(fleet.theta), self.buffers(fleet.buffers)
        for leaf in weights.values():
            leaf.requires_grad_()
        losses, after = self.task.train_loss(weights, before, rows, keys)
        leaves = list(weights.values())
        ones = torch.ones_like(losses)
        slopes = torch.autograd.grad(losses, leaves, ones, materialize_grads=True)
        losses = self.task.summed(losses.detach())
        gradient = self.layouts[0].pack(dict(zip(weights, slopes, strict=True)))
        gradient = self.task.summed(gradient)
        moved = fleet.step(
            gradient, self.layouts[1].pack(after, fleet.buffers), losses, self.optimizer, on
        )
        with torch.no_grad():
            self.task.after_step(*unpack(self.layouts, fleet.theta, fleet.buffers), moved)
            fleet.take_average(self.optimizer, moved)
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
        weights, buffers = unpack(self.layouts, *self.fleet.kept)
        return self.task.validate(weights, buffers, self.keys)


def _batches(counts: Tensor, batch_size: int) -> tuple[int, Tensor]:
    """The batch size, and the steps in an epoch of each member.

    The last partial batch is dropped; a set smaller than a batch is one batch.
    """
    if int(counts.min()) < 1:
        raise SettingError("there is nothing to train on: the training part has no instances")
    size = min(batch_size, int(counts.max()))
    return size, (counts // size).clamp(min=1)


def unpack(
    layouts: tuple[Layout, Layout], theta: Tensor, buffers: Tensor
) -> tuple[Weights, Weights]:
    """Rows of weights and of buffers -> tensors, as views of the rows."""
    return layouts[0].unpack(theta), layouts[1].unpack(buffers)
