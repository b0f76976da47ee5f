"""`clocs.sweep`: stores and options to vary to many pre-trainings, a table and a figure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from clocs.errors import CheckpointError, SettingError, TrainingError
from clocs.experiments.sweep import record
from clocs.experiments.sweep.record import FIGURES, TRIALS, Trial
from clocs.experiments.sweep.samplers import Known, SamplerName, number_of_trials, propose
from clocs.experiments.sweep.space import (
    PARAMETERS,
    Range,
    Varied,
    check_same_loss,
    check_space,
    parse_space,
)
from clocs.experiments.sweep.trial_run import (
    Score,
    TrialRun,
    choose_labelled,
    ended_trials,
    expect_labels,
)
from clocs.figures.style import FigureStyle
from clocs.locks import locked
from clocs.store.store import Store, as_store, expect_different_stores

# of `clocs.pretrain`; no part of what a sweep is
_AROUND = ("tensorboard", "save_every")
_NOT_TAKEN = ("resume", "settings", "frame", "on_step", "on_epoch")
TITLES = {"auc": "AUC per recording", "loss": "validation loss"}


@dataclass(frozen=True)
class Sweep:
    """A finished sweep.

    Attributes:
        folder: With `sweep.csv`, `sweep.json`, `sweep.png`, `sweep.svg` and the trials.
        stores: What was learned from.
        score: 'auc' or 'loss'.
        score_on: The store whose labels counted; None for losses.
        space: What was varied.
        options: Of all trials, besides.
        trials: The best first, failed ones last.
    """

    folder: Path
    stores: tuple[Path, ...]
    score: Score
    score_on: Path | None
    space: tuple[Varied, ...]
    options: dict[str, Any]
    trials: tuple[Trial, ...]

    @property
    def best(self) -> Trial:
        """The trial with the best score, which is optimistic: it was chosen by it."""
        return self.trials[0]

    @property
    def best_folder(self) -> Path:
        """The folder of the best trial's checkpoints."""
        return self.folder / TRIALS / self.best.name

    @property
    def best_options(self) -> dict[str, Any]:
        """All that the best trial gave `clocs.pretrain`, besides stores and folder."""
        return {**self.options, **self.best.values}

    def json(self) -> dict[str, Any]:
        return {
            "folder": str(self.folder),
            "score": self.score,
            "score_on": None if self.score_on is None else str(self.score_on),
            "options": self.options,
            "vary": {one.name: one.json() for one in self.space},
            "best": self.best.name,
            "trials": [{"name": trial.name, **asdict(trial)} for trial in self.trials],
        }


