"""Options that several commands share, and the few steps that all of them take."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from clocs.errors import SettingError
from clocs.recording import canonical_lead

if TYPE_CHECKING:
    from clocs.training.loop import Settings

out = Console(highlight=False, soft_wrap=True)
err = Console(stderr=True, highlight=False, soft_wrap=True)

Json = Annotated[bool, typer.Option("--json", help="Print JSON alone to standard output.")]
Leads = Annotated[
    str | None,
    typer.Option(help="Leads by name, such as II,V2,aVL,aVR (the default where present)."),
]
SplitSeed = Annotated[int, typer.Option(help="Of the split by patient into 60/20/20.", min=0)]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, …; the best at hand by default.")]
Epochs = Annotated[int, typer.Option(help="At most this many.", min=1)]
Patience = Annotated[
    int, typer.Option(help="Epochs without a lower validation loss before a seed stops.", min=1)
]
BatchSize = Annotated[int | None, typer.Option(help="The paper's for the dataset.", min=2)]
LearningRate = Annotated[float, typer.Option("--lr", help="Adam's learning rate.")]


def names_of(leads: str | None) -> list[str] | None:
    """'II,V2' -> ['II', 'V2']."""
    if leads is None:
        return None
    names = [name.strip() for name in leads.split(",") if name.strip()]
    if not names or len({canonical_lead(name) for name in names}) != len(names):
        raise SettingError(f"--leads {leads!r} should be distinct names, such as II,V2,aVL,aVR")
    return names


def settings_of(epochs: int, patience: int, batch_size: int, lr: float) -> Settings:
    """The settings of a training, without importing torch before it is needed."""
    from clocs.training.loop import Settings

    return Settings(epochs=epochs, patience=patience, batch_size=batch_size, lr=lr)


def print_json(value: Any) -> None:
    """JSON alone to standard output."""
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")
