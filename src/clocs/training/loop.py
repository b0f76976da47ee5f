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

from clocs.encoders.base import Weights
from clocs.errors import CheckpointError
from clocs.kernels import keyed_random
from clocs.kernels.collectives import summed
from clocs.training.card import NOT_FINITE
from clocs.training.engine import Engine as Engine  # noqa: PLC0414 (passed on)
from clocs.training.engine import unpack
from clocs.training.fleet import Fleet, is_saved
from clocs.training.memory import TRAINED, require_memory
from clocs.training.ranks import ALONE, Ranks
from clocs.training.rows import Layout
from clocs.training.settings import Keep as Keep  # noqa: PLC0414 (passed on)
from clocs.training.settings import Settings as Settings  # noqa: PLC0414
from clocs.training.task import Task

SAVE_EVERY = 5.0  # seconds
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
    ranks.put(fleet.state.values())
    alone = ranks.size == 1 or task.shared  # what it knows is all that there is to know
    kind = Crew if alone else SpreadCrew
    crew = kind(task, fleet, layouts, keys, settings, ranks)
    saved, unsaved = time.perf_counter(), False
    try:
        while int(crew.part.epoch) < settings.epochs and crew.trains():
            began = time.perf_counter()
            crew.leave_out_finished()
            on_epoch(crew.epoch(began, on_step))
            due = state is not None and time.perf_counter() - saved >= save_every
            if due if alone else ranks.agreed(due):
                whole = crew.gather()
                if state is not None:
                    whole.save(state)
                saved, unsaved = time.perf_counter(), False
            else:
                unsaved = True
    finally:
        crew.engine.release()
    fleet = crew.gather()
    if state is not None and unsaved:  # what follows may be interrupted, too
        fleet.save(state)
    weights, buffers = unpack(layouts, fleet.best_theta.detach(), fleet.best_buffers)
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
        ranks: Ranks,
    ) -> None:
        self.task, self.fleet, self.layouts = task, fleet, layouts
        self.keys, self.settings, self.ranks = keys, settings, ranks
        self.members = list(range(len(keys)))  # of the fleet, that are in the part
        self.part = fleet
        self.engine = Engine(task, fleet, layouts, keys, settings)
        self._values: dict[str, list[float]] = {}  # of the last epoch of each member

    def trains(self) -> bool:
        """Whether any member still trains."""
        return bool(self.part.live.any())

    def leave_out_finished(self) -> None:
        """Go on with those that still train, once they are few enough to pay for a new start."""
        live = self.part.live.tolist()
        if not any(live) or sum(live) > FEWER * len(live):
            return
        self._go_on_with(
            [member for member, trains in zip(self.members, live, strict=True) if trains]
        )

    def _go_on_with(self, members: list[int]) -> None:
        task = self.task.of(members)
        if task is None:
            return
        self.fleet.put(self.members, self.part)
        part = self.fleet.of(members)
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


class SpreadCrew(Crew):
    """The same in several processes, each of which trains some of the members."""

    def __init__(
        self,
        task: Task,
        fleet: Fleet,
        layouts: tuple[Layout, Layout],
        keys: Tensor,
        settings: Settings,
        ranks: Ranks,
    ) -> None:
        super().__init__(task, fleet, layouts, keys, settings, ranks)
        self._of_each = ranks.members(len(keys))
        self._go_on_with(self._of_each[ranks.rank])

    def trains(self) -> bool:
        return bool(summed(self.part.live.sum()))

    def epoch(self, began: float, on_step: Callable[[int, int], None]) -> Epoch:
        if super().trains():
            own = super().epoch(began, on_step)
        else:  # wait for the others
            self.part.epoch += 1
            none = [0.0] * len(self.keys)
            values = self._values or dict.fromkeys(self.engine.validate(), none)
            own = Epoch(int(self.part.epoch), 0.0, 0, none, values, [False] * len(self.keys))
        names = list(own.validation)
        rows = [own.train_loss, own.live, *(own.validation[name] for name in names)]
        made = summed(torch.tensor(rows, dtype=torch.float64, device=self.keys.device)).tolist()
        return Epoch(
            number=own.number,
            seconds=time.perf_counter() - began,
            instances=int(summed(torch.tensor(own.instances, device=self.keys.device))),
            train_loss=made[0],
            validation=dict(zip(names, made[2:], strict=True)),
            live=[bool(trains) for trains in made[1]],
        )

    def gather(self) -> Fleet:
        whole = super().gather()
        for rank, members in enumerate(self._of_each):
            rows = slice(members[0], members[-1] + 1)
            of_rank = (t[rows] for name, t in whole.state.items() if name != "epoch")
            self.ranks.put(of_rank, rank)
        return whole
