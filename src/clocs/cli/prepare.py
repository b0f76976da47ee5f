"""The command `clocs prepare`, with the options that the datasets declare."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

import clocs
from clocs.cli import progress
from clocs.cli.console import err, out, print_json
from clocs.cli.options import Json, with_options_of
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
    with progress.bar(err, f"Preparing {name}", "recordings") as tick:
        made = clocs.prepare(name, source, out=store, workers=workers, progress=tick, **options)
    from clocs.cli.info import store_facts
    from clocs.cli.tables.stores import store_tables

    facts = store_facts(made)
    if as_json:
        print_json(facts)
        return
    out.print(store_tables(facts))
    out.print(f"\nThe store is {store}. Next: clocs pretrain {store} --method cmsc --out runs/cmsc")


def command() -> Callable[..., None]:
    """`prepare` with the options of all datasets."""
    return with_options_of(DATASETS.values(), prepare, panel="Options of some datasets")
