"""What a person sees in the terminal: bars, tables, words. Knows nothing about how results come."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID
    from rich.table import Table

    from clocs.training.checkpoint import Checkpoint
    from clocs.training.loop import Epoch

__all__ = ["bar", "card_facts", "card_table", "cards_summary", "escape"]


@contextmanager
def bar(console: Console, title: str, unit: str) -> Iterator[Callable[[int, int], None]]:
    """A progress bar, fed with (done, total); nothing where the output is not a terminal."""
    if not console.is_terminal:
        yield lambda done, total: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeRemainingColumn as Left

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit),
        Left(),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(title, total=None)

        def show(done: int, total: int) -> None:
            progress.update(task, completed=done, total=total)

        yield show


class Watch:
    """Shows a training: loss, instances a second and the time left if no member stops early."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress, self._task, self._epochs = progress, task, 0

    def step(self, step: int, steps: int) -> None:
        self._progress.update(self._task, completed=self._epochs + step / steps)

    def epoch(self, epoch: Epoch) -> None:
        self._epochs = epoch.number
        losses = [v for v, live in zip(epoch.validation["loss"], epoch.live, strict=True) if live]
        words = (
            f"loss {sum(losses) / max(len(losses), 1):.3f}  "
            f"{epoch.instances / epoch.seconds:,.0f} instances/s"
        )
        self._progress.update(self._task, completed=epoch.number, words=words)


@contextmanager
def training(console: Console, title: str, epochs: int) -> Iterator[Watch]:
    """A progress bar over epochs; nothing where the output is not a terminal."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("epoch {task.completed:.0f} of at most {task.total:.0f}"),
        TextColumn("{task.fields[words]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        yield Watch(progress, progress.add_task(title, total=epochs, words=""))


def card_facts(checkpoint: Checkpoint) -> dict[str, Any]:
    """A checkpoint's card and sizes, ready for JSON."""
    return asdict(checkpoint.card) | {
        "weights": sum(tensor.numel() for tensor in checkpoint.weights.values()),
        "hashed_patients": len(checkpoint.patients),
    }


def card_table(card: dict[str, Any]) -> Table:
    """One checkpoint, for a person."""
    from rich.table import Table

    table = Table(title=f"{card['method']}, seed {card['seed']}", show_header=False)
    frame, trained = card["frame"], card["frame_trained"]
    rows = {
        "trained on": card["dataset"] or "nothing",
        "leads": ", ".join(card["leads"]),
        "frame to use": f"{frame['seconds']:g} s as {frame['samples']} samples",
        "frame trained": f"{trained['seconds']:g} s as {trained['samples']} samples",
        "encoder": f"{card['encoder']['name']}, {card['encoder']['embedding_dim']} dimensions, "
        f"{card['weights']:,} weights",
        "normalisation": card["normalisation"],
        "training": ", ".join(f"{k} {v}" for k, v in card["training"].items()),
        "how it went": ", ".join(f"{k} {v}" for k, v in card["metrics"].items()),
        "hashed patients": f"{card['hashed_patients']:,} (split seed {card['split_seed']})",
        "written by": f"clocs {card['clocs']}",
        "notice": card["notice"],
    }
    for name, value in rows.items():
        table.add_row(name, escape(str(value)))
    return table


def cards_summary(cards: list[dict[str, Any]]) -> Table:
    """All seeds of a pre-training, a row each."""
    from rich.table import Table

    table = Table(title=f"{cards[0]['method']} on {cards[0]['dataset'] or 'nothing'}")
    for name in ("seed", "status", "epochs", "best epoch", "validation loss"):
        table.add_column(name, justify="left" if name == "status" else "right")
    for card in cards:
        metrics = card["metrics"]
        loss = metrics["validation_loss"]
        table.add_row(
            str(card["seed"]),
            metrics["status"],
            str(metrics["epochs"]),
            str(metrics["best_epoch"]),
            "–" if loss is None else f"{loss:.4f}",
        )
    return table
