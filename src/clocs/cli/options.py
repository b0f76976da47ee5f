"""Options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

from clocs.errors import SettingError
from clocs.recording import canonical_lead

Json = Annotated[
    bool, typer.Option("--json", help="Print JSON and nothing else to standard output.")
]
Leads = Annotated[
    str | None,
    typer.Option(help="Leads to use, such as II,V2,aVL,aVR (the default, where present)."),
]
SplitSeed = Annotated[
    int, typer.Option(help="Random seed for the patient split (60/20/20 %).", min=0)
]
Device = Annotated[
    str | None,
    typer.Option(help="Device to compute on: cpu, cuda, cuda:1, …; the best one by default."),
]
Epochs = Annotated[int, typer.Option(help="Maximum number of epochs.", min=1)]
Patience = Annotated[
    int, typer.Option(help="Epochs without a lower validation loss before a seed stops.", min=1)
]
BatchSize = Annotated[
    int | None,
    typer.Option(help="Instances per batch; the paper's number for the dataset by default.", min=2),
]
LearningRate = Annotated[float, typer.Option("--lr", help="Learning rate of Adam.")]


def names_of(leads: str | None) -> list[str] | None:
    """'II,V2' -> ['II', 'V2']."""
    if leads is None:
        return None
    names = [name.strip() for name in leads.split(",") if name.strip()]
    if not names or len({canonical_lead(name) for name in names}) != len(names):
        raise SettingError(f"`leads` is {leads!r}; it must be distinct names such as II,V2,aVL,aVR")
    return names
