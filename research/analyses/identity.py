"""Identity and disease: how often patients are found again, and what removing either one costs.

On training patients we learn the directions in which people differ and those in which diagnoses
differ (`directions`). Some are removed from all vectors. Then everything is learned anew from what
is left and measured on patients whom the encoder has never seen: how often they are found
(`search`), and how well a linear readout finds the diagnoses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from clocs.errors import SettingError
from clocs.evaluation import metrics
from clocs.evaluation.bootstrap import check_resamples
from clocs.frames.frames import Frames
from clocs.frames.splits import PARTS, keys_of
from clocs.training.checkpoint import Checkpoint, seen_patients
from research.analyses.directions import (
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
from research.analyses.search import ANOTHER_DAY, HALVES, Pairs, one_pair_each, pairs_of

PENALTIES = tuple(10.0**k for k in range(-5, 3))  # of the mean variance of a dimension
REMOVED = (1, 4, 16, 64, 256)
SICK, WELL = "Myocardial infarction", "Healthy control"  # told apart in another dataset
FOLDS = 5


def identity_and_disease(
    encoder: Checkpoint | str,
    learned: Frames,
    searched: Frames | None = None,
    *,
    days: NDArray[np.float64] | None = None,
    besides: Sequence[Checkpoint] = (),
    removed: Sequence[int] = REMOVED,
    resamples: int = 2000,
    device: torch.device | str = "cpu",
) -> dict[str, Any]:
    """Search and diagnosis of unseen patients, with directions of identity or disease removed.

    Args:
        encoder: An encoder, or the name of a control.
        learned: Labeled frames, cut as the encoder expects them, at least two per recording: on its
            training patients directions are learned.
        searched: Frames of another dataset, whose patients are searched for; the test patients of
            `learned` by default.
        days: (recordings of `searched`,) when each was recorded; nan where unknown.
        besides: Encoders whose training patients are left out as well.
        removed: Numbers of directions to remove; those that are too large are left out. Of
            disease, all directions are removed at last.
        resamples: Draws of the bootstrap over patients.
        device: Where to compute.

    Returns:
        How often patients are found, by kind of pair; rows with what was removed, how many
        directions, and the scores; and settings.
    """
    check_resamples(resamples)
    frames = learned if searched is None else searched
    found = without_copies(embed_frames(encoder, learned, device=device), learned)
    own = found.part("test")
    if searched is not None:
        own = without_copies(embed_frames(encoder, searched, device=device), searched)
    seen = np.zeros(len(frames.patient_ids), np.bool_)
    for one in (*besides, encoder):
        if isinstance(one, Checkpoint):
            seen |= seen_patients(one, frames)
    unseen = own.where(~seen[own.patient])
    if not len(unseen):
        raise SettingError(f"the encoders have seen all these patients of {frames.dataset}")
    if isinstance(encoder, Checkpoint):  # controls learn nothing, not even a mean
        found, unseen = standardized_by(found.part("train"), found, unseen)
        if searched is not None:
            (unseen,) = standardized_by(unseen, unseen)
    return {
        "analysis": "identity and disease",
        "dataset": frames.dataset,
        "learned_on": learned.dataset,
        "split_seed": frames.split_seed,
        "leads": list(frames.leads),
        "frame": frames.spec.to_dict(),
        "encoders": [about(encoder)],
        "patients": len(np.unique(unseen.patient)),
        "patients_seen": len(np.unique(own.patient[seen[own.patient]])),
        **of_vectors(found, unseen, days=days, removed=removed, resamples=resamples),
    }


def of_vectors(
    found: FrameVectors,
    searched: FrameVectors,
    *,
    days: NDArray[np.float64] | None = None,
    removed: Sequence[int] = REMOVED,
    resamples: int = 2000,
) -> dict[str, Any]:
    """As `identity_and_disease`, of vectors of frames: of all parts, and of those searched for."""
    same = found.dataset == searched.dataset
    parts = [found.part(name).by_recording().labeled() for name in PARTS[:2]]
    diagnosed = (*parts, searched.by_recording().labeled()) if same else (two_diagnoses(searched),)
    every = Measured(one_pair_each(found.part("train")), pairs_of(searched, days), diagnosed)
    kind = ANOTHER_DAY if ANOTHER_DAY in every.pairs else HALVES
    identity = identity_directions(*every.learned)
    kinds = {"identity": identity, "random": random_directions(identity)}
    if same:
        kinds["disease"] = disease_directions(parts[0])
    rows = [{"removed": "nothing", "directions": 0} | every.scores(kind, resamples)]
    for name, directions in kinds.items():
        most = min(found.vectors.shape[1] - 1, len(directions))
        counts = {count for count in removed if count <= most}
        for count in sorted(counts | {most} if name == "disease" else counts):
            left = every.changed(partial(directions.remove, count=count))
            scores = left.scores(kind, resamples)
            rows.append({"removed": name, "directions": count} | scores)
    return {
        "dim": found.vectors.shape[1],
        "resamples": resamples,
        "searched_by": kind,
        "pairs": {name: every.search(name, resamples) for name in every.pairs},
        "rows": rows,
    }


@dataclass(frozen=True)
class Measured:
    """What is measured: means of frames, which removing directions commutes with."""

    learned: tuple[FrameVectors, ...]  # first and second halves, of training patients
    pairs: Mapping[str, Pairs]  # of patients searched for
    diagnosed: tuple[FrameVectors, ...]  # recordings of three parts, or patients to cross-validate

    def changed(self, change: Callable[[NDArray[Any]], NDArray[Any]]) -> Measured:
        """The same with other vectors."""

        def all_of(many: tuple[FrameVectors, ...]) -> tuple[FrameVectors, ...]:
            return tuple(replace(rows, vectors=change(rows.vectors)) for rows in many)

        pairs = {name: own.changed(change) for name, own in self.pairs.items()}
        return Measured(all_of(self.learned), pairs, all_of(self.diagnosed))

    def search(self, kind: str, resamples: int) -> dict[str, Any]:
        """By cosine, and by a metric that was trained on the halves of others."""
        metric, own = identity_directions(*self.learned), self.pairs[kind]
        ways = {"cosine": own, "trained": own.changed(metric.weighted)}
        return {way: pairs.found(resamples) for way, pairs in ways.items()}

    def scores(self, kind: str, resamples: int) -> dict[str, Any]:
        """Search and diagnosis by what is left."""
        own, rows = self.diagnosed, self.diagnosed[-1]
        scores = ridge_scores(*own) if len(own) > 1 else cross_validated(rows)
        found = auc_draws(scores[None], rows, resamples=resamples)
        return {"search": self.search(kind, resamples), "diagnosis": with_interval(found)}


def two_diagnoses(found: FrameVectors) -> FrameVectors:
    """One vector per patient who is `SICK` or `WELL`, with the first as the only label."""
    people = replace(found, recording=found.patient).by_recording()
    sick, well = (people.target[:, people.labels.index(name)] for name in (SICK, WELL))
    people = replace(people, target=sick[:, None], labels=(SICK,))
    return people.where(np.flatnonzero(sick | well))


def cross_validated(rows: FrameVectors) -> NDArray[np.float64]:
    """(rows, classes) of each patient, learned on others; folds are a hash of the patient."""
    keyed = [f"fold:{rows.dataset}:{rows.patient_ids[one]}" for one in rows.patient]
    fold = (keys_of(keyed) % FOLDS).astype(np.int64)
    scores = np.zeros(rows.target.shape)
    for test in range(FOLDS):
        apart = (fold - test) % FOLDS  # 0: tested, 1: validated on
        parts = [rows.where(np.flatnonzero(own)) for own in (apart > 1, apart == 1, apart == 0)]
        scores[apart == 0] = ridge_scores(*parts)
    return scores


def ridge_scores(
    train: FrameVectors, validation: FrameVectors, rows: FrameVectors
) -> NDArray[np.float64]:
    """(rows, classes) by least squares with the L2 penalty that does best on validation.

    One decomposition serves all penalties, where a logistic regression would be solved for each.
    """
    mean, labels = train.vectors.mean(axis=0), train.target - train.target.mean(axis=0)
    x = (train.vectors - mean).astype(np.float64)
    variance, axes = np.linalg.eigh(x.T @ x / len(x))
    slope = axes.T @ (x.T @ labels) / len(x)
    strengths = variance.mean() * np.array(PENALTIES)[:, None, None]
    weights = axes @ (slope / (variance[:, None].clip(min=0) + strengths))
    areas = [
        metrics.macro(metrics.auc_per_class((validation.vectors - mean) @ one, validation.target))
        for one in weights
    ]
    return np.asarray((rows.vectors - mean) @ weights[int(np.nanargmax(areas))], np.float64)
