"""The command `clocs sweep`: the options of `clocs pretrain`, and which of them to vary."""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import typer

import clocs
from clocs.cli import pretrain, progress
from clocs.cli.console import err, out, print_json
from clocs.cli.figure_options import with_figure_style
from clocs.cli.options import Json, folds_of, names_of, typed
from clocs.errors import SettingError
from clocs.figures.style import FigureStyle

if TYPE_CHECKING:
    from clocs.experiments.sweep.record import Trial
    from clocs.experiments.sweep.sweep import Sweep

EXAMPLE = (
    "Example: clocs sweep chapman --vary lr=0.0001,0.001 --vary temperature=0.05,0.1,0.5 "
    "--epochs 20 --out runs/sweep"
)
_PANEL = "Options of every trial, as for clocs pretrain"
_OWN = ("stores", "folder", "resume", "as_json")  # of `pretrain`; these are the sweep's
_PLAIN: dict[str, Callable[[Any], Any]] = {
    "leads": names_of,
    "test_folds": folds_of,
    "validation_folds": folds_of,
    "perturb": lambda chains: chains[0] if len(chains) == 1 else chains,
}


@with_figure_style
def sweep(
    stores: Annotated[
        list[Path],
        typer.Argument(help="Stores made by `clocs prepare`; several are learned from together."),
    ],
    folder: Annotated[Path, typer.Option("--out", help="Folder for trials, table and figure.")],
    vary: Annotated[
        list[str],
        typer.Option(
            help="An option of `clocs pretrain` and its values: lr=0.0001,0.001 (a list), "
            "temperature=0.05..0.5 (a range), lr=log:1e-5..1e-2 (a range by its logarithm); "
            "repeatable."
        ),
    ],
    sampler: Annotated[
        Literal["grid", "random", "optuna"],
        typer.Option(
            help="How values are combined: all combinations, at random, or proposed by Optuna from "
            "the scores so far."
        ),
    ] = "grid",
    trials: Annotated[
        int | None, typer.Option(help="Number of trials, for random and optuna.", min=1)
    ] = None,
    sampler_seed: Annotated[
        int, typer.Option(help="Random seed of the samplers random and optuna.", min=0)
    ] = 0,
    score: Annotated[
        Literal["auc", "loss"],
        typer.Option(
            help="Score on validation patients: AUC per recording of a linear layer on the frozen "
            "encoder, or the pre-training's loss, for stores without labels."
        ),
    ] = "auc",
    score_on: Annotated[
        Path | None,
        typer.Option(help="A labelled store to score on; needed where several are learned from."),
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(
            help="Run trials on a Ray cluster: auto for the one of this machine, or HOST:PORT."
        ),
    ] = None,
    as_json: Json = False,
    *,
    style: FigureStyle | None,
    **options: Any,
) -> None:
    """Pre-train with many settings, score each on validation patients, and compare them.

    Every trial is a pre-training in OUT/trials. Run again, the same command repeats no trial.
    The best score is optimistic: score the best trial once on test patients, by `clocs evaluate`.
    """
    named = typed()
    given = {name: value for name, value in options.items() if name in named}
    given |= {name: plain(given[name]) for name, plain in _PLAIN.items() if name in given}
    with progress.bar(err, "Sweeping", "trials") as advance:
        done = count(1)

        def show(trial: Trial, total: int) -> None:
            number = next(done)
            words = f"[{number}/{total}] {trial.words}: {_scored(trial)}"
            err.print(words, markup=False)
            advance(number, total)

        found = clocs.sweep(
            stores,
            out=folder,
            vary=_varied(vary),
            sampler=sampler,
            trials=trials,
            sampler_seed=sampler_seed,
            score=score,
            score_on=score_on,
            ray=ray,
            style=style,
            on_trial=show,
            **given,
        )
    command = pretrain_command(found.stores, found.best_options, found.best_folder)
    if as_json:
        print_json(found.json() | {"command": command})
        return
    from clocs.cli.tables.sweep import sweep_table

    out.print(sweep_table(found))
    out.print(f"\nThe best trial is {found.best.name}: {found.best.words}. It was made by:")
    out.print(f"  {command}", markup=False)
    out.print(_advice(found), markup=False)


def command() -> Callable[..., None]:
    """`sweep` with all options of `clocs pretrain`."""
    own = inspect.signature(sweep, eval_str=True).parameters
    theirs = inspect.signature(pretrain.command()).parameters

    def run(**given: Any) -> None:
        sweep(**given)

    parameters = [p for p in own.values() if p.kind is not p.VAR_KEYWORD] + [
        p.replace(annotation=_in_panel(p.annotation))
        for name, p in theirs.items()
        if name not in _OWN
    ]
    run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [p.replace(kind=p.KEYWORD_ONLY) for p in parameters]
    )
    run.__name__, run.__doc__ = sweep.__name__, sweep.__doc__
    return run


def pretrain_command(stores: Sequence[Path], options: Mapping[str, Any], folder: Path) -> str:
    """What one types to train with these options of `clocs.pretrain`."""
    words = ["clocs", "pretrain", *map(str, stores)]
    for name, value in options.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        elif value is not None:
            text = ",".join(value) if isinstance(value, tuple | list) else str(value)
            words += [f"--{flag}", text]
    return shlex.join([*words, "--out", str(folder)])


def _in_panel(annotation: Any) -> Any:
    kind, option = get_args(annotation)
    option = copy(option)
    option.rich_help_panel = option.rich_help_panel or _PANEL
    return Annotated[kind, option]


def _varied(given: Sequence[str]) -> dict[str, str]:
    """['lr=0.1,0.2'] -> {'lr': '0.1,0.2'}."""
    found: dict[str, str] = {}
    for text in given:
        name, equals, values = text.partition("=")
        name = name.strip().lstrip("-").replace("-", "_")
        if not name or not equals or not values.strip() or name in found:
            raise SettingError(
                f"`vary` is {text!r:.80}; give each option once, with its values, such as "
                "lr=0.0001,0.001"
            )
        found[name] = values.strip()
    return found


def _scored(trial: Trial) -> str:
    if trial.score is None:
        return f"failed: {trial.error}"
    around = "" if trial.ci95 is None else " ({:.3f} … {:.3f})".format(*trial.ci95)
    return f"{trial.score:.3f}{around}, {trial.seconds:,.0f} s"


def _advice(found: Sweep) -> str:
    store = found.score_on or found.stores[0]
    next_command = ["clocs", "evaluate", str(found.best_folder), str(store)]
    for name in ("split", "split_seed", "test_folds", "validation_folds"):
        if (value := found.options.get(name)) is not None:
            text = ",".join(value) if isinstance(value, list) else str(value)
            next_command += [f"--{name.replace('_', '-')}", text]
    return (
        f"Table and figure are in {found.folder} (sweep.csv, sweep.png). The best of "
        f"{len(found.trials)} trials is optimistic on the patients that it was chosen by. Test "
        f"patients have not been touched; score on them once: {shlex.join(next_command)}"
    )
