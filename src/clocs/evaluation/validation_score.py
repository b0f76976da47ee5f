"""The score of an encoder on validation patients, by which settings are chosen.

The classifier learns from training patients. Only rows of these two parts are ever taken: test
patients play no part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from clocs.errors import SettingError
from clocs.evaluation import metrics
from clocs.evaluation.bootstrap import macro_auc_draws
from clocs.evaluation.evaluate import frames_for
from clocs.evaluation.labeled_rows import LabeledPart, rows_with_label
from clocs.evaluation.logistic import fit_members
from clocs.evaluation.protocol_data import ProtocolInput
from clocs.evaluation.resampling import Resampling
from clocs.evaluation.scores import clipped_interval
from clocs.frames.frames import Frames
from clocs.frames.splits import PARTS, split_of
from clocs.store.store import Store, as_store
from clocs.training import Settings, leak_guard
from clocs.training.checkpoint import Checkpoint, as_checkpoints
from clocs.training.embed import expect_mv
from clocs.training.ranks import pick_device

RESAMPLES = 2000
SEEN = PARTS.index("train"), PARTS.index("validation")


@dataclass(frozen=True)
class ValidationScore:
    """The score of the seeds of one training."""

    per_seed: list[float]
    ci95: list[float] | None  # of their mean; None where it cannot be known

    @property
    def mean(self) -> float:
        return float(np.mean(self.per_seed))


def validation_auc(
    checkpoint: Checkpoint | Sequence[Checkpoint] | Path | str,
    store: Store | Path | str,
    *,
    split: Literal["hash", "folds"] | None = None,
    test_folds: Sequence[str] | None = None,
    validation_folds: Sequence[str] | None = None,
    split_seed: int = 0,
    device: str | None = None,
) -> ValidationScore:
    """Score encoders on the validation patients of a labeled store, to choose settings by.

    The score is the macro AUC per recording of a logistic regression on frozen embeddings. It is
    solved to convergence on all labeled recordings of training patients; its L2 penalty has the
    lowest loss on the validation patients. The interval is over seeds and these patients.

    Args:
        checkpoint: One, several of one method, a file, or a folder (all its seeds).
        store: Labeled recordings.
        split: As for `clocs.evaluate`, like the next three.
        test_folds: The folds to test on later.
        validation_folds: The folds to score on.
        split_seed: Random seed for the patient split.
        device: 'cpu', 'cuda' …; the best one by default.

    Raises:
        LeakError: An encoder has seen a test patient, so that it could not be tested later.
    """
    checkpoints = as_checkpoints(checkpoint)
    by = split_of(split, test_folds, validation_folds)
    frames = frames_for([checkpoints], as_store(store), split=by, split_seed=split_seed)
    return score_frames(checkpoints, frames, device=pick_device(device))


def score_frames(
    checkpoints: Sequence[Checkpoint], frames: Frames, *, device: torch.device | str = "cpu"
) -> ValidationScore:
    """`validation_auc` of the seeds of one training, on frames as the encoders see them."""
    for checkpoint in checkpoints:
        leak_guard.check_no_leak(checkpoint, frames)
    expect_mv(checkpoints, frames)
    if leads := checkpoints[0].encoder.leads:
        frames = frames.for_leads(leads)
        checkpoints = [one.for_frame(frames.spec) for one in checkpoints]
    train, validation = (
        LabeledPart(frames, rows_with_label(frames, part, leads_at_once=bool(leads)), "recording")
        for part in SEEN
    )
    given = ProtocolInput(
        checkpoints=checkpoints,
        parts=[train, validation],
        labeled=[torch.arange(len(train), device=device)] * len(checkpoints),
        settings=Settings(),
        weighted=False,
        curve=False,
        device=torch.device(device),
        on_epoch=lambda epoch: None,
    )
    learned, held_out = given.embeddings()
    logits = fit_members(learned, held_out, given.labeled).logits(held_out.features)
    chances = logits.sigmoid() if frames.multilabel else logits.softmax(dim=-1)
    scores: NDArray[np.float64] = chances.double().cpu().numpy()
    each = [metrics.macro(metrics.auc_per_class(own, validation.targets)) for own in scores]
    if np.isnan(each).any():
        raise SettingError(
            f"the validation recordings of {frames.dataset} are all of one class, so there is no "
            "AUC; choose another `split_seed`"
        )
    names, patient = np.unique(frames.patient[validation.frame], return_inverse=True)
    plan = Resampling.of(
        frames.dataset,
        [frames.patient_ids[number] for number in names],
        given.seeds,
        resamples=RESAMPLES,
    )
    draws = macro_auc_draws(scores, validation.targets, patient, plan)
    return ValidationScore(each, clipped_interval(draws))
