"""The command `clocs evaluate`: parse, call, print, draw."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

import clocs
from clocs.cli import finetune, progress
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
    pairs_of,
    with_options_of,
)
from clocs.cli.training_options import with_training_options
from clocs.errors import SettingError
from clocs.evaluation.protocols import PROTOCOLS, find_protocol
from clocs.files import private_folder

if TYPE_CHECKING:
    from clocs.evaluation.groups import GroupResult
    from clocs.training.loop import Epoch

EXAMPLE = "Example: clocs evaluate runs/chapman-cmsc runs/chapman-simclr chapman --fraction 0.5"
_PROTOCOLS = "; ".join(f"{name}: {row.help}" for name, row in PROTOCOLS.items()) + "."


@with_training_options
def evaluate(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="CHECKPOINT... STORE",
            help="For each method a file, or a folder with all its seeds, or one classifier, made "
            "by `clocs finetune`; then a store of labeled recordings.",
        ),
    ],
    protocol: Annotated[str, typer.Option(help=_PROTOCOLS)] = "linear",
    fraction: Fraction = 1.0,
    by: Annotated[
        Literal["frame", "patient", "recording"],
        typer.Option(help="What the fraction counts: frames as in the paper, or patients."),
    ] = "frame",
    labels: Labels = None,
    per: Annotated[
        Literal["row", "recording"] | None,
        typer.Option(
            help="What is scored: frames of a lead (row), as in the paper, or recordings, the "
            "default for encoders of many leads."
        ),
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(
            help="Seconds of a frame, where not those that the encoder learned on; for encoders "
            "that pool over time."
        ),
    ] = None,
    test_leads: Annotated[
        str | None,
        typer.Option(help="Leads that validation and test see, such as I,II; all by default."),
    ] = None,
    noise: Annotated[
        str | None,
        typer.Option(
            help="Noise of the test part: kind and signal to noise in dB, such as muscle:6."
        ),
    ] = None,
    class_weights: ClassWeights = False,
    leads: EncoderLeads = None,
    split: Split = None,
    test_folds: TestFolds = None,
    validation_folds: ValidationFolds = None,
    split_seed: SplitSeed = 0,
    folds: Annotated[
        str | None,
        typer.Option(
            help="Test on every patient that no encoder was trained on, in this many parts, or in "
            "the store's own folds (official), instead of on the test part alone."
        ),
    ] = None,
    baselines: Annotated[
        bool,
        typer.Option(
            "--baselines/--no-baselines",
            help="Whether to score untrained encoders, too, and compare every method with them.",
        ),
    ] = True,
    resamples: Resamples = 2000,
    label_names: Annotated[
        str | None,
        typer.Option(
            help="What labels of the store are called in a classifier, such as AFIB=AF,SR=N."
        ),
    ] = None,
    device: Device = None,
    plots: Annotated[
        Path | None,
        typer.Option(help="Folder for ROC and calibration curves and confusion matrices."),
    ] = None,
    plot_format: Annotated[
        Literal["png", "svg", "pdf"], typer.Option(help="Format of the figures in that folder.")
    ] = "png",
    predictions: Annotated[
        Path | None, typer.Option(help="Folder for all test predictions (safetensors).")
    ] = None,
    as_json: Json = False,
    **options: Any,
) -> None:
    """Score encoders on test patients, with a classifier trained on few labels.

    Under most protocols untrained encoders are scored too, and every method is compared with them.
    Several methods are evaluated at once and compared on the same patients. A classifier made by
    `clocs finetune` is scored as it is, nothing is trained.
    """
    from clocs.models.classifier_card import is_classifier

    *checkpoints, store = paths
    if not checkpoints:
        raise SettingError(
            f"only {store} is given; give the checkpoints first, then a store of labeled "
            "recordings: clocs evaluate CHECKPOINT... STORE"
        )
    if any(map(is_classifier, checkpoints)):
        finetune.evaluate(
            checkpoints,
            store,
            label_names=pairs_of(label_names, "label_names"),
            leads=names_of(leads),
            split=split,
            test_folds=folds_of(test_folds),
            validation_folds=folds_of(validation_folds),
            split_seed=split_seed,
            resamples=resamples,
            device=device,
            as_json=as_json,
        )
        return
    if label_names is not None:
        raise SettingError("`label_names` is for classifiers; leave it out")
    with _progress(find_protocol(protocol).trains, options["epochs"]) as on_epoch:
        scored = clocs.evaluate_many(
            checkpoints,
            store,
            protocol=protocol,
            fraction=fraction,
            by=by,
            labels=labels,
            per=per,
            seconds=seconds,
            test_leads=names_of(test_leads),
            noise=noise,
            class_weights=class_weights,
            leads=names_of(leads),
            split=split,
            test_folds=folds_of(test_folds),
            validation_folds=folds_of(validation_folds),
            split_seed=split_seed,
            folds=_number_of(folds),
            baselines=baselines,
            resamples=resamples,
            device=device,
            on_epoch=on_epoch,
            **options,
        )
    results = [one.evaluation for one in scored]
    if predictions is not None:
        private_folder(predictions)
        for name, one in _named(scored).items():
            one.predictions.save(predictions / f"{name}.safetensors")
    written = [] if plots is None else _draw(scored[: len(checkpoints)], plots, plot_format)
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


def command() -> Callable[..., None]:
    """`evaluate` with the options of all protocols."""
    return with_options_of(PROTOCOLS.values(), evaluate, panel="Options of some protocols")


def _draw(scored: list[GroupResult], folder: Path, form: str) -> list[str]:
    from clocs.figures import scores
    from clocs.figures.canvas import save

    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, one in _named(scored).items():
        for kind, draw in scores.FIGURES.items():
            written.append(f"{name}-{kind}.{form}")
            save(draw(one.predictions), folder / written[-1])
    return written


def _number_of(folds: str | None) -> int | Literal["official"] | None:
    """'5' -> 5."""
    if folds is None:
        return None
    try:
        return "official" if folds == "official" else int(folds)
    except ValueError:
        raise SettingError(f"`folds` is {folds!r:.50}; give a number, or official") from None


def _named(scored: list[GroupResult]) -> dict[str, GroupResult]:
    """A file name for each: its method and training dataset, repeated ones numbered."""
    from clocs.evaluation.result import distinct

    names = distinct([one.evaluation.name for one in scored])
    files = [re.sub(r"[^\w.-]+", "-", name).strip("-") for name in names]
    return dict(zip(files, scored, strict=True))


@contextmanager
def _progress(trains: bool, epochs: int) -> Iterator[Callable[[Epoch], None]]:
    """A bar over epochs where there are any, else a spinner."""
    if trains:
        with progress.training(err, "Evaluating", epochs) as bar:
            yield bar.epoch
    elif err.is_terminal:
        with err.status("Evaluating …"):
            yield lambda epoch: None
    else:
        yield lambda epoch: None
