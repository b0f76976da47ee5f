"""The command `clocs prepare`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

import clocs
from clocs.cli import progress
from clocs.cli.options import (
    Json,
    err,
    out,
    print_json,
)

EXAMPLE = "Example: clocs prepare chapman ~/Downloads/ECGDataDenoised.zip --out chapman"


class Reference(StrEnum):
    """Versions of the labels of PhysioNet 2017."""

    original = "original"
    v3 = "v3"


def prepare(
    name: Annotated[
        str, typer.Argument(help="chapman, physionet2020, physionet2017, cardiology or synthetic.")
    ],
    source: Annotated[
        Path | None, typer.Argument(help="A folder, or the zip as downloaded; none for synthetic.")
    ] = None,
    store: Annotated[Path, typer.Option("--out", help="Folder of the store.")] = Path("store"),
    workers: Annotated[int | None, typer.Option(help="One a core by default.", min=1)] = None,
    reference: Annotated[
        Reference | None, typer.Option(help="Labels of physionet2017: original, or v3.")
    ] = None,
    patients: Annotated[int | None, typer.Option(help="Of synthetic: how many.", min=1)] = None,
    recordings: Annotated[int | None, typer.Option(help="Of synthetic: a patient.", min=1)] = None,
    seed: Annotated[int | None, typer.Option(help="Of synthetic.", min=0)] = None,
    as_json: Json = False,
) -> None:
    """Read a dataset's published files into a store; interrupted, the same command goes on.

    Recordings that cannot be used go to a quarantine list with their reason; nothing is dropped in
    silence.
    """
    options = {
        "reference": str(reference) if reference else None,
        "patients": 1000 if name == "synthetic" and patients is None else patients,
        "recordings": recordings,
        "seed": seed,
    }
    given = {key: value for key, value in options.items() if value is not None}
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