def sweep(
    store: Store | Path | str | Sequence[Store | Path | str],
    *,
    out: Path | str,
    vary: Mapping[str, str | Sequence[Any]],
    sampler: SamplerName = "grid",
    trials: int | None = None,
    sampler_seed: int = 0,
    score: Score = "auc",
    score_on: Store | Path | str | None = None,
    device: str | None = None,
    ray: str | None = None,
    style: FigureStyle | None = None,
    on_trial: Callable[[Trial, int], None] = lambda trial, total: None,
    **options: Any,
) -> Sweep:
    """Pre-train with many settings and score each on validation patients; test patients wait.

    The best of many trials is optimistic on the patients it was chosen by: score it once, on test
    patients, with `clocs.evaluate`. Interrupted, the same call goes on where it was.

    Args:
        store: What to learn from, as for `clocs.pretrain`.
        out: Folder for trials, table and figure.
        vary: For each option of `clocs.pretrain` its values: a list, or text such as '0.1,0.2',
            '0.05..0.5' (a range) or 'log:1e-5..1e-2' (a range by its logarithm).
        sampler: 'grid' tries all combinations, 'random' draws them, and 'optuna' proposes them from
            the scores so far (TPE).
        trials: How many, for 'random' and 'optuna'; a sweep goes on when the number is raised.
        sampler_seed: Random seed of 'random' and 'optuna'.
        score: 'auc', the macro AUC per recording of a linear layer on the frozen encoder, or
            'loss', the lowest of the pre-training, for stores without labels.
        score_on: The labelled store that 'auc' is of; needed where there are several.
        device: 'cpu', 'cuda' …; the best available by default.
        ray: Run trials on a Ray cluster: 'auto' for the one of this machine, or HOST:PORT. Stores
            and `out` are on a disk that all its machines share.
        style: Size and font of the figure.
        on_trial: Called with every trial that has ended, and with the number of all.
        options: Of `clocs.pretrain`, for all trials.

    Raises:
        SettingError: A name or value is not one of `clocs.pretrain`; nothing has been trained.
        CheckpointError: `out` holds another sweep.
        TrainingError: All trials diverged.
    """
    given = [store] if isinstance(store, Store | Path | str) else list(store)
    stores = [as_store(one) for one in given]
    expect_different_stores(stores)
    options = _checked(options)
    around = {name: options.pop(name) for name in _AROUND if name in options}
    space = parse_space(vary, options)
    total = number_of_trials(space, sampler, trials)
    check_space(space, options, stores)
    labelled = choose_labelled(stores, score_on, score)
    if labelled is None:
        check_same_loss(space)
    else:
        expect_labels(labelled, options)
    definition = {
        "stores": [one.manifest.content_hash for one in stores],
        "vary": {one.name: one.json() for one in space},
        "options": options,
        "sampler": sampler,
        "sampler_seed": sampler_seed,
        "score": score,
        "score_on": None if labelled is None else labelled.manifest.content_hash,
    }
    folder = Path(out)
    if folder.exists() and not folder.is_dir():
        raise CheckpointError(f"{folder} is a file; give a folder as `out`")
    run = TrialRun(
        stores=tuple(one.path for one in stores),
        folder=folder,
        options=options,
        score_on=None if labelled is None else labelled.path,
        device=device,
        more=around,
    )
    with locked(folder):
        known = record.claim(folder, definition, space)
        waiting = [trial for trial in known if trial.state == "running"]

        def next_trial() -> Trial | None:
            if waiting:
                return waiting.pop(0)
            if len(known) >= total:
                return None
            earlier = [Known(one.values, one.score, one.state == "failed") for one in known]
            point = propose(space, sampler, sampler_seed, earlier, maximise=score == "auc")
            known.append(Trial(len(known), point))
            record.write(folder, definition, known)
            return known[-1]

        for trial in known:
            if trial.state != "running":
                on_trial(trial, max(total, len(known)))
        for trial in ended_trials(run, next_trial, ray):
            known[trial.number] = trial
            record.write(folder, definition, known)
            on_trial(trial, max(total, len(known)))
        found = Sweep(
            folder=folder,
            stores=run.stores,
            score=score,
            score_on=run.score_on,
            space=space,
            options=options,
            trials=tuple(sorted(known, key=lambda one: _rank(one, score))),
        )
        record.write_table(folder, found.trials)
        if found.best.score is None:
            raise TrainingError(f"all {len(known)} trials failed; the first: {known[0].error}")
        _draw(found, style)
    return found


def _checked(options: dict[str, Any]) -> dict[str, Any]:
    """The options of all trials in plain values, as far as a sweep takes them."""
    for name in _NOT_TAKEN:
        if name in options:
            raise SettingError(f"a sweep does not take `{name}`; leave it out")
    plain = {}
    for name, value in options.items():
        if value is None or (name in PARAMETERS and value == PARAMETERS[name].default):
            continue
        plain[name] = str(value) if isinstance(value, Path) else value
    chains = plain.get("perturb")
    if chains is not None and not isinstance(chains, str):
        raise SettingError("several chains of `perturb` are several trainings; vary `perturb`")
    if not isinstance(plain.get("init", ""), str):
        raise SettingError("a sweep takes `init` as the path of a checkpoint")
    return plain


def _rank(trial: Trial, score: Score) -> tuple[bool, float, int]:
    """Sorts the best first."""
    value = trial.score or 0.0
    return trial.score is None, -value if score == "auc" else value, trial.number


def _draw(found: Sweep, style: FigureStyle | None) -> None:
    from clocs.figures.canvas import save
    from clocs.figures.sweep import ScoredTrial, SweepPanel, sweep_figure

    panels = [
        SweepPanel(
            one.name,
            [
                ScoredTrial(trial.values[one.name], trial.score, trial.ci95, trial is found.best)
                for trial in found.trials
            ],
            values=() if isinstance(one.values, Range) else one.values,
            log=one.log,
        )
        for one in found.space
    ]
    for name in FIGURES:
        figure = sweep_figure(panels, f"{TITLES[found.score]}, validation patients")
        save(figure, found.folder / name, style=style)
