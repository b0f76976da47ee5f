"""The labelled recordings of a part as a classifier sees them: vectors, logits and targets."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from clocs.evaluation.labelled_rows import LabelledPart, rows_with_label
from clocs.frames.frames import Frames
from clocs.models.classifier import Classifier
from clocs.training.embed import embedded_pieces, expect_finite


@dataclass(frozen=True)
class ScoredPart:
    """Recordings of one part of a labelled store, in order, by one classifier."""

    part: LabelledPart
    vectors: NDArray[np.float32]  # (members, recordings, dim) the mean over the rows of each
    logits: NDArray[np.float64]  # (recordings, classes)

    @property
    def targets(self) -> NDArray[np.uint8]:
        """(recordings, classes)."""
        return self.part.targets

    @property
    def recording(self) -> NDArray[np.int32]:
        """(recordings,) index into the frames' `recording_ids`."""
        return self.part.frames.recording[self.part.frame]

    @property
    def patient(self) -> NDArray[np.int32]:
        """(recordings,) index into the frames' `patient_ids`."""
        return self.part.frames.patient[self.part.frame]

    def where(self, kept: NDArray[np.bool_]) -> ScoredPart:
        """Only those recordings."""
        return ScoredPart(self.part.where(kept), self.vectors[:, kept], self.logits[kept])


def labelled_part(classifier: Classifier, frames: Frames, split: int) -> LabelledPart:
    """The labelled recordings of a part, cut into the rows that the encoders see."""
    leads = classifier.encoders[0].encoder.leads
    own = frames.for_leads(leads) if leads else frames
    return LabelledPart(own, rows_with_label(own, split, leads_at_once=bool(leads)), "recording")


@torch.no_grad()
def score_part(
    classifier: Classifier, part: LabelledPart, device: torch.device | str = "cpu"
) -> ScoredPart:
    """Encode the rows of a part, some at a time, and average them over each recording.

    The layer on top is linear: what it makes of the mean vector of a recording is the mean of what
    it makes of the rows.
    """
    encoders = classifier.encoders
    place, count = torch.from_numpy(part.place).to(device), len(part)
    total, start = torch.zeros(0), 0
    for z in embedded_pieces(encoders, part.frames, part.rows, device):
        if not start:
            total = z.new_zeros((len(encoders), count, z.shape[-1]), dtype=torch.float64)
        total.index_add_(1, place[start : start + z.shape[1]], z.double())
        start += z.shape[1]
    rows = torch.bincount(place, minlength=count).double()
    vectors = expect_finite(total / rows[None, :, None])
    head = {name: tensor.double() for name, tensor in classifier.head.items()}
    logits = Classifier(classifier.card, encoders, head, {}).logits(vectors)
    return ScoredPart(part, vectors.float().cpu().numpy(), logits.cpu().numpy())
