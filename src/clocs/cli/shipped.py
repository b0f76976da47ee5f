"""The command `clocs models`: which models the package holds, and their cards."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from clocs.cli.console import out, print_json
from clocs.cli.options import Json

EXAMPLE = "Example: clocs models cmsc-chapman"


def models(
    name: Annotated[
        Path | None,
        typer.Argument(help="Name or file of a model; all shipped ones by default."),
    ] = None,
    as_json: Json = False,
) -> None:
    """List the models inside the package, or print the card of one in Markdown."""
    if name is not None:
        from clocs.models.classifier import load
        from clocs.models.model_card import model_card
        from clocs.training.card import weights_path

        text = model_card(weights_path(name).stem, load(name))
        if as_json:
            print_json({"name": weights_path(name).stem, "card": text})
        else:
            out.print(text, markup=False, highlight=False, soft_wrap=True, end="")
        return
    from clocs.cli.tables.models import models_table
    from clocs.models.model_card import shipped_models

    listed = shipped_models()
    if as_json:
        print_json(listed)
        return
    out.print(models_table(listed))
    out.print("More about one: clocs models NAME", markup=False)
