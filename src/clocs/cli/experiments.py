"""The commands `clocs reproduce`, `clocs report` and `clocs frames`: parse, call, print."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from clocs.cli.console import err, print_json
from clocs.cli.console import out as console
from clocs.cli.options import Device, Json, names_of
from clocs.cli.progress import bar
from clocs.experiments.grid import GRIDS

UNFINISHED = 3  # exit code: no error, but not everything is done


def register(app: typer.Typer) -> None:
    """Add the commands."""
    example = "Example: clocs reproduce table-1 table-2 --stores stores --out runs --seconds 540"
    app.command(epilog=example)(reproduce)
    app.command(epilog="Example: clocs report runs")(report)
    app.command(epilog="Example: clocs frames stores/chapman --out saved")(frames)


def reproduce(
    names: Annotated[
        list[str],
        typer.Argument(help=", ".join(GRIDS) + ", or all."),
    ],
    out: Annotated[Path, typer.Option(help="Folder for the runs.")],
    stores: Annotated[
        Path | None, typer.Option(help="Folder of stores or saved frames, named by dataset.")
    ] = None,
    dataset: Annotated[
        str | None, typer.Option(help="synthetic: small simulated datasets instead of --stores.")
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(help="Number of seeds, from 0; five by default.", min=1)
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(help="Filter: cmsc, downstream=cardiology, fraction=0.25,0.5 …; repeatable."),
    ] = None,
    known: Annotated[
        list[Path] | None,
        typer.Option(
            "--with",
            help="Folder of runs or a report, whose results are not computed again; repeatable.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List what would run and how long it should take.")
    ] = False,
    seconds: Annotated[
        float | None,
        typer.Option(help="Time limit in seconds; the same command resumes.", min=1),
    ] = None,
    parallel: Annotated[
        int,
        typer.Option(
            help="Worker threads; 3 or 4 keep a large GPU busy. With --ray: tasks on one GPU.",
            min=1,
        ),
    ] = 1,
    ray: Annotated[
        str | None,
        typer.Option(help="Compute on a Ray cluster: auto, or its HOST:PORT."),
    ] = None,
    retry: Annotated[bool, typer.Option("--retry", help="Run again what failed.")] = False,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Run the paper's tables and figures; finished runs are never repeated.

    Exit code 0: everything is done; 1: an error; 3: some runs are left or failed.
    """
    from clocs.experiments.estimate import estimate
    from clocs.experiments.reproduce import reproduce as run
    from clocs.training.ranks import pick_device

    if dry_run:
        found = estimate(
            names,
            out=out,
            stores=stores,
            dataset=dataset,
            seeds=seeds,
            only=only or (),
            known=known or (),
            device=device or pick_device(None).type,  # it need not be available
        )
        if as_json:
            print_json(found.json())
        else:
            console.print("\n".join(found.lines()), markup=False)
        return
    with bar(err, "Reproducing", "runs") as advance:

        def show(message: str, done: int, total: int) -> None:
            err.print(f"[{done}/{total}] {message}", markup=False)
            advance(done, total)

        status = run(
            *names,
            out=out,
            stores=stores,
            dataset=dataset,
            seeds=seeds,
            only=only or (),
            known=known or (),
            device=device,
            seconds=seconds,
            parallel=parallel,
            retry=retry,
            ray=ray,
            on_progress=show,
        )
    if as_json:
        print_json(asdict(status))
    else:
        console.print(f"{status}. Next: clocs report {out}", markup=False)
    if not status.complete:
        raise typer.Exit(UNFINISHED)


def report(
    runs: Annotated[Path, typer.Argument(help="Folder made by `clocs reproduce`.")],
    out: Annotated[
        Path | None, typer.Option(help="Folder for the report; RUNS/report by default.")
    ] = None,
    earlier: Annotated[
        list[Path] | None,
        typer.Option(
            "--with", help="Another folder of runs or of a report to include; repeatable."
        ),
    ] = None,
    fill: Annotated[
        list[Path] | None,
        typer.Option(
            help="Markdown file whose parts between <!-- clocs:NAME --> and <!-- /clocs --> are "
            "brought up to date; repeatable."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write one HTML page, Markdown tables and JSON: our results beside the paper's."""
    from clocs.experiments.claims import sentences
    from clocs.experiments.report import COVERAGE
    from clocs.experiments.report import report as write

    page = write(runs, out, earlier=earlier or (), fill=fill or ())
    counts = json.loads((page.parent / COVERAGE).read_text(encoding="utf-8"))
    if as_json:
        files = sorted(str(path) for path in page.parent.iterdir())
        print_json({"page": str(page), "files": files, "coverage": counts})
    else:
        console.print("\n".join(sentences(counts)), markup=False)
        console.print(f"The report is {page}.", markup=False)


def frames(
    store: Annotated[Path, typer.Argument(help="Store made by `clocs prepare`.")],
    out: Annotated[Path, typer.Option(help="Folder for NAME-frame.safetensors …")],
    seconds: Annotated[
        float | None, typer.Option(help="Duration of a frame; the dataset's own by default.")
    ] = None,
    rate: Annotated[
        float | None, typer.Option(help="Rate of a frame in Hz; the dataset's own by default.")
    ] = None,
    leads: Annotated[
        str | None, typer.Option(help="Leads to save, such as I,II; all by default.")
    ] = None,
    step: Annotated[
        float | None,
        typer.Option(help="Size of a step of the signals, in mV: coarser ones make smaller files."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Save a store's frames for a machine without polars; `reproduce` accepts either."""
    from clocs.experiments.data import save_frames

    with bar(err, "Cutting frames", "files") as progress:
        written = save_frames(
            store,
            out,
            seconds=seconds,
            rate=rate,
            leads=names_of(leads),
            step=step,
            progress=progress,
        )
    if as_json:
        print_json({"files": [str(path) for path in written]})
    else:
        for path in written:
            console.print(f"Wrote {path}.", markup=False)
