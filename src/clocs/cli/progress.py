"""Progress bars on standard error; silent where that is not a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from clocs.training.loop import Epoch


_WIDE = 100  # columns from which on there is room for the speed


@contextmanager
def bar(console: Console, title: str, unit: str) -> Iterator[Callable[[int, int], None]]:
    """A progress bar, fed with (done, total); nothing where the output is not a terminal."""
    if not console.is_terminal:
        yield lambda done, total: None
        return
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    titled = TextColumn("{task.description}", markup=False)
    parts = (titled, BarColumn(None), MofNCompleteColumn(), unit)
    with Progress(*parts, TimeRemainingColumn(), console=console, expand=True) as progress:
        task = progress.add_task(title, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


class TrainingBar:
    """Shows a training: loss, instances per second, and the time left if no seed stops early."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress, self._task, self._epochs = progress, task, 0

    def step(self, step: int, steps: int) -> None:
        self._progress.update(self._task, completed=self._epochs + step / steps)

    def epoch(self, epoch: Epoch) -> None:
        self._epochs = epoch.number
        losses = [v for v, live in zip(epoch.validation["loss"], epoch.live, strict=True) if live]
        words = f"loss {sum(losses) / max(len(losses), 1):.3f}"
        if self._progress.console.width >= _WIDE:
            words += f"  {epoch.instances / epoch.seconds:,.0f} instances/s"
        self._progress.update(self._task, completed=epoch.number, words=words)


@contextmanager
def training(console: Console, title: str, epochs: int) -> Iterator[TrainingBar]:
    """A progress bar over epochs; nothing where the output is not a terminal."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    words = "epoch {task.completed:.0f}/{task.total:.0f} {task.fields[words]}"
    titled = TextColumn("{task.description}", markup=False)
    columns = (titled, BarColumn(None), words, TimeRemainingColumn())
    shown = console.is_terminal
    with Progress(*columns, console=console, expand=True, disable=not shown) as progress:
        yield TrainingBar(progress, progress.add_task(title, total=epochs, words=""))
