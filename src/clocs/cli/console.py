"""What a command prints: its answer, tables, and progress bars on standard error."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from clocs.cli.messages import plain, silent

if TYPE_CHECKING:
    from clocs.training.loop import Epoch


class PlainConsole(Console):
    """The console for everything clocs prints: text from files cannot control the terminal.

    Characters that would steer the terminal, or that its encoding lacks, are replaced before tables
    are laid out, and square brackets are no markup. Only clocs itself styles text (`rich.text`).
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, soft_wrap=True, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(plain(text, self.encoding), **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterator[Segment]:
        for one in super().render(renderable, options):
            shown = one.text if one.control else plain(one.text, self.encoding)
            yield one if shown is one.text else one._replace(text=shown)


@dataclass(frozen=True)
class Call:
    """The call of a command's Python function.

    Attributes:
        command: The command.
        function: What it calls.
        given: The parameters that were typed, by name.
        as_json: Whether JSON is wanted.
    """

    command: click.Command
    function: Callable[..., Any]
    given: dict[str, Any]
    as_json: bool

    def __call__(self, **more: Any) -> Any:
        """Call the function with what was typed and these further parameters."""
        keywords = self.given | more
        before: list[Any] = []
        for name, one in inspect.signature(self.function).parameters.items():
            if one.kind is one.VAR_POSITIONAL:
                firsts = [keywords.pop(first) for first in before if first in keywords]
                return self.function(*firsts, *keywords.pop(name, ()), **keywords)
            before.append(name)
        return self.function(**keywords)


@dataclass(frozen=True)
class Answer:
    """What a command prints.

    Attributes:
        facts: For JSON.
        shown: For a person, one after the other.
        problems: Names and reasons of recordings that could not be used, for standard error.
        code: The exit code.
    """

    facts: Any
    shown: Sequence[Any] = ()
    problems: Sequence[tuple[str, str]] = field(default=())
    code: int = 0


out = PlainConsole(quiet=silent())
err = PlainConsole(stderr=True, quiet=silent())


def say_now(facts: dict[str, Any]) -> None:
    """One line of JSON, flushed, because its reader is waiting."""
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


@contextmanager
def bar(title: str, unit: str, console: Console | None = None) -> Iterator[Callable[..., None]]:
    """A progress bar on standard error, fed with (done, total), and a title where that changes.

    There is none where standard error is no terminal.
    """
    console = console or err
    if not console.is_terminal:
        yield lambda done, total, title="", words="": None
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
        yield lambda done, total, title=title, words="": progress.update(
            task, completed=done, total=total, description=f"{title}{words}"
        )


@contextmanager
def training(
    title: str, epochs: int | None, console: Console | None = None
) -> Iterator[dict[str, Callable[..., None]]]:
    """A bar over epochs, with the loss; yields the callbacks of a training.

    Without `epochs` there are as many as `Settings` has; seeds may stop earlier.
    """
    from clocs.training import Settings

    total, done, words = epochs or Settings.epochs, 0, ""
    with bar(title, "epochs", console) as show:

        def step(number: int, steps: int) -> None:
            show(done + number / steps, total, words=words)

        def epoch(one: Epoch) -> None:
            nonlocal done, words
            losses = [v for v, live in zip(one.validation["loss"], one.live, strict=True) if live]
            done, words = one.number, f"  loss {sum(losses) / max(len(losses), 1):.3f}"
            show(done, total, words=words)

        yield {"on_step": step, "on_epoch": epoch}
