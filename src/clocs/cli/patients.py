"""The commands about patients: embed, distances, index, similar, retrieval. Parse, call, print."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from clocs.cli.choices import IndexedName, KindName, LevelName, MetricName, PartName, SexName
from clocs.cli.options import Device, Json, SplitSeed, err, names_of, print_json
from clocs.cli.options import out as console
from clocs.cli.progress import bar
from clocs.errors import SettingError

app = typer.Typer(rich_markup_mode="rich")

CheckpointPath = Annotated[
    Path, typer.Argument(help="A checkpoint's file, or a folder (then its first seed).")
]
Leads = Annotated[
    str | None, typer.Option(help="Leads by name, such as II,V2; the checkpoint's by default.")
]
Rate = Annotated[float, typer.Option(help="Of CSV files, in Hz.", min=1)]
Split = Annotated[PartName, typer.Option(help="Which patients.")]


@app.command(epilog="Example: clocs embed runs/chapman-cmsc chapman --level patient")
def embed(
    checkpoint: CheckpointPath,
    sources: Annotated[
        list[Path],
        typer.Argument(help="Stores; or files (.hea .dat .mat .csv .ecg), folders, zips."),
    ],
    out: Annotated[Path, typer.Option(help="The parquet file to write.")] = Path(
        "embeddings.parquet"
    ),
    level: Annotated[LevelName, typer.Option(help="What a vector stands for.")] = LevelName.patient,
    leads: Leads = None,
    split: Annotated[PartName, typer.Option(help="Of stores, this part alone.")] = PartName.all,
    split_seed: SplitSeed = 0,
    frame: Annotated[
        float | None,
        typer.Option(
            help="Seconds of a frame; a store's own, of files the checkpoint's, by default."
        ),
    ] = None,
    rate: Rate = 500.0,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Turn recordings into vectors, with ids, labels, age and sex.

    Per frame (and lead), per recording or per patient: the mean of unit vectors, made a unit vector
    again. Files that cannot be embedded are listed, and the exit code is then 1.
    """
    from clocs.patients import api
    from clocs.patients.embeddings import expect_replaceable
    from clocs.store.manifest import MANIFEST

    expect_replaceable(out)
    with bar(err, "Embedding", "recordings") as progress:
        made = api.embed(
            checkpoint,
            *sources,
            level=level.value,
            leads=names_of(leads),
            split=None if split is PartName.all else split.value,
            split_seed=split_seed,
            frame=frame,
            rate=rate,
            device=device,
            progress=progress,
        )
    files = any(not (source / MANIFEST).is_file() for source in sources)
    if len(made):
        made.save(out)
    patients = made.rows.select("dataset", "patient").n_unique()
    facts = {
        "file": str(out) if len(made) else None,
        "level": made.level,
        "vectors": len(made),
        "dim": made.dim,
        "patients": patients,
        "encoder": made.encoder,
        "dead_views": made.dead_views,
        "dead": [list(one) for one in made.dead],
        "problems": [list(one) for one in made.problems],
    }
    if as_json:
        print_json(facts)
    else:
        console.print(
            f"{_counted(len(made), 'vector')} of {made.dim} dimensions, one a {made.level}, of "
            f"{_counted(patients, 'patient')}.",
        )
        _say_dead(made.dead_views, made.dead)
        if len(made):
            console.print(f"They are in {out}.", markup=False)
    _say_problems(made.problems)
    if not len(made) and not made.problems and not made.dead:
        raise SettingError(
            f"nobody is in the part {split.value} of the store; give another --split"
        )
    if not len(made) or (files and made.problems):
        raise typer.Exit(1)


