"""The command `clocs evaluate`: parse, call, print, draw."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
from clocs.errors import SettingError

if TYPE_CHECKING:
    from clocs.evaluation.groups import Scored
    from clocs.training.loop import Epoch

EXAMPLE = "Example: clocs evaluate runs/chapman-cmsc runs/chapman-simclr chapman --fraction 0.5"


class ProtocolName(StrEnum):
    """Ways to evaluate."""

    linear = "linear"
    converged = "linear-converged"
    finetune = "finetune"
    knn = "knn"


class ByName(StrEnum):
    """What a labelled fraction counts."""

    frame = "frame"
    patient = "patient"
    recording = "recording"


def evaluate(
    checkpoints: Annotated[
        list[Path],
        typer.Argument(
            metavar="CHECKPOINT...",
            help="For each method a file, or a folder with all its seeds.",
        ),
    ],
    store: Annotated[Path, typer.Argument(help="Labelled recordings.")],
    protocol: Annotated[
        ProtocolName,
        typer.Option(
            help="A linear layer as in the paper, or solved to the end; all weights fine-tuned; "
            "or nearest neighbours."
        ),
    ] = ProtocolName.linear,
    fraction: Annotated[float, typer.Option(help="Of the training part that is labelled.")] = 1.0,
    by: Annotated[
        ByName, typer.Option(help="What the fraction counts: the paper's frames, or patients.")
    ] = ByName.frame,
    labels: Annotated[
        int | None,
        typer.Option(help="Instead of a fraction: labels of this many recordings.", min=1),
    ] = None,
    class_weights: Annotated[
        bool, typer.Option("--class-weights", help="Rare classes weigh as much as common ones.")
    ] = False,
    k: Annotated[int, typer.Option("-k", help="Neighbours of knn.", min=1)] = 20,
    leads: Leads = None,
    epochs: Epochs = 400,
    patience: Patience = 15,
    batch_size: BatchSize = None,
    lr: LearningRate = 1e-4,
    split_seed: SplitSeed = 0,
    resamples: Annotated[
        int, typer.Option(help="Of patients, for 95 % intervals and paired tests.", min=0)
    ] = 2000,
    device: Device = None,
    plots: Annotated[
        Path | None,
        typer.Option(help="Folder for ROC and calibration curves and confusion matrices (PNG)."),
    ] = None,
    predictions: Annotated[
        Path | None, typer.Option(help="Folder for all test predictions (safetensors).")
    ] = None,
    as_json: Json = False,
) -> None:
    """Score encoders on patients never seen, by what a classifier makes of few labels.

    Unless encoders are fine-tuned, untrained ones are scored beside them: a method that does not
    beat these says so. Several methods are trained at once and compared on the same patients.
    """
    from clocs.store.store import open_store

    if labels is not None and (fraction != 1 or by != ByName.frame):
        raise SettingError("--labels counts recordings; leave out --fraction and --by")
    opened = open_store(store)
    settings = settings_of(epochs, patience, batch_size or opened.manifest.batch_size, lr)
    with _watched(protocol, epochs) as on_epoch:
        scored = clocs.evaluate_many(
            checkpoints,
            opened,
            protocol=protocol.value,
            fraction=fraction,
            by=by.value,
            labels=labels,
            class_weights=class_weights,
            k=k,
            leads=names_of(leads),
            settings=settings,
            split_seed=split_seed,
            resamples=resamples,
            device=device,
            on_epoch=on_epoch,
        )
    results = [one.evaluation for one in scored]
    if predictions is not None:
        predictions.mkdir(parents=True, exist_ok=True)
        for name, one in _named(scored).items():
            one.predictions.save(predictions / f"{name}.safetensors")
    written = [] if plots is None else _draw(scored[: len(checkpoints)], plots)
    if as_json:
        found = [result.json() for result in results]
        print_json(found[0] if len(checkpoints) == 1 else found)
        return
    from clocs.cli.tables import scores

    if len(checkpoints) == 1:
        out.print(scores.evaluation_table(results[0], results[1:]))
    else:
        out.print(scores.evaluations_table(results))
        for words in scores.verdicts(results):
            out.print(words)
    if written:
        out.print(f"The figures are in {plots}: {', '.join(written)}.", markup=False)


def _draw(scored: list[Scored], folder: Path) -> list[str]:
    from clocs.figures import scores
    from clocs.figures.plots import save

    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, one in _named(scored).items():
        for kind, draw in scores.FIGURES.items():
            written.append(f"{name}-{kind}.png")
            save(draw(one.predictions), folder / written[-1])
    return written


def _named(scored: list[Scored]) -> dict[str, Scored]:
    """A file name for each: its method and what it was trained on, numbered where they recur."""
    from clocs.evaluation.result import distinct

    names = distinct([one.evaluation.name for one in scored])
    files = [re.sub(r"[^\w.-]+", "-", name).strip("-") for name in names]
    return dict(zip(files, scored, strict=True))


@contextmanager
def _watched(protocol: ProtocolName, epochs: int) -> Iterator[Callable[[Epoch], None]]:
    """A bar over epochs where there are any, else a sign that something is going on."""
    if protocol in (ProtocolName.linear, ProtocolName.finetune):
        with progress.training(err, "Evaluating", epochs) as watch:
            yield watch.epoch
    elif err.is_terminal:
        with err.status("Evaluating …"):
            yield lambda epoch: None
    else:
        yield lambda epoch: None
