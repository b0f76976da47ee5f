"""The command `clocs pretrain`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

import clocs
from clocs.cli import progress
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

EXAMPLE = "Example: clocs pretrain chapman --method cmsc --seeds 5 --out runs/chapman-cmsc"


class PrecisionName(StrEnum):
    """Of activations while training."""

    float32 = "float32"
    bfloat16 = "bfloat16"


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
    with progress.training(err, f"Pre-training {method}", epochs) as watch:
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
    from clocs.cli.tables.checkpoints import card_facts, cards_summary

    cards = [card_facts(c) for c in checkpoints]
    if as_json:
        print_json(cards)
        return
    out.print(cards_summary(cards))
    out.print(f"\nThe checkpoints are in {folder}. Next: clocs evaluate {folder} {stores[0]}")
