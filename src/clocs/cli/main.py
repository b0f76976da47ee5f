"""The command line: parse, call, print. Everything it does can be done from Python."""

from __future__ import annotations

import atexit
import os
import sys
import warnings
from functools import cache, partial
from typing import Annotated

import click
import typer
import typer.core

from clocs._version import __version__
from clocs.cli import (
    data,
    demo,
    evaluate,
    experiments,
    explain,
    explore,
    export,
    finetune,
    info,
    patients,
    predict,
    prepare,
    pretrain,
    serve,
    shipped,
    show,
)
from clocs.cli.console import accept_all_characters, err, out
from clocs.cli.messages import in_one_sentence, running_command, show_warning
from clocs.errors import printable

# What the help lists together, in the order in which one does it.
PANELS = {
    "Data": ("data", "prepare", "info", "frames"),
    "Learning without labels": ("pretrain", "show"),
    "Scores": ("evaluate", "reproduce", "report"),
    "Models": ("models", "finetune", "predict", "explain", "export", "serve"),
    "Patients": ("embed", "index", "similar", "distances", "retrieval", "explore"),
    "All of it in a minute": ("demo",),
}
_PANEL = {name: panel for panel, names in PANELS.items() for name in names}


class _InPanels(typer.core.TyperGroup):
    """The commands in the order of the panels, each in its own."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(self.commands, key=[*_PANEL, *self.commands].index)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        command = super().get_command(ctx, cmd_name)
        if command is not None:
            vars(command)["rich_help_panel"] = _PANEL.get(cmd_name)
        return command

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except click.UsageError as error:  # what was typed may be the name of a stranger's file
            error.message = printable(error.message)
            raise


app = typer.Typer(
    name="clocs",
    cls=_InPanels,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Learning from unlabeled ECGs: contrastive learning across time, leads and patients.",
)
app.command(epilog=prepare.EXAMPLE)(prepare.command())
app.add_typer(data.app)
app.command(epilog=info.EXAMPLE)(info.info)
app.command(epilog=pretrain.EXAMPLE)(pretrain.command())
app.add_typer(show.app)
app.add_typer(patients.app)
app.command(epilog=evaluate.EXAMPLE)(evaluate.command())
app.command(epilog=finetune.EXAMPLE)(finetune.command())
app.command(epilog=shipped.EXAMPLE)(shipped.models)
app.command(epilog=explain.EXAMPLE)(explain.explain)
app.command(epilog=predict.EXAMPLE)(predict.predict)
experiments.register(app)
app.command(epilog=demo.EXAMPLE)(demo.demo)
app.command(epilog="Example: clocs explore --checkpoint runs/chapman-cmsc --store stores/chapman")(
    explore.explore
)
app.command(epilog=export.EXAMPLE)(export.export)
app.command(epilog=serve.EXAMPLE)(serve.serve)


@app.callback(invoke_without_command=True)
def _version(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        out.print(__version__)
        raise typer.Exit


@cache
def root_command() -> click.Command:
    """All commands with their options; making them takes a tenth of a second."""
    return typer.main.get_command(app)


def run() -> int:
    """What `sys.argv` says, with errors in one sentence; returns the exit code."""
    root = root_command()
    command = running_command(root, sys.argv[1:])
    accept_all_characters()
    if os.environ.get("RANK", "0") != "0":  # of several processes of one training the first speaks
        out.quiet = err.quiet = True
    warnings.showwarning = partial(show_warning, command)
    try:
        with in_one_sentence(command):
            try:
                root()
            finally:
                sys.stdout.flush()
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    return 0


def main() -> None:
    """Run the command line."""
    code = run()
    sys.stderr.flush()
    atexit._run_exitfuncs()  # which remove temporary folders
    os._exit(code)  # all files are closed: taking modules apart one by one would take 0.1 s more
