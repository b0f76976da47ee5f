"""The command `clocs explain`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

import clocs
from clocs.cli.console import err, print_json
from clocs.cli.console import out as console
from clocs.cli.options import FIGURES, Json, pairs_of
from clocs.cli.patients import LeadNames, Rate, Unit
from clocs.errors import SettingError

EXAMPLE = "Example: clocs explain rhythm.safetensors ecg.hea --out explanation.png"
_SUFFIXES = (*FIGURES, ".json")


def _known(path: Path) -> Path:
    if path.suffix.lower() not in _SUFFIXES:
        raise SettingError(f"`out` is {path}; give a name that ends in {', '.join(_SUFFIXES)}")
    return path


def explain(
    model: Annotated[
        Path,
        typer.Argument(help="Classifier made by `clocs finetune`, or the name of a shipped one."),
    ],
    source: Annotated[Path, typer.Argument(help="File of any format, or a store.")],
    out: Annotated[Path, typer.Option(help="File to write: .png, .svg, .pdf or .json.")] = Path(
        "explanation.png"
    ),
    label: Annotated[
        str | None, typer.Option(help="Label to explain; the most probable one by default.")
    ] = None,
    start: Annotated[
        float | None,
        typer.Option(help="Second at which to begin; by default where most speaks for the label."),
    ] = None,
    seconds: Annotated[float, typer.Option(help="Seconds to explain.")] = 10.0,
    recording: Annotated[
        str | None,
        typer.Option(help="Which recording of a store, or of a file that holds several."),
    ] = None,
    rate: Rate = None,
    unit: Unit = None,
    lead_names: LeadNames = None,
    as_json: Json = False,
) -> None:
    """Show which part of an ECG drove a prediction, on ECG paper.

    What speaks for the label is orange, what speaks against it blue. Not a diagnosis.
    """
    from clocs.files import write_atomic

    _known(out)
    with err.status("Explaining …"):
        made = clocs.explain(
            model,
            source,
            label,
            start=start,
            seconds=seconds,
            recording=recording,
            rate=rate,
            unit=unit,
            lead_names=pairs_of(lead_names),
        )
    out.parent.mkdir(parents=True, exist_ok=True)
    if out.suffix.lower() == ".json":
        write_atomic(out, json.dumps(made.facts(), allow_nan=False).encode())
    else:
        from clocs.figures.canvas import save
        from clocs.figures.ecg import explanation_paper

        save(explanation_paper(made), out)
    facts = {k: v for k, v in made.facts().items() if k != "attribution"}
    if as_json:
        print_json({"file": str(out)} | facts)
        return
    abstains = f"The classifier abstains ({made.abstained}). " if made.abstained else ""
    console.print(
        f"{made.recording.id}: {made.label}, probability {made.probability:.2f}. {abstains}"
        f"The explanation is {out}.",
        markup=False,
    )
