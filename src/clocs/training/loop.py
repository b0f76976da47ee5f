"""Training: one loop for every task.

Everything random is a function of (seed, epoch, step, …), so that S members trained at once equal S
single trainings, and a resumed run an uninterrupted one.
"""

from __future__ import annotations

import gc
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

import torch
from torch import Tensor

from clocs.encoders.base import Weights
from clocs.errors import CheckpointError, SettingError
from clocs.kernels import keyed_random
from clocs.kernels.gpu import can_use_triton, streams
from clocs.kernels.ranks import ALONE, Ranks, summed
from clocs.training import Settings
from clocs.training.card import NOT_FINITE
from clocs.training.replicas import Layout, Optimizer, Replicas, Unpacked, is_saved
from clocs.training.signals import TRAINED, require_memory

SAVE_EVERY = 5.0  # seconds
FEWER = 2 / 3  # share of the members that still train at which the others are left out
LOOK_EVERY = 1.0  # seconds between two looks at who still trains; each waits for the device


class Task(ABC):
    """What is learned: initial weights, a loss on training rows, and a loss on validation data."""

    counts: Tensor  # (members,) training rows of each member
    # the metric of `validate` that decides which epoch is the best: 'loss' for the lowest, any
    # other, of values up to 1, for the highest
    criterion: str = "loss"
    shared: bool = False  # whether other processes make the same steps, each with a part of losses
    streamed: bool = False  # whether validation waits for data from the host
    capturable: bool = True  # whether a step can be captured as a CUDA graph

    @abstractmethod
    def parameters(self, keys: Tensor) -> Weights:
        """Initial weights, (members, …) each; keys: (members,)."""

    @abstractmethod
    def buffers(self, members: int) -> Weights:
        """Initial values of what changes without a gradient, (members, …) each."""

    @abstractmethod
    def train_loss(
        self, weights: Weights, buffers: Weights, rows: Tensor, keys: Tensor
    ) -> tuple[Tensor, Weights]:
        """rows: (members, batch) -> (members,) losses, and the buffers after this batch.

        A row of −1 is padding, for members with fewer rows than a batch; it never occurs where all
        members have equally many.
        """

    @abstractmethod
    def validate(self, weights: Weights, buffers: Weights, keys: Tensor) -> dict[str, Tensor]:
        """'loss' and any other metric, (members,) each, in evaluation mode."""

    def after_step(self, weights: Weights, buffers: Weights, moved: Tensor) -> None:
        """Change buffers, in place, after a step of the members that moved, (members, 1) bool."""
        return

    def lr_factor(self, name: str) -> float:
        """By how much the learning rate of the weights of this name differs from the others'."""
        return 1.0

    def of(self, members: list[int]) -> Task | None:
        """The same task for some of its members, in this order; None where it cannot be divided."""
        return None

    def epoch_order(self, keys: Tensor) -> Tensor:
        """(members, rows): a random order of each member's rows, then −1 up to the longest."""
        longest = int(self.counts.max())
        beyond = torch.arange(longest, device=keys.device) >= self.counts[:, None]
        draws = keyed_random.bits(keys, longest)
        last = torch.iinfo(torch.int64).max
        order = draws.masked_fill(beyond, last).argsort(dim=1, stable=True)
        return order.masked_fill(beyond, -1)

    def stage(self, order: Tensor, size: int, steps: int, keys: Tensor) -> Iterable[object]:
        """Yields once per step, when the data of that step are ready; keys: (steps, members)."""
        return range(steps)


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
    ranks: Ranks = ALONE,
) -> Trained:
    """Train one member per seed, all at once, each until its own validation loss stops falling.

    With `keep` "last" in the settings, each trains for all epochs instead; with `average`, the
    averaged weights are validated and kept.

    Training resumes from `state` if that exists. It is written after an epoch, but not sooner than
    `save_every` seconds after the last time: on a GPU an epoch takes less than writing it. It is
    also written after the last epoch.
    `on_step` is called with the steps done and the steps in an epoch, `on_epoch` after each epoch,
    before the state is written. Weights and activations are of `dtype`.

    With several processes in `ranks`, all call this; they make the steps of a task that is shared
    together, and of another each trains some of the members. The first one reads and writes
    `state`, which does not depend on their number; all return everything.
    """
    keys = keyed_random.member_keys(seeds, device)
    averaged = settings.average is not None
    require_memory(task, members=len(seeds), device=device, copies=TRAINED + averaged)
    parameters = {k: v.to(device, dtype) for k, v in task.parameters(keys).items()}
    buffers = {k: v.to(device, dtype) for k, v in task.buffers(len(seeds)).items()}
    layouts = Layout.from_tensors(parameters), Layout.from_tensors(buffers)
    theta = layouts[0].pack(parameters)
    statistics = layouts[1].pack(buffers, theta.new_zeros(len(seeds), 0))
    if state is not None and is_saved(state):
        replicas = Replicas.load(state, device)
        shapes = replicas.theta.shape, replicas.buffers.shape, replicas.average is not None
        if shapes != (theta.shape, statistics.shape, averaged):
            raise CheckpointError(f"{state} is of another training; delete it to start again")
    else:
        replicas = Replicas.start(theta, statistics, averaged=averaged)
    ranks.put(replicas.state.values())
    alone = ranks.size == 1 or task.shared  # what it knows is all that there is to know
    dividing = ALONE if alone else ranks
    active = ActiveReplicas(task, replicas, layouts, keys, settings, dividing)
    saved, unsaved = time.perf_counter(), False
    try:
        while int(active.part.epoch) < settings.epochs and active.trains():
            began = time.perf_counter()
            active.leave_out_finished()
            on_epoch(active.epoch(began, on_step))
            due = state is not None and time.perf_counter() - saved >= save_every
            unsaved = not (due if alone else ranks.agreed(due))
            if not unsaved:
                whole = active.gather()
                if state is not None:
                    whole.save(state)
                saved = time.perf_counter()
    finally:
        active.engine.release()
    replicas = active.gather()
    if state is not None and unsaved:  # what follows may be interrupted, too
        replicas.save(state)
    weights, buffers = unpack(layouts, replicas.best_theta.detach(), replicas.best_buffers)
    return Trained(
        weights=weights,
        buffers=buffers,
        validation_loss=replicas.best_loss.tolist(),
        best_epoch=replicas.best_epoch.tolist(),
        epochs=int(replicas.epoch),
        status=[
            NOT_FINITE if broken else "all epochs" if live else "stopped early"
            for broken, live in zip(replicas.broken.tolist(), replicas.live.tolist(), strict=True)
        ],
    )


