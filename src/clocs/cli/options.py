"""Options that several commands share."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import click
import typer
from click.core import ParameterSource

from clocs.errors import SettingError
from clocs.recording import canonical_lead
from clocs.registry import Configurable, Option

FIGURES = (".png", ".svg", ".pdf")  # as `clocs.figures.canvas` saves them

Json = Annotated[
    bool, typer.Option("--json", help="Print JSON and nothing else to standard output.")
]
FollowLinks = Annotated[
    bool,
    typer.Option("--follow-links", help="Read also what links in a folder lead to outside of it."),
]
Leads = Annotated[
    str | None,
    typer.Option(help="Leads to use, such as II,V2,aVL,aVR (the default, where present)."),
]
SplitSeed = Annotated[
    int, typer.Option(help="Random seed for the patient split (60/20/20 %).", min=0)
]
Split = Annotated[
    Literal["hash", "folds"] | None,
    typer.Option(
        "--split",
        help="Split patients by the hash of their IDs, or by the store's official folds (the "
        "default where it has some).",
    ),
]
TestFolds = Annotated[
    str | None,
    typer.Option(help="Folds to test on, such as 10; of numbers, by default the highest."),
]
ValidationFolds = Annotated[
    str | None,
    typer.Option(help="Folds to validate on, such as 9; of numbers, by default the next."),
]
CohortFile = Annotated[
    Path | None,
    typer.Option(
        "--cohort",
        metavar="FILE",
        help="Only these patients of stores: a CSV with a column patient, or one ID per line.",
    ),
]
Device = Annotated[
    str | None,
    typer.Option(help="Device to compute on: cpu, cuda, cuda:1, …; the best one by default."),
]
ClassWeights = Annotated[
    bool,
    typer.Option("--class-weights", help="Let rare classes count as much as common ones."),
]
Fraction = Annotated[float, typer.Option(help="The labeled fraction of the training part.")]
Labels = Annotated[
    int | None,
    typer.Option(
        help="The number of labeled recordings (--by patient: patients), not a fraction.",
        min=1,
    ),
]
EncoderLeads = Annotated[
    str | None,
    typer.Option(
        "--leads",
        help="Leads by name, such as II,V2,aVL,aVR; by default those the encoders were trained on.",
    ),
]
Resamples = Annotated[
    int,
    typer.Option(help="Draws of seeds and patients for intervals and paired tests.", min=0),
]


def figure_name(path: Path) -> Path:
    """The path, if it names a figure.

    Raises:
        SettingError: If its suffix is of no format.
    """
    if path.suffix.lower() not in FIGURES or path.is_dir():
        raise SettingError(f"{path} is no figure; give a name that ends in {', '.join(FIGURES)}")
    return path


def names_of(leads: str | None) -> list[str] | None:
    """'II,V2' -> ['II', 'V2']."""
    if leads is None:
        return None
    names = [name.strip() for name in leads.split(",") if name.strip()]
    if not names or len({canonical_lead(name) for name in names}) != len(names):
        raise SettingError(f"`leads` is {leads!r}; it must be distinct names such as II,V2,aVL,aVR")
    return names


def pairs_of(text: str | None, option: str = "lead_names") -> dict[str, str] | None:
    """'ECG1=II,ch2=V5' -> {'ECG1': 'II', 'ch2': 'V5'}."""
    pairs: dict[str, str] | None = Option(option, None, "", kind=dict).checked(text)
    return pairs


def typed() -> set[str]:
    """Names of the parameters that the user has given, not left at their defaults."""
    context = click.get_current_context()
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return {name for name, source in sources.items() if source is ParameterSource.COMMANDLINE}


def folds_of(names: str | None) -> list[str] | None:
    """'9,10' -> ['9', '10']."""
    return None if names is None else [name.strip() for name in names.split(",") if name.strip()]


def with_options_of(
    rows: Iterable[Configurable],
    command: Callable[..., None],
    *,
    panel: str,
    own_panels: Mapping[str, str] | None = None,
) -> Callable[..., None]:
    """The command with every option of the rows, in the signature that typer reads.

    The command gets those that were given as further keywords. Their help says which rows have
    them; `--help` lists them below the title `panel`, or below that of the first row in
    `own_panels`.
    """
    titles = own_panels or {}
    takers: dict[str, list[tuple[str, Option]]] = {}
    for row in rows:
        for option in row.options:
            takers.setdefault(option.name, []).append((row.name, option))

    def run(**given: Any) -> None:
        command(**{k: v for k, v in given.items() if k not in takers or v is not None})

    signature = inspect.signature(command, eval_str=True)
    common = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    own = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
        for name, kind in (
            (name, _annotation(by, titles.get(by[0][0], panel), panel_of_row=by[0][0] in titles))
            for name, by in takers.items()
        )
    ]
    return presented(run, command, [*common, *own])


def presented(
    run: Callable[..., None], command: Callable[..., None], parameters: list[inspect.Parameter]
) -> Callable[..., None]:
    """`run` as typer sees it: with the command's name and help, and these parameters."""
    signature = inspect.Signature(parameters)
    run.__signature__ = signature  # type: ignore[attr-defined]
    run.__name__, run.__doc__ = command.__name__, command.__doc__
    return run


def _annotation(
    takers: Sequence[tuple[str, Option]], panel: str, *, panel_of_row: bool = False
) -> Any:
    option = takers[0][1]
    names: dict[tuple[str, Any], list[str]] = {}
    for row, own in takers:
        names.setdefault((own.help.rstrip("."), own.default), []).append(row)
    text = " ".join(
        f"{words} ({', '.join(rows)}{'' if default is None else f'; default {default}'})."
        for (words, default), rows in names.items()
    )
    if panel_of_row and len(takers) == 1 and option.default is None:
        text = f"{option.help}."  # the panel's title says whose it is
    kind: Any = str if option.value_type in (tuple, dict) else option.value_type
    flag = f"-{option.name}" if len(option.name) == 1 else f"--{option.name.replace('_', '-')}"
    choices = {choice: None for _, own in takers for choice in own.choices}
    every = all(own.choices for _, own in takers)  # a row's own ones are checked when it is opened
    choice = click.Choice(list(choices)) if every else None
    return Annotated[
        kind | None, typer.Option(flag, help=text, click_type=choice, rich_help_panel=panel)
    ]
