"""The commands about patients: embed, distances, index, similar, retrieval. Parse, call, print."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

import clocs
from clocs.cli.console import err, print_json
from clocs.cli.console import out as console
from clocs.cli.messages import print_problems
from clocs.cli.options import (
    CohortFile,
    Device,
    FollowLinks,
    Json,
    SplitSeed,
    figure_name,
    names_of,
    pairs_of,
)
from clocs.cli.progress import bar
from clocs.errors import SettingError

if TYPE_CHECKING:
    from clocs.patients.build_index import Indexed
    from clocs.patients.embeddings import Embeddings

app = typer.Typer(rich_markup_mode="rich")

# As the library has them, without importing it for `--help`.
Level = Literal["frame", "recording", "patient"]
IndexedLevel = Literal["patient", "recording"]
Part = Literal["train", "validation", "test", "all"]
Metric = Literal["euclidean", "cosine"]
Kind = Literal["auto", "exact", "hnsw", "ivf", "ivfpq"]
Sex = Literal["female", "male"]

CheckpointPath = Annotated[
    Path,
    typer.Argument(
        help="A checkpoint's file, a folder (then its first seed), or a name (clocs models)."
    ),
]
Leads = Annotated[
    str | None,
    typer.Option(help="Leads by name, such as II,V2; those the encoder was trained on by default."),
]
Rate = Annotated[
    float | None,
    typer.Option(help="Sampling rate in Hz of files that do not give it.", min=1),
]
Unit = Annotated[str | None, typer.Option(help="Unit of files that do not give it: mV or µV.")]
LeadNames = Annotated[
    str | None,
    typer.Option(help="Leads of files by their unusual names, such as ECG1=II,ch2=V5."),
]
Split = Annotated[Part, typer.Option(help="Part of the store, by patient.")]


@app.command(epilog="Example: clocs embed runs/chapman-cmsc chapman --level patient")
def embed(
    checkpoint: CheckpointPath,
    sources: Annotated[
        list[Path],
        typer.Argument(help="Stores; or files of any format, folders and zips."),
    ],
    out: Annotated[Path, typer.Option(help="Parquet file to write.")] = Path("embeddings.parquet"),
    level: Annotated[Level, typer.Option(help="What a vector represents.")] = "patient",
    leads: Leads = None,
    split: Split = "all",
    split_seed: SplitSeed = 0,
    frame: Annotated[
        float | None,
        typer.Option(
            help="Seconds of a frame. By default the checkpoint's for files, a store's own for "
            "stores; of an encoder of many leads always the checkpoint's."
        ),
    ] = None,
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
    """Turn recordings into vectors, with IDs, labels, age and sex.

    One vector per frame and lead, per recording or per patient: the mean of unit vectors,
    normalized again. Files that cannot be embedded are listed, and the exit code is then 1.
    """
    from clocs.patients.embeddings import expect_replaceable
    from clocs.patients.reading import counted_notes
    from clocs.store.manifest import MANIFEST

    expect_replaceable(out)
    with bar(err, "Embedding", "recordings") as progress:
        made = clocs.embed(
            checkpoint,
            *sources,
            level=level,
            leads=names_of(leads),
            split=None if split == "all" else split,
            split_seed=split_seed,
            frame=frame,
            rate=rate,
            unit=unit,
            lead_names=pairs_of(lead_names),
            patients=patients,
            follow_links=follow_links,
            cohort=cohort,
            device=device,
            progress=progress,
        )
    files = any(not (source / MANIFEST).is_file() for source in sources)
    if len(made):
        made.save(out)
    count = made.rows.select("dataset", "patient").n_unique()
    notes = counted_notes(made.rows)
    if as_json:
        facts = ("level", "dim", "leads", "encoder", "zero_vectors", "only_zeros", "problems")
        print_json(
            {"file": str(out) if len(made) else None, "vectors": len(made), "patients": count}
            | {name: getattr(made, name) for name in facts}
            | {"notes": notes}
        )
    else:
        console.print(
            f"{_counted(len(made), 'vector')} of {made.dim} dimensions, one per {made.level}, from "
            f"{_counted(count, 'patient')}."
        )
        _print_facts(made, given=leads)
        for note, number in notes.items():
            console.print(f"Note ({number:,} recordings or patients): {note}.", markup=False)
        if len(made):
            console.print(f"Written to {out}.", markup=False)
    print_problems(made.problems)
    if not len(made) and not made.problems and not made.only_zeros:
        raise SettingError(f"the split {split} has no patient; give another `split`")
    if not len(made) or (files and made.problems):
        raise typer.Exit(1)


@app.command(epilog="Example: clocs distances runs/chapman-cmsc physionet2020 --plot distances.png")
def distances(
    checkpoint: CheckpointPath,
    store: Annotated[Path, typer.Argument(help="Store made by `clocs prepare`.")],
    metric: Annotated[
        Metric,
        typer.Option(help="Euclidean distance of vectors as they are, as in the paper; or cosine."),
    ] = "euclidean",
    split: Split = "test",
    leads: Leads = None,
    split_seed: SplitSeed = 0,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the distributions to this .png, .svg or .pdf.")
    ] = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Compare distances between frames of one patient and of different patients (figure 6)."""
    if plot is not None:
        figure_name(plot).parent.mkdir(parents=True, exist_ok=True)
    with bar(err, "Embedding", "recordings") as progress:
        found = clocs.patient_distances(
            checkpoint,
            store,
            metric=metric,
            split=split,
            leads=names_of(leads),
            split_seed=split_seed,
            device=device,
            progress=progress,
        )
    if plot is not None:
        from clocs.figures.canvas import save
        from clocs.figures.scores import distance_histograms

        title = f"{found.method} on {found.store}, {found.split} patients"
        name = "Euclidean" if metric == "euclidean" else "cosine"
        panels = {"": (found.distances.intra, found.distances.inter)}
        save(distance_histograms(panels, title=title, metric=name), plot)
    if as_json:
        print_json(found.json() | {"plot": None if plot is None else str(plot)})
        return
    from clocs.cli.tables.patients import distances_table

    console.print(distances_table(found))
    if plot is not None:
        console.print(f"Figure written to {plot}.", markup=False)


