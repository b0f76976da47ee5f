"""The command `clocs demo`: the whole workflow on simulated ECGs, and its table."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from clocs.cli.console import err, out, print_json
from clocs.cli.options import Json
from clocs.cli.tables import columns, plus_minus

if TYPE_CHECKING:
    from clocs.experiments.demo import Demo

EXAMPLE = "Example: clocs demo --out demo"


def demo(
    folder: Annotated[Path, typer.Option("--out", help="Folder for everything it makes.")] = Path(
        "demo"
    ),
    patients: Annotated[int, typer.Option(help="Number of simulated patients.", min=30)] = 300,
    as_json: Json = False,
) -> None:
    """Run the whole workflow on simulated ECGs: prepare, pre-train, evaluate, show."""
    from clocs.experiments.demo import run_demo

    result = run_demo(folder, patients=patients, stage=_stage)
    if as_json:
        print_json(result.json())
        return
    out.print(demo_table(result))
    out.print(
        f"Done in {result.seconds:.0f} s. Open {result.page} in a browser.\n"
        f"Its patients on a map, with their ECGs:\n{_activation()}  {result.explore}\n"
        f"Next, with real recordings:\n"
        "  clocs prepare chapman ECGDataDenoised.zip --out stores/chapman\n"
        "  clocs pretrain stores/chapman --method cmsc --seeds 5 --out runs/chapman-cmsc\n"
        "  clocs evaluate runs/chapman-cmsc stores/chapman --fraction 0.5"
    )


def demo_table(result: Demo) -> Table:
    """One row per encoder: its AUC for each labeled fraction, and how separable patients are."""
    from clocs.experiments.demo import FRACTIONS, METHODS, SEEDS

    shares = [f"{fraction:.0%} of labels" for fraction in FRACTIONS]
    title = f"Test AUC, linear evaluation, {SEEDS} seeds, mean ± sd"
    table = columns(Table(title=title), ["encoder", *shares, "separability"], left=["encoder"])
    for method in METHODS:
        found = [result.evaluation(method, fraction) for fraction in FRACTIONS]
        own = result.distances.get(method)
        scores = [plus_minus(e.auc_mean, e.auc_std) for e in found]
        table.add_row(method, *scores, f"{own.separability:.2f}" if own else "")
    return table


def _activation() -> str:
    """The line to type first if the shell does not find `clocs`, as after `script/demo`."""
    script = Path(sys.prefix) / "bin" / "activate"
    if shutil.which("clocs") or not script.is_file():
        return ""
    here = Path.cwd()
    return f"  source {script.relative_to(here) if script.is_relative_to(here) else script}\n"


@contextmanager
def _stage(title: str) -> Iterator[None]:
    """Show a stage while it lasts, then how long it took."""
    began = time.perf_counter()
    if err.is_terminal:
        with err.status(title + " …"):
            yield
    else:
        yield
    err.print(f"{title}: {time.perf_counter() - began:.1f} s")
