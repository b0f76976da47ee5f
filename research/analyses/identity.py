"""What carries identity and what carries disease: each removed, and both measured.

On training patients we learn the directions in which people differ and those in which diagnoses
differ (`directions`). Some are removed from all vectors. Then everything is learned anew from what
is left, on training patients, and measured on test patients: how often the second half of a
recording is found by its first half, and how well a linear readout finds the diagnoses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from clocs.evaluation import metrics
from clocs.evaluation.bootstrap import check_resamples
from clocs.frames.frames import Frames
from clocs.frames.splits import PARTS
from clocs.training.checkpoint import Checkpoint, check_no_leak
from research.analyses.directions import (
    Directions,
    disease_directions,
    identity_directions,
    random_directions,
    standardized_by,
)
from research.analyses.frame_vectors import (
    FrameVectors,
    about,
    auc_draws,
    embed_frames,
    with_interval,
    without_copies,
)
from research.analyses.privacy import found_again, one_pair_each

PENALTIES = tuple(10.0**k for k in range(-5, 3))  # of the mean variance of a dimension
REMOVED = (1, 4, 16, 64, 256)


def identity_and_disease(
    checkpoint: Checkpoint,
    frames: Frames,
    *,
    removed: Sequence[int] = REMOVED,
    resamples: int = 1000,
    device: torch.device | str = "cpu",
    progress: Callable[[str], None] = lambda done: None,
) -> dict[str, Any]:
    """Search and diagnosis on test patients with directions of identity, or of disease, removed.

    Args:
        checkpoint: An encoder.
        frames: Labeled frames, cut as the encoder expects them, at least two per recording.
        removed: Numbers of directions to remove; those that are too large are left out. Of
            disease, all directions are removed at last.
        resamples: Draws of the bootstrap of the AUC over patients.
        device: Where to compute.
        progress: Called with what was measured, such as 'identity 8'.

    Returns:
        Rows with what was removed, how many directions, and the scores; and settings.
    """
    check_resamples(resamples)
    check_no_leak(checkpoint, frames)
    found = without_copies(embed_frames(checkpoint, frames, device=device), frames)
    return {
        "analysis": "identity and disease",
        "dataset": frames.dataset,
        "split_seed": frames.split_seed,
        "leads": list(frames.leads),
        "frame": frames.spec.to_dict(),
        "encoders": [about(checkpoint)],
        **identity_and_disease_of_vectors(
            found, removed=removed, resamples=resamples, device=device, progress=progress
        ),
    }


def identity_and_disease_of_vectors(
    found: FrameVectors,
    *,
    removed: Sequence[int] = REMOVED,
    resamples: int = 1000,
    device: torch.device | str = "cpu",
    progress: Callable[[str], None] = lambda done: None,
) -> dict[str, Any]:
    """As `identity_and_disease`, of vectors of frames of all three parts."""
    check_resamples(resamples)
    (found,) = standardized_by(found.part("train"), found)
    means = _Means.of(found)
    identity = identity_directions(*means.learned)
    disease = disease_directions(means.recordings[0])
    kinds = {
        "identity": identity,
        "disease": disease,
        "random": random_directions(identity),
    }
    rows = [{"removed": "nothing", "directions": 0} | means.measured(resamples, device)]
    progress("nothing")
    for name, directions in kinds.items():
        most = min(found.vectors.shape[1] - 1, len(directions))
        counts = {count for count in removed if count <= most}
        for count in sorted(counts | {most} if name == "disease" else counts):
            scores = means.without(directions, count).measured(resamples, device)
            rows.append({"removed": name, "directions": count} | scores)
            progress(f"{name} {count}")
    return {
        "dim": found.vectors.shape[1],
        "disease_directions": len(disease),
        "identity_ratios": [float(one) for one in identity.ratio[:20]],
        "disease_ratios": [float(one) for one in disease.ratio],
        "train_recordings": len(means.recordings[0]),
        "resamples": resamples,
        "rows": rows,
    }


@dataclass(frozen=True)
class _Means:
    """What is measured: means of frames, which removing directions commutes with."""

    learned: tuple[FrameVectors, ...]  # first and second halves, of training patients
    searched: tuple[FrameVectors, ...]  # the same of test patients
    recordings: tuple[FrameVectors, ...]  # of training, validation and test patients

    @classmethod
    def of(cls, found: FrameVectors) -> _Means:
        parts = [found.part(name) for name in PARTS]
        return cls(
            one_pair_each(parts[0]),
            one_pair_each(parts[2]),
            tuple(part.by_recording().labeled() for part in parts),
        )

    def without(self, directions: Directions, count: int) -> _Means:
        """The same without the first `count` directions."""

        def left(rows: FrameVectors) -> FrameVectors:
            return replace(rows, vectors=directions.remove(rows.vectors, count))

        own = (self.learned, self.searched, self.recordings)
        return _Means(*(tuple(map(left, many)) for many in own))

    def measured(self, resamples: int, device: torch.device | str) -> dict[str, Any]:
        """Search and diagnosis by what is left."""
        first, second = (rows.vectors for rows in self.searched)
        metric = identity_directions(*self.learned)
        search = {}
        for way, pair in {
            "cosine": (first, second),
            "trained": (metric.weighted(first), metric.weighted(second)),
        }.items():
            row = found_again(*pair, sizes=(), device=device)[0]
            search[way] = {name: row[name] for name in ("size", "top1", "top10", "top1_chance")}
        scores = ridge_scores(*self.recordings)
        found = auc_draws(scores[None], self.recordings[2], resamples=resamples)
        return {"search": search, "diagnosis": with_interval(found)}


def ridge_scores(
    train: FrameVectors, validation: FrameVectors, rows: FrameVectors
) -> NDArray[np.float64]:
    """(rows, classes) by least squares with the L2 penalty that does best on validation.

    One decomposition serves all penalties, where a logistic regression would be solved for each.
    """
    own = train.labeled()
    mean, labels = own.vectors.mean(axis=0), own.target - own.target.mean(axis=0)
    x = (own.vectors - mean).astype(np.float64)
    variance, axes = np.linalg.eigh(x.T @ x / len(x))
    slope = axes.T @ (x.T @ labels) / len(x)
    strengths = variance.mean() * np.array(PENALTIES)[:, None, None]
    weights = axes @ (slope / (variance[:, None].clip(min=0) + strengths))
    known = validation.labeled()
    areas = [
        metrics.macro(metrics.auc_per_class((known.vectors - mean) @ one, known.target))
        for one in weights
    ]
    return np.asarray((rows.vectors - mean) @ weights[int(np.nanargmax(areas))], np.float64)
