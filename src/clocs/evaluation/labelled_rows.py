"""The rows of an evaluation: labelled ones of each part, and the share of training rows to use.

A row is one frame of one lead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from clocs.errors import SettingError
from clocs.frames.frames import Frames
from clocs.frames.splits import PARTS, keys_of, labelled_subset, row_keys
from clocs.frames.views import Instances, instances, single

By = Literal["frame", "patient", "recording"]


@dataclass(frozen=True)
class LabelledShare:
    """How much of the training part is labelled."""

    fraction: float = 1.0  # of what `by` counts
    by: By = "frame"  # 'frame' is a row, as in the paper; 'patient' is one with all rows
    labels: int | None = None  # the number of labelled ones, where it was given instead

    @classmethod
    def of_number(cls, labels: int, by: By, frames: Frames, rows: Instances) -> LabelledShare:
        """So many patients or recordings of the training rows, as a fraction of them."""
        each = frames.patient if by == "patient" else frames.recording
        available = len(np.unique(each[rows.frame]))
        if not 1 <= labels <= available:
            raise SettingError(
                f"`labels` is {labels}, but the training part of {frames.dataset} has {available} "
                f"labelled {by}s; give a number from 1 to {available}"
            )
        return cls(labels / available, by, labels)


def rows_with_label(frames: Frames, split: int) -> Instances:
    """One-lead instances of a part that have a label."""
    every = instances(frames, of="lead", views=single(), split=split)
    labelled = every.where(frames.has_label[every.frame])
    if not len(labelled):
        raise SettingError(
            f"the {PARTS[split]} part of {frames.dataset} has no labelled frames; evaluation "
            "needs labels in all three parts"
        )
    return labelled


def choose_rows(
    frames: Frames, rows: Instances, seed: int, share: LabelledShare
) -> NDArray[np.bool_]:
    """(rows,) which to learn from: the same for every method, smaller shares within larger ones."""
    if share.by == "patient":
        keys = keys_of(frames.patient_ids)[frames.patient[rows.frame]]
    else:
        keys = keys_of(frames.recording_ids)[frames.recording[rows.frame]]
        if share.by != "recording":
            keys = row_keys(keys, frames.segment[rows.frame], keys_of(frames.leads)[rows.lead])
    return labelled_subset(
        keys,
        dataset=frames.dataset,
        split_seed=frames.split_seed,
        seed=seed,
        fraction=share.fraction,
        by=share.by,
    )
