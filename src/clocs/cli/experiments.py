"""The commands `clocs reproduce`, `clocs report` and `clocs frames`: parse, call, print."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from clocs.cli.options import Device, Json, err, print_json
from clocs.cli.options import out as console
from clocs.cli.progress import bar
from clocs.experiments import api
from clocs.training.device import pick_device

UNFINISHED = 3  # exit code: nothing went wrong, but not all is done


def register(app: typer.Typer) -> None:
    """Add the commands."""
    example = "Example: clocs reproduce table-1 table-2 --stores stores --out runs --seconds 540"
    app.command(epilog=example)(reproduce)
    app.command(epilog="Example: clocs report runs")(report)
    app.command(epilog="Example: clocs frames stores/chapman --out saved")(frames)


def reproduce(
    names: Annotated[
        list[str],
        typer.Argument(
            help="table-1, table-2, linear-converged, more-with-less, patient-distances, "
            "perturbations, byol-decay, embedding-dim, labelled-fraction, appendix-linear, "
            "appendix-transfer, or all."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder of the runs.")],
    stores: Annotated[
        Path | None, typer.Option(help="Folder of stores or saved frames, named by dataset.")
    ] = None,
    dataset: Annotated[
        str | None, typer.Option(help="synthetic: small simulated datasets instead of --stores.")
    ] = None,
    seeds: Annotated[int | None, typer.Option(help="Seeds 0…N−1; five.", min=1)] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(help="cmsc, downstream=cardiology, fraction=0.25,0.5 …; may be given again."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List what would run and how long it should take.")
    ] = False,
    seconds: Annotated[
        float | None, typer.Option(help="Stop after these; the same command goes on.", min=1)
    ] = None,
    parallel: Annotated[
        int, typer.Option(help="Threads at work on the grid; 3 or 4 fill a large GPU.", min=1)
    ] = 1,
    retry: Annotated[bool, typer.Option("--retry", help="Try again what failed.")] = False,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Run the paper's tables and figures; what is done is never done twice.

    Exit code 0: all done; 1: an error; 3: something is left or failed.
    """
    from clocs.experiments import reproduce as room
    from clocs.experiments.runner import Progress
    from clocs.experiments.summary import outcome_words, price_lines

    wishes = only or []
    if dry_run:
        found = room.price(
            names,
            out=out,
            stores=stores,
            dataset=dataset,
            seeds=seeds,
            wishes=wishes,
            device=device or pick_device(None),  # it need not be at hand
        )
        if as_json:
            print_json(found.json())
        else:
            console.print("\n".join(price_lines(found)), markup=False)
        return
    with bar(err, "Reproducing", "runs") as tick:

        def tell(progress: Progress) -> None:
            err.print(f"[{progress.done}/{progress.total}] {progress.words}", markup=False)
            tick(progress.done, progress.total)

        outcome = api.reproduce(
            *names,
            out=out,
            stores=stores,
            dataset=dataset,
            seeds=seeds,
            only=wishes,
            device=device,
            seconds=seconds,
            parallel=parallel,
            retry=retry,
            on_progress=tell,
        )
    if as_json:
        print_json(asdict(outcome))
    else:
        console.print(f"{outcome_words(outcome)}. Next: clocs report {out}", markup=False)
    if not outcome.complete:
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
    as_json: Json = False,
) -> None:
    """Write one HTML page, Markdown tables and JSON: ours beside the paper's."""
    page = api.report(runs, out, earlier=earlier or ())
    if as_json:
        files = sorted(str(path) for path in page.parent.iterdir())
        print_json({"page": str(page), "files": files})
    else:
        console.print(f"The report is {page}.", markup=False)


def frames(
    store: Annotated[Path, typer.Argument(help="Made by `clocs prepare`.")],
    out: Annotated[Path, typer.Option(help="Folder for NAME-frame.safetensors …")],
    as_json: Json = False,
) -> None:
    """Save a store's frames for a machine without zarr and polars; `reproduce` takes either."""
    from clocs.experiments.data import save_frames

    with bar(err, "Cutting", "files") as progress:
        written = save_frames(store, out, progress=progress)
    if as_json:
        print_json({"files": [str(path) for path in written]})
    else:
        for path in written:
            console.print(f"Wrote {path}.", markup=False)
