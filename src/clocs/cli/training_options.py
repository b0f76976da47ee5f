"""Options of every command that trains: the fields of `Settings`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields
from typing import Annotated, Any, get_type_hints

import typer

from clocs.cli.options import presented
from clocs.training import Settings

_OPTIONS: dict[str, Any] = {
    "epochs": typer.Option(help="Maximum number of epochs.", min=1),
    "patience": typer.Option(
        help="Epochs without a lower validation loss before a seed stops.", min=1
    ),
    "batch_size": typer.Option(
        help="Instances per batch; the paper's number for the dataset by default.", min=2
    ),
    "lr": typer.Option(help="Learning rate; with a schedule, the highest."),
    "keep": typer.Option(
        help="Weights to keep: of the lowest validation loss, or after all epochs, without early "
        "stopping."
    ),
    "optimizer": typer.Option(help="Adam as in the paper, or AdamW, whose weights decay."),
    "weight_decay": typer.Option(
        help="How fast weights decay under AdamW, biases and scales of norms aside; 0.01 by "
        "default.",
        min=0,
    ),
    "schedule": typer.Option(
        help="Learning rate after the warm-up: constant, or falling to 0 at the end."
    ),
    "warm_up": typer.Option(
        help="Share of all steps in which the learning rate rises, such as 0.05.", min=0
    ),
    "average": typer.Option(
        help="Validate and keep an exponential average of the weights with this decay per step, "
        "such as 0.998; by default the weights themselves."
    ),
}


def with_training_options(command: Callable[..., None]) -> Callable[..., None]:
    """The command with these options before `--split`; it gets them among its further keywords."""

    def run(**given: Any) -> None:
        command(**given)

    parameters = list(inspect.signature(command, eval_str=True).parameters.values())
    at = [one.name for one in parameters].index("split")
    kinds: dict[str, Any] = get_type_hints(Settings) | {"batch_size": int | None}
    defaults = {field.name: field.default for field in fields(Settings)} | {"batch_size": None}
    parameters[at:at] = [
        parameters[at].replace(
            name=name, default=defaults[name], annotation=Annotated[kinds[name], option]
        )
        for name, option in _OPTIONS.items()
    ]
    return presented(run, command, parameters)
