"""The command line: parse, call, print. Everything it does can be done from Python."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, TextIO

import typer

import clocs
from clocs._version import __version__
from clocs.cli import evaluate, experiments, explore, patients, show, terminal
from clocs.cli.options import (
    BatchSize,
    Device,
    Epochs,
    Json,
    Leads,
    LearningRate,
    Patience,
    SplitSeed,
    err,
    names_of,
    out,
    print_json,
    settings_of,
)
from clocs.errors import ClocsError, ClocsWarning

app = typer.Typer(
    name="clocs",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Learning from unlabelled ECGs: contrastive learning across time, leads and patients.",
)
app.add_typer(show.app)
app.add_typer(patients.app)
app.command(epilog=evaluate.EXAMPLE)(evaluate.evaluate)
experiments.register(app)
app.command(epilog="Example: clocs explore --checkpoint runs/chapman-cmsc --store stores/chapman")(
    explore.explore
)


class Reference(StrEnum):
    """Versions of the labels of PhysioNet 2017."""

    original = "original"
    v3 = "v3"


class PrecisionName(StrEnum):
    """Of activations while training."""

    float32 = "float32"
    bfloat16 = "bfloat16"


@app.command(epilog="Example: clocs prepare chapman ~/Downloads/ECGDataDenoised.zip --out chapman")
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
    with terminal.bar(err, f"Preparing {name}", "recordings") as progress:
        made = clocs.prepare(name, source, out=store, workers=workers, progress=progress, **given)
    from clocs.cli.info import format_info, store_info

    facts = store_info(made)
    if as_json:
        print_json(facts)
        return
    out.print(format_info(facts))
    out.print(f"\nThe store is {store}. Next: clocs pretrain {store} --method cmsc --out runs/cmsc")


@app.command(epilog="Example: clocs info chapman --json")
def info(
    path: Annotated[Path, typer.Argument(help="A store, a checkpoint or an index.")],
    leads: Leads = None,
    split_seed: SplitSeed = 0,
    verify: Annotated[bool, typer.Option("--verify", help="Read all and compare hashes.")] = False,
    as_json: Json = False,
) -> None:
    """Say what is in a store, a checkpoint or an index."""
    from clocs.patients.search_folder import is_archive

    if is_archive(path):
        patients.index_info(path, verify, as_json)
        return
    if path.suffix == ".safetensors" or any(path.glob("seed-*.safetensors")):
        from clocs.training.checkpoint import load_checkpoints

        cards = [terminal.card_facts(c) for c in load_checkpoints(path)]
        if as_json:
            print_json(cards if path.is_dir() else cards[0])
        else:
            for card in cards:
                out.print(terminal.card_table(card))
        return
    from clocs.cli.info import format_info, store_info
    from clocs.store.store import open_store

    store = open_store(path)
    if verify:
        with terminal.bar(err, "Verifying", "recordings") as progress:
            store.verify(progress)
    facts = store_info(store, names_of(leads), split_seed) | ({"verified": True} if verify else {})
    if as_json:
        print_json(facts)
    else:
        out.print(format_info(facts))
        if verify:
            out.print("Verified: every recording is as it was prepared.")


@app.command(
    epilog="Example: clocs pretrain chapman --method cmsc --seeds 5 --out runs/chapman-cmsc"
)
def pretrain(
    stores: Annotated[
        list[Path],
        typer.Argument(help="Made by `clocs prepare`; several are learned from at once."),
    ],
    folder: Annotated[Path, typer.Option("--out", help="Folder for the checkpoints.")],
    method: Annotated[
        str,
        typer.Option(
            help="cmsc, cmlc, cmsmlc, simclr, byol, mtssl, supervised, random or random-bn."
        ),
    ] = "cmsc",
    seeds: Annotated[int, typer.Option(help="Train seeds 0…N−1, all at once.", min=1)] = 1,
    encoder: Annotated[str, typer.Option(help="cnn (the paper's) or resnet.")] = "cnn",
    embedding_dim: Annotated[int, typer.Option(help="E.", min=1)] = 128,
    leads: Leads = None,
    temperature: Annotated[float, typer.Option(help="τ of the loss.")] = 0.1,
    segments: Annotated[
        int | None, typer.Option(help="Consecutive segments that cmsc and cmsmlc compare (2).")
    ] = None,
    perturb: Annotated[
        list[str] | None,
        typer.Option(
            help="Chain of perturbations of the views: gaussian>sa_t. Given again, all are trained "
            "at once, each into a folder of its own."
        ),
    ] = None,
    tau_d: Annotated[
        float, typer.Option("--tau-d", help="How much of byol's target network stays a step.")
    ] = 0.9,
    tasks: Annotated[
        str | None, typer.Option(help="Of mtssl: noise,scaling,negation,inversion,…")
    ] = None,
    positives_within: Annotated[
        float | None,
        typer.Option(
            help="Days: recordings of one patient further apart are no positive pair.", min=0
        ),
    ] = None,
    instances_per_patient: Annotated[
        int | None, typer.Option(help="The most that a patient gives to an epoch.", min=1)
    ] = None,
    init: Annotated[
        Path | None, typer.Option(help="Go on from this checkpoint, or a folder with one a seed.")
    ] = None,
    precision: Annotated[
        PrecisionName, typer.Option(help="Of activations; weights stay float32.")
    ] = PrecisionName.float32,
    epochs: Epochs = 400,
    patience: Patience = 15,
    batch_size: BatchSize = None,
    lr: LearningRate = 1e-4,
    split_seed: SplitSeed = 0,
    device: Device = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with an interrupted run.")
    ] = False,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Write event files, too: tensorboard --logdir …")
    ] = False,
    save_every: Annotated[
        float, typer.Option(help="Seconds between two savings of what --resume needs.", min=0)
    ] = 5.0,
    as_json: Json = False,
) -> None:
    """Learn encoders from unlabelled ECGs, one a seed.

    Writes seed-0.safetensors, seed-0.json, … and log.jsonl with the metrics of every epoch.
    Interrupted, even killed, it ends with the same weights when resumed on the CPU.
    """
    from clocs.store.store import open_store

    opened = [open_store(store) for store in stores]
    settings = settings_of(epochs, patience, batch_size or opened[0].manifest.batch_size, lr)
    with terminal.training(err, f"Pre-training {method}", epochs) as watch:
        checkpoints = clocs.pretrain(
            opened,
            method=method,
            out=folder,
            seeds=seeds,
            leads=names_of(leads),
            encoder=encoder,
            embedding_dim=embedding_dim,
            temperature=temperature,
            segments=segments,
            perturb=perturb[0] if perturb and len(perturb) == 1 else perturb,
            tau_d=tau_d,
            positives_within=positives_within,
            instances_per_patient=instances_per_patient,
            init=init,
            precision=precision.value,
            tasks=[task.strip() for task in tasks.split(",")] if tasks else None,
            settings=settings,
            split_seed=split_seed,
            device=device,
            resume=resume,
            tensorboard=tensorboard,
            save_every=save_every,
            on_step=watch.step,
            on_epoch=watch.epoch,
        )
    cards = [terminal.card_facts(c) for c in checkpoints]
    if as_json:
        print_json(cards)
        return
    out.print(terminal.cards_summary(cards))
    out.print(f"\nThe checkpoints are in {folder}. Next: clocs evaluate {folder} {stores[0]}")


@app.command(epilog="Example: clocs demo --out demo")
def demo(
    folder: Annotated[Path, typer.Option("--out", help="Folder for all it makes.")] = Path("demo"),
    patients: Annotated[int, typer.Option(help="Simulated patients.", min=30)] = 300,
    as_json: Json = False,
) -> None:
    """Tell the whole story on simulated ECGs: prepare, learn, evaluate, show."""
    from clocs.experiments.demo import run_demo

    result = run_demo(folder, patients=patients, console=err)
    if as_json:
        print_json(result.json())
    else:
        out.print(result.table())
        out.print(result.closing_words())


@app.callback(invoke_without_command=True)
def _version(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        out.print(__version__)
        raise typer.Exit


@contextmanager
def _one_sentence() -> Iterator[None]:
    """Errors in words: one sentence and exit code 1, without a traceback."""
    try:
        yield
    except ClocsError as error:
        err.print(f"[red]clocs:[/red] {terminal.escape(str(error))}")
        sys.exit(1)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        err.print(f"[red]clocs:[/red] {terminal.escape(f'{where}{error.strerror or error}')}")
        sys.exit(1)
    except KeyboardInterrupt:
        err.print(
            "clocs: interrupted; the same command (pretrain: with --resume) goes on from there"
        )
        sys.exit(130)


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Our own in one sentence, others with where they come from."""
    ours = issubclass(category, ClocsWarning)
    words = str(message) if ours else f"{filename}:{lineno}: {category.__name__}: {message}"
    err.print(f"[yellow]clocs:[/yellow] {terminal.escape(words)}")


def main() -> None:
    """Run the command line."""
    code = 0
    warnings.showwarning = _show_warning
    try:
        with _one_sentence():
            app()
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # all files are closed: taking modules apart one by one would take 0.1 s more