class ActiveReplicas:
    """The members that still train, a part of all replicas, and their engine.

    Of several processes in `ranks`, each trains some of the members.
    """

    def __init__(
        self,
        task: Task,
        replicas: Replicas,
        layouts: tuple[Layout, Layout],
        keys: Tensor,
        settings: Settings,
        ranks: Ranks,
    ) -> None:
        self.task, self.replicas, self.layouts = task, replicas, layouts
        self.keys, self.settings, self.ranks = keys, settings, ranks
        self.members = list(range(len(keys)))  # of the replicas, that are in the part
        self.part = replicas
        self.engine = Engine(task, replicas, layouts, keys, settings)
        # (values, members) of the last epoch of each: its training loss, whether it was live, …
        self._table = torch.zeros(0, len(keys), dtype=torch.float64)
        if ranks.size > 1:
            self._go_on_with(list(ranks.divided(len(keys))[ranks.rank]))

    def _of_all(self, own: Tensor) -> Tensor:
        """The sum over all processes."""
        return summed(own) if self.ranks.size > 1 else own

    def trains(self) -> bool:
        """Whether any member still trains."""
        return bool(self._of_all(self.part.live.sum()))

    def leave_out_finished(self) -> None:
        """Go on with those that still train, once they are few enough to pay for a new start."""
        live = self.part.live.tolist()
        if any(live) and sum(live) <= FEWER * len(live):
            self._go_on_with([m for m, trains in zip(self.members, live, strict=True) if trains])

    def _go_on_with(self, members: list[int]) -> None:
        task = self.task.of(members)
        if task is None:
            return
        self.replicas.put(self.members, self.part)
        self.engine.release()
        self.members, self.part = members, self.replicas.of(members)
        self.engine = Engine(task, self.part, self.layouts, self.keys[members], self.settings)

    def epoch(self, began: float, on_step: Callable[[int, int], None]) -> Epoch:
        """One epoch; what is known of all members at its end."""
        live, train_loss = self.part.live.clone(), torch.zeros_like(self.part.best_loss)
        if bool(live.any()):  # or other processes train
            train_loss = self.engine.train_epoch(on_step)
        metrics = self.engine.validate()
        chosen = metrics[self.task.criterion]
        lowest = chosen if self.task.criterion == "loss" else 1 - chosen
        keep_last = self.settings.keep == "last"
        self.part.end_epoch(lowest, self.settings.patience, keep_last=keep_last)
        rows = [row.double().cpu() for row in (train_loss, live, *metrics.values())]
        if not len(self._table):
            self._table = self._table.new_zeros(len(rows), len(self.keys))
        self._table[:2] = 0
        self._table[:, self.members] = torch.stack(rows)
        instances = torch.tensor(self.engine.instances(live.tolist()))
        losses, alive, *values = self._of_all(self._table).tolist()
        return Epoch(
            number=int(self.part.epoch),
            seconds=time.perf_counter() - began,
            instances=int(self._of_all(instances)),
            train_loss=losses,
            validation=dict(zip(metrics, values, strict=True)),
            live=[bool(trains) for trains in alive],
        )

    def gather(self) -> Replicas:
        """The state of all members."""
        self.replicas.put(self.members, self.part)
        for rank, members in enumerate(self.ranks.divided(len(self.keys))):
            rows = slice(members.start, members.stop)
            state = self.replicas.state.items()
            self.ranks.put((t[rows] for name, t in state if name != "epoch"), rank)
        return self.replicas


