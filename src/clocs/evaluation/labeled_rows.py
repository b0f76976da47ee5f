"""The rows of an evaluation: labeled ones of each part, and the share of training rows to use.

A row is one frame of one lead; for encoders that see many leads at once it is one frame. What is
scored is each row, or each recording, of whose rows the embeddings or logits are averaged.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clocs.errors import SettingError
from clocs.frames.frames import Frames
from clocs.frames.splits import PARTS, keys_of, labeled_subset, row_keys
from clocs.frames.views import Instances, instances, single

By = Literal["frame", "patient", "recording"]
Per = Literal["row", "recording"]


@dataclass(frozen=True)
class LabeledShare:
    """How much of the training part is labeled."""

    fraction: float = 1.0  # of what `by` counts
    by: By = "frame"  # 'frame' is a row, as in the paper; 'patient' is one with all rows
    labels: int | None = None  # the number of labeled ones, where it was given instead

    @classmethod
    def of_number(cls, labels: int, by: By, frames: Frames, rows: Instances) -> LabeledShare:
        """So many patients or recordings of the training rows, as a fraction of them."""
        each = frames.patient if by == "patient" else frames.recording
        available = len(np.unique(each[rows.frame]))
        if not 1 <= labels <= available:
            raise SettingError(
                f"`labels` is {labels}, but the training part of {frames.dataset} has {available} "
                f"labeled {by}s; give a number from 1 to {available}"
            )
        return cls(labels / available, by, labels)


@dataclass(frozen=True)
class LabeledPart:
    """The labeled rows of a part, and what of them is scored."""

    frames: Frames
    rows: Instances
    per: Per = "row"

    def __len__(self) -> int:
        """How many are scored: rows, or recordings."""
        return len(self.first)

    @property
    def recordings(self) -> NDArray[np.int32]:
        """(rows,) index into `frames.recording_ids`."""
        return self.frames.recording[self.rows.frame]

    @cached_property
    def first(self) -> NDArray[np.int64]:
        """(scored,) the row that is scored, or the first row of the recording."""
        if self.per == "row":
            return np.arange(len(self.rows))
        return np.unique(self.recordings, return_index=True)[1].astype(np.int64)

    @cached_property
    def place(self) -> NDArray[np.int64]:
        """(rows,) which of the scored each row belongs to."""
        if self.per == "row":
            return np.arange(len(self.rows))
        return np.unique(self.recordings, return_inverse=True)[1].astype(np.int64)

    @property
    def frame(self) -> NDArray[np.int64]:
        """(scored,) a frame of each, which gives its patient and recording."""
        return np.asarray(self.rows.frame[self.first])

    @cached_property
    def targets(self) -> NDArray[np.uint8]:
        """(scored, classes); of a recording, labels of at least half of its rows.

        Where no label covers half of it, or where it can have one only: that of the most rows.
        """
        own: NDArray[np.uint8] = self.frames.target[self.rows.frame]
        if self.per == "row":
            return own
        sums = np.stack(
            [np.bincount(self.place, column, minlength=len(self)) for column in own.T], axis=1
        )
        most: NDArray[np.uint8] = np.eye(own.shape[1], dtype=np.uint8)[sums.argmax(axis=1)]
        if not self.frames.multilabel:
            return most
        half: NDArray[np.uint8] = (2 * sums >= np.bincount(self.place)[:, None]).astype(np.uint8)
        half[~half.any(axis=1)] = most[~half.any(axis=1)]
        return half

    def averaging(self, device: torch.device | str) -> Averaging | None:
        """What averages over the rows of each recording; None where rows are scored."""
        if self.per == "row":
            return None
        return Averaging(torch.from_numpy(self.place).to(device), len(self))

    def where(self, kept: NDArray[np.bool_]) -> LabeledPart:
        """Only those of the scored; kept: (scored,)."""
        return replace(self, rows=self.rows.where(kept[self.place]))


class Averaging:
    """(members, rows, …) -> (members, recordings, …), the mean over the rows of each."""

    def __init__(self, place: Tensor, recordings: int) -> None:
        """place: (rows,) the number of each row's recording."""
        self.place, self.recordings = place, recordings
        self.counts = torch.bincount(place, minlength=recordings).double()

    def __call__(self, x: Tensor) -> Tensor:
        """Sums are in float64, so that their order does not matter."""
        made = []
        for own in x:
            total = x.new_zeros((self.recordings, *own.shape[1:]), dtype=torch.float64)
            total = total.index_add(0, self.place, own.double())
            made.append((total / self.counts.view(-1, *[1] * (own.ndim - 1))).to(x.dtype))
        return torch.stack(made)


def rows_with_label(frames: Frames, split: int, *, leads_at_once: bool = False) -> Instances:
    """Instances of a part that have a label: of one lead, or of all leads at once."""
    every = instances(frames, of="lead", views=single(), split=split, leads_at_once=leads_at_once)
    labeled = every.where(frames.has_label[every.frame])
    if not len(labeled):
        raise SettingError(
            f"the {PARTS[split]} part of {frames.dataset} has no labeled frames; evaluation "
            "needs labels in all three parts"
        )
    return labeled


def choose_rows(
    frames: Frames, rows: Instances, seed: int, share: LabeledShare
) -> NDArray[np.bool_]:
    """(rows,) which to learn from: the same for every method, smaller shares within larger ones."""
    if share.by == "patient":
        keys = keys_of(frames.patient_ids)[frames.patient[rows.frame]]
    else:
        keys = keys_of(frames.recording_ids)[frames.recording[rows.frame]]
        if share.by != "recording":
            keys = row_keys(keys, frames.segment[rows.frame], keys_of(frames.leads)[rows.lead])
    return labeled_subset(
        keys,
        dataset=frames.dataset,
        split_seed=frames.split_seed,
        seed=seed,
        fraction=share.fraction,
        by=share.by,
    )
