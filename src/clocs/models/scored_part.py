"""The labeled recordings of a part as a classifier sees them: vectors, logits and targets."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from clocs.evaluation.labeled_rows import LabeledPart, rows_with_label
from clocs.evaluation.recording_vectors import RecordingVectors
from clocs.frames.frames import ABSENT, Frames
from clocs.models.classifier import Classifier
from clocs.models.quality import signal_quality
from clocs.training.embed import AT_ONCE


@dataclass(frozen=True)
class ScoredPart:
    """Recordings of one part of a labeled store, in order, by one classifier."""

    part: LabeledPart
    vectors: NDArray[np.float32]  # (members, recordings, dim) the mean over the rows of each
    logits: NDArray[np.float64]  # (recordings, classes)
    quality: NDArray[np.float64]  # (recordings,) of the signals, from 0 to 1

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
        rows = self.part.where(kept)
        return ScoredPart(rows, self.vectors[:, kept], self.logits[kept], self.quality[kept])


def labeled_part(classifier: Classifier, frames: Frames, split: int) -> LabeledPart:
    """The labeled recordings of a part, cut into the rows that the encoders see."""
    leads = classifier.encoders[0].encoder.leads
    own = frames.for_leads(leads) if leads else frames
    return LabeledPart(own, rows_with_label(own, split, leads_at_once=bool(leads)), "recording")


def score_part(
    classifier: Classifier,
    part: LabeledPart,
    device: torch.device | str = "cpu",
    vectors: RecordingVectors | None = None,
) -> ScoredPart:
    """What the classifier makes of a part; `vectors` are by its encoders, as far as known."""
    found = (vectors or RecordingVectors(classifier.encoders, device)).of(part)
    logits = classifier.logits(found).numpy()
    return ScoredPart(part, found.float().numpy(), logits, quality_of(part, device))


def quality_of(part: LabeledPart, device: torch.device | str = "cpu") -> NDArray[np.float64]:
    """(scored,) the mean quality of the signals of each recording, over its frames and leads."""
    spec, starts = part.frames.spec, torch.from_numpy(part.rows.in_view())
    place = torch.from_numpy(part.place)
    if starts.ndim > 1:
        place = place[:, None].expand(starts.shape)
    there = starts != ABSENT
    starts, place = starts[there], place[there]
    windows = torch.from_numpy(part.frames.signals).unfold(0, spec.samples, 1)
    found = [
        signal_quality(windows[some].to(device), spec.rate).double().cpu()
        for some in starts.split(AT_ONCE)
    ]
    total = torch.bincount(place, torch.cat(found), minlength=len(part))
    return np.asarray((total / torch.bincount(place, minlength=len(part))).numpy())
