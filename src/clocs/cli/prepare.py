"""The command `clocs prepare`, with the options that the datasets declare."""

from __future__ import annotations

import inspect
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

import clocs
from clocs.cli import progress
from clocs.cli.console import err, out, print_json
from clocs.cli.options import Json
from clocs.datasets.base import DatasetOption
from clocs.datasets.table import DATASETS

EXAMPLE = "Example: clocs prepare chapman ~/Downloads/ECGDataDenoised.zip --out chapman"

_NAMES = ", ".join(DATASETS)
_WITHOUT_SOURCE = ", ".join(row.name for row in DATASETS.values() if not row.has_source)


def prepare(
    name: Annotated[str, typer.Argument(help=f"Name of the dataset: {_NAMES}.")],
    source: Annotated[
        Path | None,
        typer.Argument(help=f"Folder, or zip as downloaded; none for {_WITHOUT_SOURCE}."),
    ] = None,
    store: Annotated[Path, typer.Option("--out", help="Folder of the store.")] = Path("store"),
    workers: Annotated[
        int | None,
        typer.Option(help="Number of reading processes (default: one per core).", min=1),
    ] = None,
    as_json: Json = False,
    **options: Any,
) -> None:
    """Read a dataset's published files into a store; after an interruption, run it again to resume.

    Recordings that cannot be used go to a quarantine list with their reason.
    """
    given = {
        key: str(value) if isinstance(value, StrEnum) else value
        for key, value in options.items()
        if value is not None
    }
    with progress.bar(err, f"Preparing {name}", "recordings") as tick:
        made = clocs.prepare(name, source, out=store, workers=workers, progress=tick, **given)
    from clocs.cli.info import store_facts
    from clocs.cli.tables.stores import store_tables

    facts = store_facts(made)
    if as_json:
        print_json(facts)
        return
    out.print(store_tables(facts))
    out.print(f"\nThe store is {store}. Next: clocs pretrain {store} --method cmsc --out runs/cmsc")


def _parameter(option: DatasetOption, datasets: list[str]) -> inspect.Parameter:
    kind: Any = type(option.default)
    if option.choices:
        enum: Any = StrEnum
        kind = enum(option.name, {choice: choice for choice in option.choices})
    text = f"{option.help} ({', '.join(datasets)}; default {option.default})."
    annotation = Annotated[kind | None, typer.Option(help=text, min=option.minimum)]
    return inspect.Parameter(
        option.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation
    )


def _with_dataset_options() -> None:
    """Give the command one option for each option of a dataset, for Typer to read."""
    datasets: dict[str, list[str]] = {}
    first: dict[str, DatasetOption] = {}
    for row in DATASETS.values():
        for option in row.options:
            datasets.setdefault(option.name, []).append(row.name)
            first.setdefault(option.name, option)
    signature = inspect.signature(prepare, eval_str=True)
    own = [one for one in signature.parameters.values() if one.kind is not one.VAR_KEYWORD]
    more = [_parameter(option, datasets[name]) for name, option in first.items()]
    prepare.__signature__ = signature.replace(parameters=[*own, *more])  # type: ignore[attr-defined]
    prepare.__annotations__ = {}  # Typer would prefer these to the signature's


_with_dataset_options()