@app.command(epilog="Example: clocs distances runs/chapman-cmsc physionet2020 --plot distances.png")
def distances(
    checkpoint: CheckpointPath,
    store: Annotated[Path, typer.Argument(help="Made by `clocs prepare`.")],
    metric: Annotated[
        MetricName, typer.Option(help="Of vectors as they are, as in the paper; or by direction.")
    ] = MetricName.euclidean,
    split: Split = PartName.test,
    leads: Leads = None,
    split_seed: SplitSeed = 0,
    plot: Annotated[Path | None, typer.Option(help="Draw the distributions to this PNG.")] = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Compare distances between frames of one patient and of different patients (figure 6)."""
    from clocs.patients import api

    if plot is not None and plot.suffix.lower() != ".png":
        raise SettingError(f"--plot is {plot}; give a name that ends in .png")
    if plot is not None and (plot.is_dir() or not plot.parent.is_dir()):
        raise SettingError(f"--plot is {plot}; give a name in a folder that exists")
    with bar(err, "Embedding", "recordings") as progress:
        found = api.patient_distances(
            checkpoint,
            store,
            metric=metric.value,
            split=split.value,
            leads=names_of(leads),
            split_seed=split_seed,
            device=device,
            progress=progress,
        )
    if plot is not None:
        from clocs.figures import plots

        title = f"{found.method} on {found.store}, {found.split} patients"
        name = "Euclidean" if metric is MetricName.euclidean else "cosine"
        pair = found.distances
        figure = plots.patient_distances(pair.intra, pair.inter, title=title, metric=name)
        plots.save(figure, plot)
    if as_json:
        print_json(found.json() | {"plot": None if plot is None else str(plot)})
        return
    console.print(found.table())
    if plot is not None:
        console.print(f"The figure is {plot}.", markup=False)


@app.command(epilog="Example: clocs index runs/chapman-cmsc chapman physionet2020 --out index")
def index(
    checkpoint: CheckpointPath,
    stores: Annotated[list[Path], typer.Argument(help="Made by `clocs prepare`.")],
    out: Annotated[Path, typer.Option(help="Folder of the index.")] = Path("index"),
    add: Annotated[bool, typer.Option("--add", help="To an index that is there.")] = False,
    replace: Annotated[
        bool, typer.Option("--replace", help="With --add: patients that are there already.")
    ] = False,
    kind: Annotated[
        KindName, typer.Option(help="How to search; auto goes by size, exact up to a million.")
    ] = KindName.auto,
    frame: Annotated[
        float | None,
        typer.Option(help="Seconds of a frame; the checkpoint's by default."),
    ] = None,
    leads: Leads = None,
    split_seed: SplitSeed = 0,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Build an index of patients and of recordings, or add to one without rebuilding it."""
    from clocs.patients import api

    with bar(err, "Embedding", "recordings") as progress:
        done = api.index(
            checkpoint,
            *stores,
            out=out,
            add=add,
            replace=replace,
            kind=kind.value,
            frame=frame,
            leads=names_of(leads),
            split_seed=split_seed,
            device=device,
            progress=progress,
        )
    if as_json:
        print_json(
            {
                "index": str(out),
                "added": done.added,
                "total": done.total,
                "kind": done.kind,
                "dead_views": done.dead_views,
                "dead": [list(one) for one in done.dead],
                "problems": [list(one) for one in done.problems],
            }
        )
        return
    for level, total in done.total.items():
        console.print(
            f"{_counted(done.added[level], level)} added; {total:,} in all, {done.kind[level]}."
        )
    _say_dead(done.dead_views, done.dead)
    _say_problems(done.problems)
    console.print(f"The index is {out}. Next: clocs similar {out} --patient ID", markup=False)


@app.command(epilog="Example: clocs similar index --patient physionet2020:A0003 -k 5")
def similar(
    folder: Annotated[Path, typer.Argument(metavar="INDEX", help="Made by `clocs index`.")],
    patient: Annotated[
        str | None, typer.Option(help="ID or dataset:ID of a patient or recording in the index.")
    ] = None,
    file: Annotated[
        Path | None, typer.Option(help="A recording (.hea .dat .mat .csv .ecg).")
    ] = None,
    k: Annotated[int, typer.Option("-k", help="How many.", min=1)] = 10,
    level: Annotated[IndexedName, typer.Option(help="Whom to find.")] = IndexedName.patient,
    label: Annotated[str | None, typer.Option(help="Only those with it.")] = None,
    min_age: Annotated[
        float | None, typer.Option(help="In years; unknown ages do not pass.")
    ] = None,
    max_age: Annotated[
        float | None, typer.Option(help="In years; unknown ages do not pass.")
    ] = None,
    sex: Annotated[
        SexName | None, typer.Option(help="Only of this sex; unknown does not pass.")
    ] = None,
    dataset: Annotated[str | None, typer.Option(help="Only of this one.")] = None,
    leads: Leads = None,
    rate: Rate = 500.0,
    as_json: Json = False,
) -> None:
    """Find the most similar patients or recordings; never the one who asks."""
    from clocs.patients import api
    from clocs.patients.filters import Where

    found = api.similar(
        folder,
        patient=patient,
        file=file,
        k=k,
        level=level.value,
        where=Where(
            label=label,
            min_age=min_age,
            max_age=max_age,
            sex=None if sex is None else sex.value,
            dataset=dataset,
        ),
        leads=names_of(leads),
        rate=rate,
    )
    columns = ["dataset", "patient", "recording", "labels", "age", "sex", "split"]
    columns = [name for name in columns if name != "recording" or level is IndexedName.recording]
    rows = found.select(*columns, "cosine", "euclidean")
    if as_json:
        query = patient if patient is not None else file
        print_json({"query": str(query), "level": level.value, "neighbours": rows.to_dicts()})
        return
    from clocs.cli.tables.patients import neighbours_table

    console.print(neighbours_table(rows.drop("split"), f"Nearest to {patient or file}"))
    if not rows.height:
        asked = any((label, min_age is not None, max_age is not None, sex, dataset))
        console.print("Nobody passes the conditions." if asked else "Nobody else is in the index.")


@app.command(epilog="Example: clocs retrieval runs/chapman-cmsc runs/chapman-random-bn chapman")
def retrieval(
    checkpoints: Annotated[
        list[Path], typer.Argument(metavar="CHECKPOINT... STORE", help="Encoders, then a store.")
    ],
    split: Split = PartName.test,
    leads: Leads = None,
    split_seed: SplitSeed = 0,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Score the search on patients never seen: is the nearest the same patient, same diagnosis?"""
    from clocs.patients import api

    if len(checkpoints) < 2:
        raise SettingError("give at least one checkpoint, and then a store")
    with bar(err, "Scoring", "encoders") as progress:
        scores = api.retrieval(
            checkpoints[:-1],
            checkpoints[-1],
            split=split.value,
            leads=names_of(leads),
            split_seed=split_seed,
            device=device,
            progress=progress,
        )
    if as_json:
        print_json([score.json() for score in scores])
        return
    from clocs.patients.retrieval_table import retrieval_table

    console.print(retrieval_table(scores))


def index_info(path: Path, verify: bool, as_json: bool) -> None:
    """What `clocs info` says of an index."""
    from clocs.cli.tables.patients import index_table
    from clocs.patients.search_folder import archive_facts

    facts = archive_facts(path, verify=verify)
    if as_json:
        print_json(facts)
        return
    console.print(index_table(facts))
    if verify:
        console.print("Verified: every vector and row is as it was indexed.")


def _counted(n: int, noun: str) -> str:
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"


def _say_dead(views: int, dead: tuple[tuple[str, str, str], ...]) -> None:
    if views:
        console.print(f"{views:,} frames × leads have a vector of zeros and count in no mean.")
    for dataset, patient, recording in dead:
        whose = f"{dataset}:{patient}" + (f", recording {recording}" if recording else "")
        console.print(f"  {whose} has only such vectors, and so none.", markup=False)


def _say_problems(problems: tuple[tuple[str, str], ...]) -> None:
    for name, words in problems:
        said = words if words.startswith(name) else f"{name}: {words}"
        err.print(f"[yellow]clocs:[/yellow] {escape(said)}")
