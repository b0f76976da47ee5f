"""Scores of encoders on validation patients, by which trainings are chosen.

The classifier learns from training patients. Only rows of these two parts are ever taken: test
patients play no part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from clocs.errors import SettingError
from clocs.evaluation import metrics
from clocs.evaluation.bootstrap import interval, macro_auc_draws
from clocs.evaluation.labelled_rows import LabelledPart, rows_with_label
from clocs.evaluation.logistic import fit_members
from clocs.evaluation.protocol_data import ProtocolInput
from clocs.evaluation.resampling import Resampling, mean_weights
from clocs.evaluation.scores import clipped_interval
from clocs.frames.frames import Frames
from clocs.frames.splits import PARTS
from clocs.training import leak_guard
from clocs.training.checkpoint import Checkpoint
from clocs.training.embed import expect_mv
from clocs.training.settings import Settings

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
    checkpoints: Sequence[Checkpoint], frames: Frames, *, device: torch.device | str = "cpu"
) -> ValidationScore:
    """The macro AUC per recording of a logistic regression on frozen embeddings.

    It is solved to convergence on all labelled recordings of training patients; its L2 penalty has
    the lowest loss on the validation patients. The interval is over seeds and these patients.

    Args:
        checkpoints: The seeds of one training.
        frames: Labelled frames as the encoders see them.
        device: Where to compute.

    Raises:
        LeakError: An encoder has seen a test patient, so that it could not be tested later.
    """
    for checkpoint in checkpoints:
        leak_guard.check_no_leak(checkpoint, frames)
    expect_mv(checkpoints, frames)
    if leads := checkpoints[0].encoder.leads:
        frames = frames.for_leads(leads)
        checkpoints = [one.for_frame(frames.spec) for one in checkpoints]
    train, validation = (
        LabelledPart(frames, rows_with_label(frames, part, leads_at_once=bool(leads)), "recording")
        for part in SEEN
    )
    given = ProtocolInput(
        checkpoints=checkpoints,
        parts=[train, validation],
        labelled=[torch.arange(len(train), device=device)] * len(checkpoints),
        settings=Settings(),
        weighted=False,
        curve=False,
        device=torch.device(device),
        on_epoch=lambda epoch: None,
    )
    learned, held_out = given.embeddings()
    logits = fit_members(learned, held_out, given.labelled).logits(held_out.features)
    chances = logits.sigmoid() if frames.multilabel else logits.softmax(dim=-1)
    scores: NDArray[np.float64] = chances.double().cpu().numpy()
    each = [metrics.macro(metrics.auc_per_class(own, validation.targets)) for own in scores]
    if np.isnan(each).any():
        raise SettingError(
            f"the validation recordings of {frames.dataset} are all of one class, so there is no "
            "AUC; choose another `split_seed`, or `score=loss`"
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


def validation_loss(checkpoints: Sequence[Checkpoint]) -> ValidationScore:
    """The lowest loss of each seed on validation patients, and Student's interval over seeds."""
    cards = [checkpoint.card for checkpoint in checkpoints]
    each = [card.metrics["validation_loss"] for card in cards]
    if None in each:
        raise SettingError(f"{cards[0].method} has no validation loss; choose `score=auc`")
    if len(each) < 2:
        return ValidationScore(each, None)
    weights = mean_weights("seed", [card.seed for card in cards], RESAMPLES)
    return ValidationScore(each, interval((weights * np.array(each)[:, None]).sum(axis=0)))
