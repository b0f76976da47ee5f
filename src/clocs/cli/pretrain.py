"""The command `clocs pretrain`."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

import clocs
from clocs.cli import progress
from clocs.cli.console import err, out, print_json
from clocs.cli.options import (
    Device,
    Json,
    Split,
    SplitSeed,
    TestFolds,
    ValidationFolds,
    folds_of,
    names_of,
    with_options_of,
)
from clocs.cli.training_options import with_training_options
from clocs.pretraining.methods import METHODS

EXAMPLE = "Example: clocs pretrain chapman --method cmsc --seeds 5 --out runs/chapman-cmsc"


@with_training_options
def pretrain(
    stores: Annotated[
        list[Path],
        typer.Argument(help="Stores made by `clocs prepare`; several are learned from together."),
    ],
    folder: Annotated[Path, typer.Option("--out", help="Folder for the checkpoints.")],
    method: Annotated[str, typer.Option(help=f"One of {', '.join(METHODS)}.")] = "cmsc",
    seeds: Annotated[int, typer.Option(help="Train seeds 0…N−1, all at once.", min=1)] = 1,
    encoder: Annotated[
        str,
        typer.Option(help="cnn (the paper's) or resnet, or multilead, which sees many leads."),
    ] = "cnn",
    embedding_dim: Annotated[
        int | None,
        typer.Option(help="Dimension of the embeddings; 128 by default, 640 for multilead.", min=1),
    ] = None,
    dropout: Annotated[
        float | None,
        typer.Option(help="Probability of dropout; 0.1 by default, 0 for multilead.", min=0),
    ] = None,
    leads: Annotated[
        str | None,
        typer.Option(
            help="Leads to use, such as II,V2,aVL,aVR (the default, where present). For multilead, "
            "the leads it sees at once: the twelve standard leads by default, of which recordings "
            "may lack some."
        ),
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(help="Duration of a frame; the store's by default, 5 s for multilead."),
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option(
            help="Samples per second of a frame; the store's by default, 100 for multilead."
        ),
    ] = None,
    perturb: Annotated[
        str | None,
        typer.Option(help="Chain of perturbations of the views, such as gaussian>sa_t."),
    ] = None,
    instances_per_patient: Annotated[
        int | None,
        typer.Option(help="The most instances that one patient contributes to an epoch.", min=1),
    ] = None,
    init: Annotated[
        Path | None,
        typer.Option(help="Checkpoint to start from, or a folder with one per seed."),
    ] = None,
    precision: Annotated[
        Literal["float32", "bfloat16"],
        typer.Option(help="Number format of activations; weights stay float32."),
    ] = "float32",
    batch_norm: Annotated[
        Literal["batch", "view"],
        typer.Option(help="Batch norm over all views of a batch at once, or over each view."),
    ] = "batch",
    normalization: Annotated[
        Literal["min-max", "none"],
        typer.Option(help="Scale each frame to 0 … 1 (min-max), or leave it in mV (none)."),
    ] = "min-max",
    split: Split = None,
    test_folds: TestFolds = None,
    validation_folds: ValidationFolds = None,
    split_seed: SplitSeed = 0,
    device: Device = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted run.")] = False,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Also write event files for TensorBoard.")
    ] = False,
    recording_hashes: Annotated[
        bool,
        typer.Option(
            "--recording-hashes/--no-recording-hashes",
            help="Whether the checkpoints list hashes of the recordings they have seen, by which "
            "`clocs evaluate` finds copies of them in other datasets.",
        ),
    ] = True,
    save_every: Annotated[
        float, typer.Option(help="Seconds between two saves of what --resume needs.", min=0)
    ] = 5.0,
    as_json: Json = False,
    **options: Any,
) -> None:
    """Learn encoders from unlabeled ECGs, one per seed.

    Writes seed-0.safetensors, seed-0.json, … and log.jsonl with the metrics of every epoch.
    Interrupted, even killed, it ends with the same weights when resumed on the CPU.
    """
    with progress.training(err, f"Pre-training {method}", options["epochs"]) as watch:
        checkpoints = clocs.pretrain(
            stores,
            method=method,
            out=folder,
            seeds=seeds,
            leads=names_of(leads),
            seconds=seconds,
            rate=rate,
            encoder=encoder,
            embedding_dim=embedding_dim,
            dropout=dropout,
            perturb=perturb,
            instances_per_patient=instances_per_patient,
            init=init,
            precision=precision,
            batch_norm=batch_norm,
            normalization=normalization,
            split=split,
            test_folds=folds_of(test_folds),
            validation_folds=folds_of(validation_folds),
            split_seed=split_seed,
            device=device,
            resume=resume,
            tensorboard=tensorboard,
            recording_hashes=recording_hashes,
            save_every=save_every,
            on_step=watch.step,
            on_epoch=watch.epoch,
            **options,
        )
    from clocs.cli.tables.checkpoints import card_facts, cards_summary

    cards = [card_facts(c) for c in checkpoints]
    if as_json:
        print_json(cards)
        return
    out.print(cards_summary(cards))
    trained = sorted({file.parent for file in folder.rglob("seed-*.safetensors")})[0]
    next_command = ["clocs", "evaluate", str(trained), str(stores[0])]
    next_command += ["--leads", leads] if leads else []
    out.print(f"\nThe checkpoints are in {folder}. Next: {shlex.join(next_command)}", markup=False)


def command() -> Callable[..., None]:
    """`pretrain` with the options of all methods."""
    return with_options_of(METHODS.values(), pretrain, panel="Options of some methods")