class Engine:
    """The step and the validation of some replicas, captured once and replayed on a GPU.

    Whatever changes from step to step (order, step, epoch, weights) is in tensors that stay in
    place.
    """

    def __init__(
        self,
        task: Task,
        replicas: Replicas,
        layouts: tuple[Layout, Layout],
        keys: Tensor,
        settings: Settings,
    ) -> None:
        self.task, self.replicas, self.layouts, self.keys = task, replicas, layouts, keys
        if int(task.counts.min()) < 1:
            raise SettingError("there is nothing to train on: the training part has no instances")
        # the last partial batch is dropped; a set smaller than a batch is one batch
        self.size = min(settings.batch_size, int(task.counts.max()))
        self.steps = (task.counts // self.size).clamp(min=1)
        self.optimizer = Optimizer.from_settings(
            settings, layouts[0].shapes, self.steps, task.lr_factor, replicas.theta.dtype
        )
        self.longest = int(self.steps.max())
        self.order = torch.zeros(
            (len(keys), int(task.counts.max())), dtype=torch.int64, device=keys.device
        )
        self.step_keys = keys.new_zeros(self.longest, len(keys))
        self.place = torch.arange(self.size, device=keys.device)
        self.number = torch.zeros((), dtype=torch.int64, device=keys.device)  # of the step
        self.epoch = torch.zeros_like(self.number)
        self.total = torch.zeros_like(replicas.best_loss)
        self.weights = Unpacked(layouts[0], replicas.theta)
        self.buffers = Unpacked(layouts[1], replicas.buffers)
        captured = keys.device.type == "cuda" and task.capturable
        self._step = Captured(self._one_step, replicas) if captured else self._one_step
        captured = captured and not task.streamed  # what waits for the host cannot be captured
        self.validate = Captured(self._validation, replicas) if captured else self._validation

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
        self.epoch.fill_(int(self.replicas.epoch))
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
                if not bool(self.replicas.live.any()):  # all diverged: the rest changes nothing
                    break
                looked = time.perf_counter()
        return self.total / self.steps

    def _one_step(self) -> dict[str, Tensor]:
        replicas = self.replicas
        rows, keys, on = self._inputs()
        weights, before = self.weights(replicas.theta), self.buffers(replicas.buffers)
        for leaf in weights.values():
            leaf.requires_grad_()
        losses, after = self.task.train_loss(weights, before, rows, keys)
        ones = torch.ones_like(losses)
        leaves = list(weights.values())
        slopes = torch.autograd.grad(losses, leaves, ones, materialize_grads=True)
        losses = losses.detach()
        gradient = self.layouts[0].pack(dict(zip(weights, slopes, strict=True)))
        if self.task.shared:
            losses, gradient = summed(losses), summed(gradient)
        changed = self.layouts[1].pack(after, replicas.buffers)
        moved = replicas.step(gradient, changed, losses, self.optimizer, on)
        with torch.no_grad():
            self.task.after_step(*unpack(self.layouts, replicas.theta, replicas.buffers), moved)
            replicas.take_average(self.optimizer, moved)
        self.total += torch.where(on, losses, 0)
        self.number += 1
        return {}

    def _inputs(self) -> tuple[Tensor, Tensor, Tensor]:
        """Rows and keys of this step, and which members have it."""
        live, size = self.replicas.live, self.size
        if can_use_triton(self.keys, torch.float32):
            from clocs.kernels.step_triton import step_inputs

            return step_inputs(self.order, self.step_keys, self.number, size, live, self.steps)
        number = self.number % self.longest  # in range also while warming up
        rows = self.order.index_select(1, number * size + self.place)
        keys = self.step_keys.index_select(0, number.view(1))[0]
        return rows, keys, live & (self.number < self.steps)

    @torch.no_grad()
    def _validation(self) -> dict[str, Tensor]:
        """The task's metrics of the weights as they are, or of their average."""
        weights, buffers = unpack(self.layouts, *self.replicas.kept)
        found = self.task.validate(weights, buffers, self.keys)
        return found | {"loss": summed(found["loss"])} if self.task.shared else found


class Captured:
    """A function captured as a CUDA graph when first called, and replayed."""

    _WARM_UP = 3
    _one_at_a_time = Lock()

    def __init__(self, function: Callable[[], dict[str, Tensor]], replicas: Replicas) -> None:
        self._function, self._replicas = function, replicas
        self._graph: torch.cuda.CUDAGraph | None = None
        self._result: dict[str, Tensor] = {}

    def __call__(self) -> dict[str, Tensor]:
        self.ready()
        assert self._graph is not None  # ready() has made it
        self._graph.replay()
        return self._result

    def release(self) -> None:
        """Free the graph and its memory now, rather than whenever garbage is collected."""
        self._graph, self._result = None, {}

    def ready(self) -> None:
        """Warm up and capture with no member live, so that nothing changes."""
        if self._graph is not None:
            return
        live = self._replicas.live.clone()
        self._replicas.live.zero_()
        side = streams.get("capture")
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(self._WARM_UP):
                self._function()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        # several trainings may run in threads of one process, each on its own stream
        with (
            self._one_at_a_time,
            _no_garbage_collection(),
            torch.cuda.graph(graph, stream=side, capture_error_mode="thread_local"),
        ):
            self._result = self._function()
        self._replicas.live.copy_(live)
        self._graph = graph


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """A graph of an earlier training that is freed during a capture would break it."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def unpack(
    layouts: tuple[Layout, Layout], theta: Tensor, buffers: Tensor
) -> tuple[Weights, Weights]:
    """Rows of weights and of buffers -> tensors, as views of the rows."""
    return layouts[0].unpack(theta), layouts[1].unpack(buffers)
