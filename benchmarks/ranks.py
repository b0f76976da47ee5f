"""One training in 1 and in 2 processes on this machine, and what they send each other.

    python benchmarks/ranks.py

Prints steps per second of both, measured by turns, and the numbers that a process sends and
receives in a step, counted as they pass. Two processes on one machine's processors share them: this
measures what sharing a batch costs, not what a second GPU gains.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from datetime import timedelta
from multiprocessing import get_context
from pathlib import Path

import torch
import torch.distributed as dist

import clocs
from clocs.frames.frames import Frames
from clocs.frames.make import make_frames
from clocs.kernels.ranks import Ranks
from clocs.pretraining.plan import Plan
from clocs.pretraining.task import PretrainingTask
from clocs.training import Settings
from clocs.training.loop import fit

CPU = torch.device("cpu")


def steps_per_second(frames: Frames, plan: Plan, ranks: Ranks) -> float:
    """Of the epochs after the first; validation is not counted."""
    times: list[float] = []
    task = PretrainingTask(frames, plan, ranks=ranks, device=CPU)
    spans: list[tuple[int, float]] = []

    def on_step(done: int, steps: int) -> None:
        times.append(time.perf_counter())
        if done == steps and steps > 1:
            spans.append((steps - 1, times[-1] - times[-steps]))

    fit(task, list(plan.seeds), plan.settings, device=CPU, on_step=on_step, ranks=ranks)
    return sum(steps for steps, _ in spans[1:]) / sum(seconds for _, seconds in spans[1:])


def counted() -> dict[str, int]:
    """Bytes that pass through the collectives from now on, by kind, and calls."""
    sums = {"gathered": 0, "summed": 0, "calls": 0}
    gather, reduce = dist.all_gather, dist.all_reduce

    def all_gather(every: list[torch.Tensor], own: torch.Tensor) -> None:
        sums["gathered"] += sum(one.nbytes for one in every)
        sums["calls"] += 1
        gather(every, own)

    def all_reduce(total: torch.Tensor) -> None:
        sums["summed"] += total.nbytes
        sums["calls"] += 1
        reduce(total)

    for function in (all_gather, all_reduce):
        setattr(dist, function.__name__, function)
    return sums


def work(rank: int, size: int, folder: str, plan: Plan) -> None:
    """A process of several: its speed, and what it has sent, into a file."""
    torch.set_num_threads(1)
    place, limit = f"file://{folder}/init", timedelta(minutes=5)
    dist.init_process_group("gloo", init_method=place, rank=rank, world_size=size, timeout=limit)
    frames, sums = Frames.load(Path(folder) / "frames"), counted()
    speed = steps_per_second(frames, plan, Ranks(rank, size))
    if rank == 0:
        torch.save({"speed": speed} | sums, f"{folder}/found")
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--method", default="cmsc")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--patients", type=int, default=400)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    torch.set_num_threads(1)
    settings = Settings(epochs=given.epochs, batch_size=given.batch_size)
    plan = Plan(given.method, settings=settings)
    alone, two = [], []
    with tempfile.TemporaryDirectory() as folder:
        store = clocs.prepare("synthetic", out=Path(folder) / "store", patients=given.patients)
        frames = make_frames(store)
        frames.save(Path(folder) / "frames")
        for _ in range(given.repeats):
            alone.append(steps_per_second(frames, plan, Ranks()))
            processes = [
                get_context("spawn").Process(target=work, args=(rank, 2, folder, plan))
                for rank in range(2)
            ]
            for process in processes:
                process.start()
            for process in processes:
                process.join()
            found = torch.load(f"{folder}/found")
            two.append(found["speed"])
            (Path(folder) / "init").unlink(missing_ok=True)
        task = PretrainingTask(frames, plan, device=CPU)
        steps = given.epochs * max(1, int(task.counts[0]) // given.batch_size)
    for name, speeds in (("1 process", alone), ("2 processes", two)):
        each = ", ".join(f"{speed:.2f}" for speed in speeds)
        print(f"{name:12} {max(speeds):8.2f} steps/s at best of {each}")
    print(f"ratio        {max(two) / max(alone):8.2f}")
    kinds = {"gathered": "received of all", "summed": "summed over all"}
    for kind, words in kinds.items():
        print(
            f"{kind:12} {found[kind] / steps / 1e3:8.0f} kB per step, validation included ({words})"
        )
    print(f"calls        {found['calls'] / steps:8.1f} per step")


if __name__ == "__main__":
    main()
