"""One trial of a sweep: an ordinary pre-training, scored on validation patients."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from clocs.errors import SettingError, TrainingError
from clocs.evaluation.evaluate import frames_for
from clocs.evaluation.validation_score import SEEN, validation_auc, validation_loss
from clocs.experiments.sweep.record import TRIALS, Trial
from clocs.frames.folds import Split, split_of
from clocs.frames.make import plan_frames
from clocs.frames.splits import PARTS
from clocs.locks import once_free
from clocs.pretraining.pretrain import pretrain
from clocs.store.store import Store, as_store
from clocs.training.device import pick_device

Score: TypeAlias = Literal["auc", "loss"]


@dataclass(frozen=True)
class TrialRun:
    """What all trials of a sweep share; it can be sent to another process."""

    stores: tuple[Path, ...]
    folder: Path  # of the sweep
    options: dict[str, Any]  # of `clocs.pretrain`, the same for all trials
    score_on: Path | None  # labelled; None where losses are compared
    device: str | None = None
    more: Mapping[str, Any] = field(default_factory=dict)  # what does not change what is learned

    def __call__(self, trial: Trial) -> Trial:
        """Train, or go on training, and score."""
        began = time.monotonic()
        options = {**self.options, **trial.values}
        try:
            checkpoints = pretrain(
                list(self.stores),
                out=self.folder / TRIALS / trial.name,
                resume=True,
                device=self.device,
                **self.more,
                **options,
            )
        except TrainingError as error:
            return replace(trial, state="failed", error=str(error), seconds=_since(began))
        if self.score_on is None:
            found = validation_loss(checkpoints)
        else:
            store = as_store(self.score_on)
            by, seed = split_in(options)
            frames = frames_for([checkpoints], store, split=by, split_seed=seed)
            found = validation_auc(checkpoints, frames, device=pick_device(self.device))
        return replace(
            trial,
            state="done",
            score=found.mean,
            ci95=found.ci95,
            per_seed=tuple(found.per_seed),
            seconds=_since(began),
        )

    def absolute(self) -> TrialRun:
        """The same for machines with another working directory."""
        start = self.options.get("init")
        return replace(
            self,
            stores=tuple(store.resolve() for store in self.stores),
            folder=self.folder.resolve(),
            score_on=None if self.score_on is None else self.score_on.resolve(),
            options=self.options | ({"init": str(Path(start).resolve())} if start else {}),
        )

    def on_node(self, trial: Trial) -> Trial:
        """As a task, which may run again while the process of a lost one is still ending."""
        return once_free(lambda: self(trial))


def ended_trials(
    run: TrialRun, next_trial: Callable[[], Trial | None], ray: str | None = None
) -> Iterator[Trial]:
    """Trials as they end: one after the other here, or as many at once as a cluster has room for.

    Args:
        run: What a trial does.
        next_trial: The one to start; None where there is no further one.
        ray: A Ray cluster, as for `clocs.ray_cluster.connect`.
    """
    if ray is None:
        while (trial := next_trial()) is not None:
            yield run(trial)
        return
    from clocs.ray_cluster import Needs, Tasks, check_fits, connect, nodes

    with connect(ray), Tasks[Trial]() as tasks:
        on_gpu = run.device != "cpu" and any(node.gpus for node in nodes())
        needs, there = Needs(gpus=float(on_gpu)), run.absolute()
        room = check_fits(needs)
        while True:
            while len(tasks) < room and (trial := next_trial()) is not None:
                tasks.start(trial, there.on_node, trial, needs=needs)
            if not len(tasks):
                return
            for trial, result in tasks.finished():
                ended: Trial = result()
                if not (run.folder / TRIALS / trial.name).is_dir():
                    raise SettingError(
                        f"trial {trial.name} was trained where this machine does not see it; give "
                        "a folder on a disk that all machines of the cluster share as `out`"
                    )
                yield ended
            room = max(1, sum(node.fits(needs) for node in nodes()))  # some come, some are lost


def split_in(options: Mapping[str, Any]) -> tuple[Split, int]:
    """The patient split that options of `clocs.pretrain` ask for, and its seed."""
    names = ("split", "test_folds", "validation_folds")
    return split_of(*(options.get(name) for name in names)), options.get("split_seed", 0)


def expect_labels(store: Store, options: Mapping[str, Any]) -> None:
    """Refuse a store whose training or validation patients have no labels."""
    by, seed = split_in(options)
    plan = plan_frames(store, split=by, split_seed=seed)
    labelled = plan.kept & plan.target.any(axis=1)
    part = plan.split[plan.patient[plan.cuts.recording[labelled]]]
    for number in SEEN:
        if not np.any(part == number):
            raise SettingError(
                f"the {PARTS[number]} patients of {store.path} have no labels to score with; name "
                "a labelled store with `score_on`, or choose `score=loss`"
            )


def choose_labelled(
    stores: Sequence[Store], score_on: Store | Path | str | None, score: str
) -> Store | None:
    """The store whose labels count; None where losses are compared."""
    if score not in ("auc", "loss"):
        raise SettingError(f"`score` is auc or loss, not {score!r:.50}")
    if score == "loss":
        if score_on is not None:
            raise SettingError("`score_on` is for labels, which `score=loss` does without")
        return None
    if score_on is not None:
        return as_store(score_on)
    if len(stores) > 1:
        raise SettingError(
            "there are several stores; name the one whose labels count with `score_on`"
        )
    return stores[0]


def _since(began: float) -> float:
    return round(time.monotonic() - began, 3)
