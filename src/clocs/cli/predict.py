"""The command `clocs predict`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import click
import typer

import clocs
from clocs.cli.console import err, print_json
from clocs.cli.console import out as console
from clocs.cli.messages import in_options
from clocs.cli.options import (
    CohortFile,
    Device,
    FollowLinks,
    Json,
    SplitSeed,
    names_of,
    pairs_of,
)
from clocs.cli.patients import LeadNames, Rate, Split, Unit
from clocs.cli.progress import bar
from clocs.errors import SettingError

EXAMPLE = "Example: clocs predict rhythm.safetensors recordings/ --out predictions.parquet"
SHOWN = 40  # rows in the terminal


def predict(
    model: Annotated[
        Path,
        typer.Argument(help="Classifier made by `clocs finetune`, or the name of a shipped one."),
    ],
    sources: Annotated[
        list[Path],
        typer.Argument(help="Stores; or files of any format, folders and zips."),
    ],
    out: Annotated[
        Path | None, typer.Option(help="Table to write, .parquet or .csv; shown without it.")
    ] = None,
    over_time: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            help="Predict each stretch of this many seconds of long recordings; 0: each frame.",
            min=0,
        ),
    ] = None,
    leads: Annotated[
        str | None,
        typer.Option(help="Leads by name, such as II,V2; those of the classifier by default."),
    ] = None,
    split: Split = "all",
    split_seed: SplitSeed = 0,
    rate: Rate = None,
    unit: Unit = None,
    lead_names: LeadNames = None,
    patients: Annotated[
        Path | None,
        typer.Option(
            metavar="TABLE",
            help="Patients of the files: a CSV or parquet table with the columns file and patient.",
        ),
    ] = None,
    follow_links: FollowLinks = False,
    cohort: CohortFile = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Predict the labels of recordings; abstain from noisy ones and from those unlike training.

    One row per recording, or with --over-time per stretch of it: a probability per label, what is
    predicted, or why it is not. Files that cannot be used are listed, and the exit code is then 1.
    """
    from clocs.models.classifier import as_classifier

    classifier = as_classifier(model)
    with bar(err, "Predicting", "recordings") as progress:
        made = clocs.predict(
            classifier,
            *sources,
            out=out,
            over_time=over_time,
            leads=names_of(leads),
            split=None if split == "all" else split,
            split_seed=split_seed,
            rate=rate,
            unit=unit,
            lead_names=pairs_of(lead_names),
            patients=patients,
            follow_links=follow_links,
            cohort=cohort,
            device=device,
            progress=progress,
        )
    if not made.height:
        raise SettingError(f"the split {split} has no recording; give another `split`")
    if as_json:
        about = {"file": None if out is None else str(out), "labels": classifier.card.meanings}
        print_json(about | {"rows": made.to_dicts()})
    else:
        from clocs.cli.tables.predictions import in_words, predictions_table, summary
        from clocs.patients.reading import counted_notes

        if out is None:
            own = click.get_current_context().command
            shown = predictions_table(made.head(SHOWN), lambda reason: in_options(reason, own))
            console.print(shown)
            if made.height > SHOWN:
                console.print(f"… and {made.height - SHOWN:,} more rows; see all with --out.")
        console.print(summary(made), markup=False)
        for note, count in counted_notes(made).items():
            console.print(f"Note ({count:,} of the recordings): {note}.", markup=False)
        if words := in_words(made, classifier.card.meanings):
            console.print(words, markup=False)
        if out is not None:
            console.print(f"Written to {out}.", markup=False)
    # a stretch without a signal is no fault of the file
    bad = made["problem"].is_not_null()
    usable = set(made.filter(~bad)["file"])
    if bad.all() or not set(made["file"].drop_nulls()) <= usable:
        raise typer.Exit(1)
