"""The command line: parse, call, print. Everything it does can be done from Python."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, TextIO

import typer
from rich.markup import escape

from clocs._version import __version__
from clocs.cli import (
    evaluate,
    experiments,
    explore,
    info,
    patients,
    prepare,
    pretrain,
    show,
)
from clocs.cli.options import (
    Json,
    err,
    out,
    print_json,
)
from clocs.errors import ClocsError, ClocsWarning

app = typer.Typer(
    name="clocs",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Learning from unlabelled ECGs: contrastive learning across time, leads and patients.",
)
app.command(epilog=prepare.EXAMPLE)(prepare.prepare)
app.command(epilog=info.EXAMPLE)(info.info)
app.command(epilog=pretrain.EXAMPLE)(pretrain.pretrain)
app.add_typer(show.app)
app.add_typer(patients.app)
app.command(epilog=evaluate.EXAMPLE)(evaluate.evaluate)
experiments.register(app)
app.command(epilog="Example: clocs explore --checkpoint runs/chapman-cmsc --store stores/chapman")(
    explore.explore
)


@app.command(epilog="Example: clocs demo --out demo")
def demo(
    folder: Annotated[Path, typer.Option("--out", help="Folder for all it makes.")] = Path("demo"),
    patients: Annotated[int, typer.Option(help="Simulated patients.", min=30)] = 300,
    as_json: Json = False,
) -> None:
    """Tell the whole story on simulated ECGs: prepare, learn, evaluate, show."""
    from clocs.experiments.demo import run_demo

    result = run_demo(folder, patients=patients, console=err)
    if as_json:
        print_json(result.json())
    else:
        out.print(result.table())
        out.print(result.closing_words())


@app.callback(invoke_without_command=True)
def _version(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        out.print(__version__)
        raise typer.Exit


@contextmanager
def _one_sentence() -> Iterator[None]:
    """Errors in words: one sentence and exit code 1, without a traceback."""
    try:
        yield
    except ClocsError as error:
        err.print(f"[red]clocs:[/red] {escape(str(error))}")
        sys.exit(1)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        err.print(f"[red]clocs:[/red] {escape(f'{where}{error.strerror or error}')}")
        sys.exit(1)
    except KeyboardInterrupt:
        err.print(
            "clocs: interrupted; the same command (pretrain: with --resume) goes on from there"
        )
        sys.exit(130)


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Our own in one sentence, others with where they come from."""
    ours = issubclass(category, ClocsWarning)
    words = str(message) if ours else f"{filename}:{lineno}: {category.__name__}: {message}"
    err.print(f"[yellow]clocs:[/yellow] {escape(words)}")


def main() -> None:
    """Run the command line."""
    code = 0
    warnings.showwarning = _show_warning
    try:
        with _one_sentence():
            app()
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # all files are closed: taking modules apart one by one would take 0.1 s more
