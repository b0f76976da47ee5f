"""Training curves as TensorBoard event files, one run per member, made from the lines of the log.

A resumed run rewrites its event files from the log, so that each epoch is in them once. Written by
tensorboard's own record writer, without torch's.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from clocs.errors import SettingError

Member = tuple[str | None, int]  # perturbation, where a run has several, and seed


def require_tensorboard() -> None:
    """Say how to install tensorboard where it is missing, before anything is trained."""
    if find_spec("tensorboard") is None:
        raise SettingError(
            "event files need the package tensorboard, which is not installed; "
            "add it with: pip install 'clocs[tensorboard]'"
        )


class Events:
    """The event files of the members of one pre-training; use it in a `with`."""

    def __init__(self, runs: Mapping[Member, Path], log: Sequence[Mapping[str, Any]]) -> None:
        """Start files with the content of the log so far, in place of those of earlier runs.

        Args:
            runs: The folder of each member.
            log: Its lines.
        """
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
            start = SessionLog(
                status=SessionLog.START
            )  # … and drops what it has read of these epochs
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
        """Write a line of the log: one member after one epoch.

        Args:
            line: As in log.jsonl.
            at: When that was, in seconds since 1970; now by default.
        """
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
    for group in ("train", "validation"):
        if name.startswith(f"{group}_"):
            return f"{group}/{name.removeprefix(f'{group}_')}"
    return name
