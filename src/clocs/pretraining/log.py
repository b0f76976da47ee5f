"""The log of a pre-training: one JSON line per seed and epoch and, where wanted, event files."""

from __future__ import annotations

import json
import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from clocs.errors import ClocsWarning, SettingError, with_extra
from clocs.files import write_atomic, writing
from clocs.pretraining.plan import finite
from clocs.training.loop import Epoch
from clocs.training.replicas import epochs_done

LOG, STATE, EVENTS = "log.jsonl", "state.safetensors", "tensorboard"


@contextmanager
def logged(
    out: Path,
    seeds: Sequence[int],
    on_epoch: Callable[[Epoch], None],
    *,
    tensorboard: bool,
) -> Iterator[Callable[[Epoch], None]]:
    """A function to call after each epoch: it writes the log, then event files, then calls back.

    Lines of epochs later than those in the saved state are dropped, as these are computed again.
    """
    log, known = out / LOG, _cut(out / LOG, epochs_done(out / STATE))
    events = Events({s: out / EVENTS / f"seed-{s}" for s in seeds} if tensorboard else {}, known)

    def report(epoch: Epoch) -> None:
        lines = _lines(epoch, seeds)
        with writing(log):
            with log.open("a", encoding="utf-8") as file:
                file.write("".join(json.dumps(line) + "\n" for line in lines))
            for line in lines if tensorboard else ():
                events.add(line, time.time())
        on_epoch(epoch)

    try:
        yield report
    finally:
        events.close()


def _cut(log: Path, epochs: int) -> list[dict[str, Any]]:
    """Keep the lines of the first epochs, and return them."""
    if not log.exists():
        return []
    lines = [line for line in log.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]
    kept, unreadable = [], 0
    for line in lines:
        try:
            facts = json.loads(line)
            if int(facts["epoch"]) <= epochs:
                kept.append((line, facts))
        except (ValueError, KeyError, TypeError):
            unreadable += 1
    if unreadable:
        what = "1 line that" if unreadable == 1 else f"{unreadable} lines that"
        warnings.warn(
            f"{log} has {what} cannot be read; the log goes on without", ClocsWarning, stacklevel=2
        )
    write_atomic(log, b"".join(line for line, _ in kept))
    return [facts for _, facts in kept]


def _lines(epoch: Epoch, seeds: Sequence[int]) -> list[dict[str, Any]]:
    """One line per live member."""
    return [
        {
            "epoch": epoch.number,
            "seed": seed,
            "train_loss": finite(epoch.train_loss[member]),
            **{f"validation_{name}": finite(v[member]) for name, v in epoch.validation.items()},
            "instances_per_second": round(epoch.instances / epoch.seconds, 1),  # of all members
            "seconds": round(epoch.seconds, 3),
        }
        for member, seed in enumerate(seeds)
        if epoch.live[member]
    ]


def require_tensorboard() -> None:
    """Say how to install tensorboard where it is missing, before anything is trained."""
    if find_spec("tensorboard") is None:
        raise SettingError(
            "event files need the package tensorboard, which is not installed; "
            + with_extra("tensorboard")
        )


class Events:
    """TensorBoard event files, one run per seed, made from the lines of the log.

    A resumed run rewrites its files from the log, so that each epoch is in them once.
    """

    def __init__(self, runs: Mapping[int, Path], log: Sequence[Mapping[str, Any]]) -> None:
        """Start files with the lines of the log so far, in place of those of earlier runs."""
        self._writers: dict[int, Any] = {}
        if not runs:
            return
        from torch.utils.tensorboard import SummaryWriter

        for seed, run in runs.items():
            for earlier in run.glob("events.out.tfevents.*"):
                earlier.unlink()
            # an open tensorboard drops what it has read of these epochs
            self._writers[seed] = SummaryWriter(run, purge_step=1)
        seconds = {line["epoch"]: line["seconds"] for line in log}
        ended, at = time.time(), {}
        for epoch in sorted(seconds, reverse=True):
            at[epoch] = ended
            ended -= seconds[epoch]
        for line in log:
            self.add(line, at[line["epoch"]])

    def add(self, line: Mapping[str, Any], at: float) -> None:
        """Write a line of the log, at a time in seconds since 1970."""
        writer = self._writers[line["seed"]]
        for name, value in line.items():
            if name not in ("epoch", "seed", "seconds"):
                # train_loss -> train/loss: tensorboard groups by what is before the slash
                parted = name.startswith(("train_", "validation_"))
                tag = name.replace("_", "/", 1) if parted else name
                number = math.nan if value is None else value
                writer.add_scalar(tag, number, line["epoch"], walltime=at)
        writer.flush()

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()