@app.command(epilog="Example: clocs index runs/chapman-cmsc chapman physionet2020 --out index")
def index(
    checkpoint: CheckpointPath,
    stores: Annotated[list[Path], typer.Argument(help="Stores made by `clocs prepare`.")],
    out: Annotated[Path, typer.Option(help="Folder of the index.")] = Path("index"),
    add: Annotated[bool, typer.Option("--add", help="Add to an existing index.")] = False,
    replace: Annotated[
        bool, typer.Option("--replace", help="With --add: replace patients in the index.")
    ] = False,
    kind: Annotated[
        Kind, typer.Option(help="How to search; auto is exact up to a million vectors.")
    ] = "auto",
    frame: Annotated[
        float | None, typer.Option(help="Seconds of a frame; the checkpoint's by default.")
    ] = None,
    leads: Leads = None,
    cohort: CohortFile = None,
    split_seed: SplitSeed = 0,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Build an index of patients and recordings, or add to one without rebuilding it."""
    with bar(err, "Embedding", "recordings") as progress:
        done = clocs.index(
            checkpoint,
            *stores,
            out=out,
            add=add,
            replace=replace,
            kind=kind,
            frame=frame,
            leads=names_of(leads),
            cohort=cohort,
            split_seed=split_seed,
            device=device,
            progress=progress,
        )
    if as_json:
        print_json({"index": str(out), **vars(done)})
        return
    for level, total in done.total.items():
        console.print(
            f"{_counted(done.added[level], level)} added; {total:,} in total, {done.kind[level]}."
        )
    _print_facts(done, given=leads)
    print_problems(done.problems)
    console.print(f"Index written to {out}. Next: clocs similar {out} --patient ID", markup=False)


@app.command(epilog="Example: clocs similar index --patient physionet2020:A0003 -k 5")
def similar(
    folder: Annotated[Path, typer.Argument(metavar="INDEX", help="Index made by `clocs index`.")],
    patient: Annotated[
        str | None, typer.Option(help="ID or dataset:ID of a patient or recording in the index.")
    ] = None,
    file: Annotated[Path | None, typer.Option(help="File of a recording, of any format.")] = None,
    k: Annotated[int, typer.Option("-k", help="Number of neighbours.", min=1)] = 10,
    level: Annotated[IndexedLevel, typer.Option(help="Return patients or recordings.")] = "patient",
    label: Annotated[str | None, typer.Option(help="Return only those with this label.")] = None,
    min_age: Annotated[
        float | None, typer.Option(help="Lowest age in years; unknown ages do not pass.")
    ] = None,
    max_age: Annotated[
        float | None, typer.Option(help="Highest age in years; unknown ages do not pass.")
    ] = None,
    sex: Annotated[
        Sex | None, typer.Option(help="Return only this sex; unknown does not pass.")
    ] = None,
    dataset: Annotated[str | None, typer.Option(help="Return only those of this dataset.")] = None,
    cohort: CohortFile = None,
    leads: Annotated[
        str | None, typer.Option(help="Leads of the file; must be those of the index.")
    ] = None,
    rate: Rate = None,
    unit: Unit = None,
    lead_names: LeadNames = None,
    as_json: Json = False,
) -> None:
    """Find the most similar patients or recordings; the query itself is never returned."""
    from clocs.patients.cohort import read_cohort
    from clocs.patients.filters import Where

    group = None if cohort is None else read_cohort(cohort)
    found = clocs.similar(
        folder,
        patient=patient,
        file=file,
        k=k,
        level=level,
        where=Where(label, min_age, max_age, sex, dataset, cohort=group),
        leads=names_of(leads),
        rate=rate,
        unit=unit,
        lead_names=pairs_of(lead_names),
    )
    ids = ["dataset", "patient", "recording"][: 3 if level == "recording" else 2]
    rows = found.select(*ids, "labels", "age", "sex", "split", "distance", "euclidean")
    if as_json:
        query = patient if patient is not None else file
        print_json({"query": str(query), "level": level, "neighbours": rows.to_dicts()})
        return
    from clocs.cli.tables.patients import neighbors_table
    from clocs.patients.index_folder import open_index

    console.print(neighbors_table(rows.drop("split"), f"Nearest to {patient or file}"))
    if not rows.height:
        console.print("No other patient of the index passes.")
    if file is not None and (used := open_index(folder, level).leads):
        console.print(f"Leads: {', '.join(used)}, those of the index.")


@app.command(epilog="Example: clocs retrieval runs/chapman-cmsc runs/chapman-random-bn chapman")
def retrieval(
    checkpoints: Annotated[
        list[Path], typer.Argument(metavar="CHECKPOINT... STORE", help="Encoders, then a store.")
    ],
    split: Split = "test",
    leads: Leads = None,
    frame: Annotated[
        float | None,
        typer.Option(
            help="Seconds of a frame; by default the store's, or that of an encoder of many leads."
        ),
    ] = None,
    split_seed: SplitSeed = 0,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Score the search on unseen patients: does it find the same patient, the same diagnosis?"""
    if len(checkpoints) < 2:
        raise SettingError("give at least one checkpoint, and then a store")
    with bar(err, "Scoring", "encoders") as progress:
        scores = clocs.retrieval(
            checkpoints[:-1],
            checkpoints[-1],
            split=split,
            leads=names_of(leads),
            frame=frame,
            split_seed=split_seed,
            device=device,
            progress=progress,
        )
    if as_json:
        print_json([score.json() for score in scores])
        return
    from clocs.cli.tables.patients import retrieval_table

    console.print(retrieval_table(scores))


def _counted(n: int, noun: str) -> str:
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"


def _print_facts(made: Embeddings | Indexed, *, given: str | None) -> None:
    """The leads, and what has zero vectors."""
    why = "" if given else ", those the encoder was trained on"
    console.print(f"Leads: {', '.join(made.leads or ())}{why}.", markup=False)
    if count := made.zero_vectors:
        console.print(f"{count:,} frames × leads have a zero vector and are left out of means.")
    for dataset, patient, recording in made.only_zeros:
        name = f"{dataset}:{patient}" + (f", recording {recording}" if recording else "")
        console.print(f"  {name} has zero vectors only and is left out.", markup=False)
