"""The command `clocs export`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from clocs.cli.console import out as terminal
from clocs.cli.console import print_json
from clocs.cli.options import Json

EXAMPLE = "Example: clocs export runs/chapman-cmsc --to onnx --out encoder.onnx --check chapman"


def export(
    model: Annotated[
        str, typer.Argument(help="Model to export: a checkpoint, a classifier or a shipped name.")
    ],
    to: Annotated[
        str, typer.Option(help="onnx, torch (for torch.export.load) or hub (Hugging Face).")
    ],
    out: Annotated[Path, typer.Option(help="File to write, .onnx or .pt2; for hub, a folder.")],
    check: Annotated[
        Path | None,
        typer.Option(help="Store: compare what was written with this package on its recordings."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write a model for other programs: raw mV in, embeddings or calibrated probabilities out."""
    import clocs

    made = clocs.export(model, to=to, out=out, check=check)
    found = made.difference
    if as_json:
        print_json({"path": str(made.path), "difference": None if found is None else asdict(found)})
        return
    terminal.print(f"Written: {made.path}", markup=False, highlight=False)
    if found is not None:
        terminal.print(
            f"Greatest difference on {found.recordings} recordings: {found.to_module:.1e} to the "
            f"module in torch, {found.to_package:.1e} to this package's own output",
            highlight=False,
        )
