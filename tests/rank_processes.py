"""Trainings in 2 and in 4 processes that gloo connects: FRAMES OUT writes what they have learned.

One process imports everything and is then forked, before it computes anything.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from safetensors.torch import save_file

from clocs.errors import LostProcessError
from clocs.frames.frames import Frames
from clocs.kernels.ranks import Ranks, current, gathered
from clocs.pretraining.plan import Plan
from clocs.pretraining.pretrain import pretrain_frames
from clocs.pretraining.task import PretrainingTask
from clocs.training import Settings
from clocs.training.loop import Trained, fit
from tiny_leads import fewer_stages

CPU = torch.device("cpu")
LIMIT = 900  # seconds without an answer


@dataclass(frozen=True)
class Case:
    """One training in float64, small enough for a test."""

    method: str
    epochs: int
    batch: int = 8
    members: int = 1
    steps: int = 1  # at least so many are made
    stream: bool = False
    leads: int = 4
    every: int = 1  # of so many frames, one is used
    sizes: tuple[int, ...] = (2,)  # numbers of processes
    more: dict[str, Any] = field(default_factory=dict)

    def train(self, frames: Frames, ranks: Ranks) -> Trained:
        """By these processes, or by one; the weights after all epochs."""
        with fewer_stages(32):
            return self._train(frames, ranks)

    def _train(self, frames: Frames, ranks: Ranks) -> Trained:
        settings = Settings(epochs=self.epochs, batch_size=self.batch, lr=1e-3, keep="last")
        given: dict[str, Any] = {
            "embedding_dim": 16,
            "seeds": tuple(range(self.members)),
        } | self.more
        plan = Plan(self.method, settings=settings, **given)
        options: dict[str, Any] = {"device": CPU, "dtype": torch.float64, "stream": self.stream}
        frames = frames.with_leads(frames.leads[: self.leads])
        frames = frames.take(np.arange(0, len(frames), self.every))
        task = PretrainingTask(frames, plan, ranks=ranks, **options)
        seeds = list(plan.seeds)
        made: list[int] = []
        trained = fit(
            task,
            seeds,
            settings,
            device=CPU,
            dtype=torch.float64,
            ranks=ranks,
            on_step=lambda step, steps: made.append(step),
        )
        assert len(made) >= self.steps
        return trained


CASES = {
    "cmsc": Case("cmsc", 1, steps=6, sizes=(2, 4)),
    "cmlc": Case("cmlc", 2, steps=6),
    "cmsmlc": Case("cmsmlc", 3, steps=6),
    "simclr": Case("simclr", 1, 16, steps=6),
    "byol": Case("byol", 1, 16, steps=6),
    "mtssl": Case("mtssl", 1, 16, leads=1),
    "supervised": Case("supervised", 1, 16, leads=1),
    "a projection": Case("simclr", 1, 16, leads=1, more={"options": {"projection": 8}}),
    "a norm per view": Case("cmlc", 1, more={"batch_norm": "view"}),
    "streamed random crops": Case(
        "cmsc", 1, 16, stream=True, sizes=(4,), more={"options": {"crops": "random"}}
    ),
    "all perturbations": Case(
        "simclr",
        1,
        16,
        leads=1,
        sizes=(4,),
        more={
            "perturb": "gaussian>flip_y>flip_x>sa_t>sa_f>permutation>time_warp>stretch>noise_snr"
        },
    ),
    "resnet": Case("cmsc", 1, 16, leads=2, more={"encoder": "resnet"}),
    "many leads": Case(
        "cmlc", 1, 8, leads=2, every=3, more={"encoder": "multilead", "dropout": 0.1}
    ),
    "a fleet": Case("cmsc", 1, 16, members=3, leads=2, sizes=(2, 4)),
    "a fleet that crops": Case(
        "cmsc", 1, 16, members=3, leads=2, stream=True, more={"options": {"crops": "random"}}
    ),
}
KILLED = Plan("cmsc", embedding_dim=8, settings=Settings(epochs=4, batch_size=16, lr=1e-3))


def saved(trained: Trained) -> dict[str, torch.Tensor]:
    """What a training gave, by name."""
    losses = {"validation loss": torch.tensor(trained.validation_loss)}
    return losses | {k: v.contiguous() for k, v in (trained.weights | trained.buffers).items()}


def collect(frames: Frames, out: Path) -> None:
    """All cases; of the collectives, values and gradients."""
    ranks = current()
    x = torch.arange(6.0, dtype=torch.float64).view(2, 3).add(ranks.rank).requires_grad_()
    part = (gathered(x) ** 2).sum() * (ranks.rank + 1)
    part.backward()
    # d/dx of Σ over ranks of (rank + 1) · x² is 2x · 1 + … + N
    assert x.grad is not None
    assert torch.equal(x.grad, 2 * x.detach() * sum(range(1, ranks.size + 1)))
    for name, case in CASES.items():
        trained = case.train(frames, ranks) if ranks.size in case.sizes else None
        if trained and ranks.first:
            save_file(saved(trained), out / f"{ranks.size} {name}")


def die(frames: Frames, out: Path) -> None:
    """Process 1 is killed in the third epoch."""

    def step(done: int, steps: int) -> None:
        if (out / "two epochs").exists() and current().rank == 1 and done == 2:
            os.kill(os.getpid(), signal.SIGKILL)

    def epoch(epoch: Any) -> None:
        if current().first and epoch.number == 2:
            (out / "two epochs").touch()

    try:
        pretrain_frames(frames, KILLED, out / "killed", save_every=0, on_step=step, on_epoch=epoch)
    except LostProcessError as error:
        (out / f"said by {current().rank}").write_text(str(error))


def resume(frames: Frames, out: Path) -> None:
    """What was killed goes on in another number of processes."""
    pretrain_frames(frames, KILLED, out / "killed", resume=True)


def together(
    size: int, work: Callable[[Frames, Path], None], frames: Frames, out: Path
) -> set[int]:
    """Run so many forked processes to their ends; returns their exit statuses."""
    children = []
    for rank in range(size):
        child = os.fork()
        if not child:
            try:
                dist.init_process_group(
                    "gloo",
                    init_method=f"file://{out}/{size} {work.__name__}.init".replace(" ", "-"),
                    rank=rank,
                    world_size=size,
                    timeout=timedelta(seconds=LIMIT),
                )
                work(frames, out)
                sys.stdout.flush()
                os._exit(0)
            except BaseException:
                sys.excepthook(*sys.exc_info())
                sys.stderr.flush()
                os._exit(1)
        children.append(child)
    return {os.waitpid(child, 0)[1] for child in children}


def main() -> None:
    torch.set_num_threads(1)
    import_module("sympy")  # or each process would, when torch first computes
    frames, out = Frames.load(Path(sys.argv[1])), Path(sys.argv[2])
    assert together(2, collect, frames, out) == {0}
    assert together(4, collect, frames, out) == {0}
    assert together(2, die, frames, out) == {0, signal.SIGKILL}
    assert together(3, resume, frames, out) == {0}


if __name__ == "__main__":
    main()
