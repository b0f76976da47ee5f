"""The log of a pre-training: one JSON line per member and epoch and, where wanted, event files."""

from __future__ import annotations

import json
import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from clocs.errors import ClocsWarning, SettingError, with_extra
from clocs.files import write_atomic, writing
from clocs.pretraining.cards import finite
from clocs.pretraining.plan import Plan
from clocs.training.loop import Epoch

LOG, EVENTS = "log.jsonl", "tensorboard"

Member = tuple[str | None, int]  # perturbation, where a run has several, and seed


@contextmanager
def logged(
    out: Path,
    plan: Plan,
    on_epoch: Callable[[Epoch], None],
    *,
    epochs: int,
    tensorboard: bool,
) -> Iterator[Callable[[Epoch], None]]:
    """A function to call after each epoch: it writes the log, then event files, then calls back.

    Lines of epochs later than `epochs`, those done, are dropped, as these are computed again.
    """
    log, known = out / LOG, _cut(out / LOG, epochs)
    several = len(plan.chains) > 1
    runs = {
        (chain if several else None, seed): out / EVENTS / file.relative_to(out).with_suffix("")
        for (chain, seed), file in zip(plan.members, plan.files(out), strict=True)
    }
    with Events(runs, known) if tensorboard else nullcontext() as events:

        def report(epoch: Epoch) -> None:
            lines = _lines(epoch, plan)
            with writing(log):
                with log.open("a", encoding="utf-8") as file:
                    file.write("".join(json.dumps(line) + "\n" for line in lines))
                if events is not None:
                    for line in lines:
                        events.add(line)
            on_epoch(epoch)

        yield report


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


def _lines(epoch: Epoch, plan: Plan) -> list[dict[str, Any]]:
    """One line per live member."""
    return [
        {
            "epoch": epoch.number,
            "seed": seed,
            **({"perturb": chain} if len(plan.chains) > 1 else {}),
            "train_loss": finite(epoch.train_loss[member]),
            **{f"validation_{name}": finite(v[member]) for name, v in epoch.validation.items()},
            "instances_per_second": round(epoch.instances / epoch.seconds, 1),  # of all members
            "seconds": round(epoch.seconds, 3),
        }
        for member, (chain, seed) in enumerate(plan.members)
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
    """TensorBoard event files, one run per member, made from the lines of the log; use in a `with`.

    A resumed run rewrites its files from the log, so that each epoch is in them once. Written by
    tensorboard's own record writer, without torch's.
    """

    def __init__(self, runs: Mapping[Member, Path], log: Sequence[Mapping[str, Any]]) -> None:
        """Start files with the lines of the log so far, in place of those of earlier runs."""
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._open, self._writers = ExitStack(), {}
        began = time.time_ns()
        for member, run in runs.items():
            run.mkdir(parents=True, exist_ok=True)
            for earlier in run.glob("events.out.tfevents.*"):
                earlier.unlink()
            # the name increases with every run: an open tensorboard moves on to the new file
            file = self._open.enter_context((run / f"events.out.tfevents.{began}.clocs").open("wb"))
            self._writers[member] = RecordWriter(file)
            # … and drops what it has read of these epochs
            start = SessionLog(status=SessionLog.START)
            self._write(member, Event(wall_time=began / 1e9, file_version="brain.Event:2"))
            self._write(member, Event(wall_time=began / 1e9, step=1, session_log=start))
        seconds = {line["epoch"]: line["seconds"] for line in log}
        ended, at = began / 1e9, {}
        for epoch in sorted(seconds, reverse=True):
            at[epoch] = ended
            ended -= seconds[epoch]
        for line in log:
            self.add(line, at=at[line["epoch"]])

    def __enter__(self) -> Events:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def add(self, line: Mapping[str, Any], *, at: float | None = None) -> None:
        """Write a line of the log, at a time in seconds since 1970; now by default."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [
            Summary.Value(tag=_tag(name), simple_value=math.nan if value is None else value)
            for name, value in line.items()
            if name not in ("epoch", "seed", "perturb", "seconds")
        ]
        when = time.time() if at is None else at
        event = Event(wall_time=when, step=line["epoch"], summary=Summary(value=values))
        self._write((line.get("perturb"), line["seed"]), event)

    def _write(self, member: Member, event: Any) -> None:
        writer = self._writers[member]
        writer.write(event.SerializeToString())
        writer.flush()


def _tag(name: str) -> str:
    """train_loss -> train/loss: tensorboard groups by what is before the slash."""
    return name.replace("_", "/", 1) if name.startswith(("train_", "validation_")) else name
