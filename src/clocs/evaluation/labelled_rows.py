"""Which rows an evaluation uses: labelled ones of each part, and of the training part a share.

A row is one frame of one lead. Knows nothing about encoders or protocols.
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
class Share:
    """How much of the training part is labelled.

    Attributes:
        fraction: Of what `by` counts.
        by: 'frame' (a row: the paper's), 'patient' (with all rows: the honest one), 'recording'.
        labels: Or this many recordings, whatever `fraction` and `by` say: a person who labels pays
            for recordings, not for frames and leads.
    """

    fraction: float = 1.0
    by: By = "frame"
    labels: int | None = None


def labelled_rows(frames: Frames, split: int) -> Instances:
    """One-lead instances of a part that have a label."""
    every = instances(frames, of="lead", views=single(), split=split)
    labelled = every.where(frames.has_label[every.frame])
    if not len(labelled):
        raise SettingError(
            f"the {PARTS[split]} part of {frames.dataset} has no labelled frames; evaluation "
            "needs labels in all three parts"
        )
    return labelled


def settle(frames: Frames, rows: Instances, share: Share) -> Share:
    """The same share with a count of recordings turned into a fraction of them."""
    if share.labels is None:
        return share
    available = len(np.unique(frames.recording[rows.frame]))
    if not 1 <= share.labels <= available:
        raise SettingError(
            f"{share.labels} labels were asked for, but the training part of {frames.dataset} has "
            f"{available} labelled recordings; give a number from 1 to {available}"
        )
    return Share(share.labels / available, "recording", share.labels)


def subset(frames: Frames, rows: Instances, seed: int, share: Share) -> NDArray[np.bool_]:
    """(rows,) which are labelled: the same for every method, smaller shares within larger ones."""
    if share.by == "patient":
        keys = keys_of(frames.patient_ids)[frames.patient[rows.frame]]
    elif share.by == "recording":
        keys = keys_of(frames.recording_ids)[frames.recording[rows.frame]]
    else:
        keys = row_keys(
            keys_of(frames.recording_ids)[frames.recording[rows.frame]],
            frames.segment[rows.frame],
            keys_of(frames.leads)[rows.lead],
        )
    return labelled_subset(
        keys,
        dataset=frames.dataset,
        split_seed=frames.split_seed,
        seed=seed,
        fraction=share.fraction,
        by=share.by,
    )
