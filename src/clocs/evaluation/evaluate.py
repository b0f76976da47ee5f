"""`clocs.evaluate`: checkpoints and a labelled store to scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from clocs.evaluation.baseline import score_against_random
from clocs.evaluation.groups import Scored, score_groups
from clocs.evaluation.labelled_rows import By
from clocs.evaluation.protocols import Protocol
from clocs.evaluation.result import Evaluation
from clocs.frames.make import make_frames
from clocs.store.store import Store, as_store
from clocs.training.checkpoint import Checkpoint, as_checkpoints
from clocs.training.device import pick_device
from clocs.training.loop import Epoch, Settings


def evaluate(
    checkpoint: Checkpoint | Sequence[Checkpoint] | Path | str,
    store: Store | Path | str,
    *,
    protocol: Protocol = "linear",
    fraction: float = 1.0,
    by: By = "frame",
    leads: Sequence[str] | None = None,
    settings: Settings | None = None,
    split_seed: int = 0,
    resamples: int = 2000,
    device: str | None = None,
    on_epoch: Callable[[Epoch], None] = lambda epoch: None,
    **more: Any,
) -> Evaluation:
    """Score the seeds of one method on a labelled store; see `evaluate_many`.

    Args:
        checkpoint: One, several of one method, a file, or a folder (all its seeds).
        store: Labelled recordings; their own frame is used.
        protocol: 'linear', 'linear-converged', 'finetune' or 'knn'.
        fraction: Of the training part that is labelled.
        by: 'frame', as in the paper, 'patient' or 'recording'.
        leads: By name; II, V2, aVL, aVR where present, else all.
        settings: Of what is trained.
        split_seed: Of the split by patient.
        resamples: Of the bootstrap over patients.
        device: 'cpu', 'cuda' …; the best at hand by default.
        on_epoch: Called after each epoch.
        more: `labels` (a number of recordings, instead of `fraction`), `class_weights`, `k`.
    """
    return evaluate_many(
        [checkpoint],
        store,
        protocol=protocol,
        fraction=fraction,
        by=by,
        leads=leads,
        settings=settings,
        split_seed=split_seed,
        resamples=resamples,
        device=device,
        on_epoch=on_epoch,
        **more,
    )[0].evaluation


def evaluate_many(
    checkpoints: Sequence[Checkpoint | Sequence[Checkpoint] | Path | str],
    store: Store | Path | str,
    *,
    protocol: Protocol = "linear",
    leads: Sequence[str] | None = None,
    split_seed: int = 0,
    device: str | None = None,
    **how: Any,
) -> list[Scored]:
    """Score several methods at once, all trained as one fleet.

    Unless encoders are fine-tuned, the untrained ones are scored beside them, and each method is
    told whether it beats them.

    Args:
        checkpoints: For each method a file, a folder (all its seeds), one checkpoint or several.
        store: Labelled recordings; their own frame is used.
        protocol: 'linear', 'linear-converged', 'finetune' or 'knn'.
        leads: By name; II, V2, aVL, aVR where present, else all.
        split_seed: Of the split by patient.
        device: 'cpu', 'cuda' …; the best at hand by default.
        how: As of `clocs.evaluation.score_groups`: `fraction`, `by`, `labels`, `class_weights`,
            `k`, `settings`, `resamples`, `curve`, `on_epoch`.

    Returns:
        One a method, with scores and predictions; then the untrained ones.
    """
    groups = [as_checkpoints(one) for one in checkpoints]
    frames = make_frames(as_store(store), leads=leads, split_seed=split_seed)
    score = score_groups if protocol == "finetune" else score_against_random
    return score(groups, frames, protocol=protocol, device=pick_device(device), **how)
