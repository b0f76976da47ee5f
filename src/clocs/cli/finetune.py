"""The command `clocs finetune`, and `clocs evaluate` of what it makes."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

import clocs
from clocs.cli import progress
from clocs.cli.console import err, out, print_json
from clocs.cli.options import (
    ClassWeights,
    Device,
    EncoderLeads,
    Fraction,
    Json,
    Labels,
    Resamples,
    Split,
    SplitSeed,
    TestFolds,
    ValidationFolds,
    folds_of,
    names_of,
    typed,
    with_options_of,
)
from clocs.cli.training_options import with_training_options
from clocs.errors import SettingError
from clocs.evaluation.protocols import PROTOCOLS
from clocs.evaluation.training_options import PROTOCOL_OF_HEAD

EXAMPLE = "Example: clocs finetune runs/chapman-cmsc chapman --head whole --out rhythm.safetensors"


@with_training_options
def finetune(
    checkpoint: Annotated[
        Path, typer.Argument(help="An encoder's file, or a folder with all its seeds.")
    ],
    store: Annotated[Path, typer.Argument(help="A store of labeled recordings.")],
    file: Annotated[Path, typer.Option("--out", help="The file to write, NAME.safetensors.")],
    head: Annotated[
        Literal["linear", "whole"],
        typer.Option(
            help="Train a linear layer on the frozen encoder (the protocol linear-converged), or "
            "the whole encoder with it (the protocol finetune)."
        ),
    ] = "linear",
    seeds: Annotated[
        int | None,
        typer.Option(
            help="Train N: the first N of a folder, or N from one encoder; all by default.",
            min=1,
        ),
    ] = None,
    members: Annotated[
        Literal["best", "ensemble"],
        typer.Option(
            help="What to keep of several seeds: the best by validation AUC, or all as an ensemble."
        ),
    ] = "best",
    class_weights: ClassWeights = False,
    fraction: Fraction = 1.0,
    by: Annotated[
        Literal["recording", "patient"],
        typer.Option(help="What --fraction and --labels count."),
    ] = "recording",
    labels: Labels = None,
    leads: EncoderLeads = None,
    split: Split = None,
    test_folds: TestFolds = None,
    validation_folds: ValidationFolds = None,
    split_seed: SplitSeed = 0,
    shared: Annotated[
        bool,
        typer.Option(
            "--shared",
            help="Name the encoder, one of those in the package, rather than copy it: a small file "
            "for everyone who has clocs. With --head linear.",
        ),
    ] = False,
    name: Annotated[
        str | None, typer.Option(help="Name of the classifier; that of the file by default.")
    ] = None,
    resamples: Resamples = 2000,
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted run.")] = False,
    device: Device = None,
    as_json: Json = False,
    **options: Any,
) -> None:
    """Train a classifier of recordings on top of an encoder, and score it on test patients.

    Writes one file with the weights and a card: labels, temperature and thresholds chosen on
    validation patients, scores on test patients. An existing file is never overwritten.
    """
    with progress.training(err, "Fine-tuning", options["epochs"]) as bar:
        made = clocs.finetune(
            checkpoint,
            store,
            out=file,
            head=head,
            seeds=seeds,
            members=members,
            class_weights=class_weights,
            fraction=fraction,
            by=by,
            labels=labels,
            leads=names_of(leads),
            split=split,
            test_folds=folds_of(test_folds),
            validation_folds=folds_of(validation_folds),
            split_seed=split_seed,
            shared=shared,
            name=name,
            resamples=resamples,
            resume=resume,
            device=device,
            on_epoch=bar.epoch,
            **options,
        )
    if as_json:
        print_json(made.card.to_dict())
        return
    from clocs.cli.tables.classifiers import scores_table

    out.print(scores_table(made.card, made.card.scores))
    again = shlex.join(["clocs", "evaluate", str(file), str(store)])
    out.print(f"\nThe classifier is in {file}. To print these scores again: {again}", markup=False)


def command() -> Callable[..., None]:
    """`finetune` with the options of its protocols."""
    rows = [PROTOCOLS[name] for name in PROTOCOL_OF_HEAD.values()]
    return with_options_of(rows, finetune, panel="Options of linear or whole")


def evaluate(classifiers: Sequence[Path], store: Path, *, as_json: bool, **options: Any) -> None:
    """Score a saved classifier on the test patients of a store, and print that."""
    from clocs.models.classifier import load_classifier

    if len(classifiers) > 1:
        raise SettingError("a classifier is evaluated alone; give one, and the store")
    given = typed() - {"paths", "as_json"}
    if foreign := sorted(given - options.keys()):
        names = ", ".join(f"`{name}`" for name in foreign)
        raise SettingError(f"a saved classifier is scored as it is; leave out {names}")
    loaded = load_classifier(classifiers[0])
    if "split_seed" not in given:
        options["split_seed"] = None
    scores = clocs.evaluate_classifier(loaded, store, **options)
    if as_json:
        print_json(scores)
        return
    from clocs.cli.tables.classifiers import scores_table

    out.print(scores_table(loaded.card, scores))
