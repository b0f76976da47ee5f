"""Another hospital: a classifier learned on one dataset, tested on another, by shared labels.

The table says which labels of datasets mean the same. Definitions differ all the same: Chapman's
AFIB and Cardiology's include flutter, which PhysioNet 2017's A does not. A normal ECG is normal in
every respect in PhysioNet 2020, but Chapman's SR is about the rhythm alone, so the concept loses
more between these two than the encoder does. Labels that overlap in part only (GSVT, which has
sinus tachycardia among it, and SVT) have no row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from clocs.errors import SettingError
from clocs.evaluation.bootstrap import check_resamples
from clocs.frames.frames import Frames
from clocs.training.checkpoint import Checkpoint, check_no_leak
from research.analyses.frame_vectors import (
    FrameVectors,
    Readouts,
    about,
    auc_draws,
    with_interval,
)

_NOISE = {"physionet2017": "~", "cardiology": "NOISE"}


@dataclass(frozen=True)
class Concept:
    """A diagnosis, and what datasets call it."""

    name: str
    labels: Mapping[str, str]  # by dataset; one without it has no such label
    # by dataset, the label of recordings that may or may not have it, which are not scored
    unclear: Mapping[str, str] = field(default_factory=dict)


_DATASETS = ("chapman", "physionet2020", "physionet2017", "cardiology")
CONCEPTS: Final = (
    Concept(
        "atrial fibrillation",
        dict(zip(_DATASETS, ("AFIB", "AF", "A", "AFIB"), strict=True)),
        _NOISE,
    ),
    Concept("normal", dict(zip(_DATASETS, ("SR", "Normal", "N", "NSR"), strict=True)), _NOISE),
    Concept("noise", _NOISE),
)


def shared_concepts(one: str, other: str) -> tuple[Concept, ...]:
    """The concepts that two datasets have labels of."""
    return tuple(c for c in CONCEPTS if one in c.labels and other in c.labels)


def score_shared(
    chances: NDArray[np.float64],
    rows: FrameVectors,
    *,
    classes: Sequence[str],
    trained_on: str,
    seeds: Sequence[int] = (0,),
    concepts: Sequence[Concept] | None = None,
    resamples: int = 2000,
) -> dict[str, Any]:
    """The AUC of each concept that two datasets share, and intervals over seeds and patients.

    Args:
        chances: (seeds, rows, classes) probabilities by classifiers of the one dataset.
        rows: What they are of, with labels of the other dataset.
        classes: Names of those classes.
        trained_on: The dataset that the classifiers learned on.
        seeds: One per classifier.
        concepts: Those to score; all that both datasets have by default.
        resamples: Draws of the bootstrap over seeds and patients.

    Raises:
        SettingError: The datasets share no concept.
    """
    tested_on = rows.dataset
    concepts = shared_concepts(trained_on, tested_on) if concepts is None else concepts
    if not concepts:
        names = sorted({name for c in CONCEPTS for name in c.labels})
        raise SettingError(
            f"{trained_on} and {tested_on} have no labels that mean the same; choose two of "
            f"{', '.join(names)}"
        )
    found = {}
    for concept in concepts:
        label, unclear = concept.labels[trained_on], concept.unclear.get(tested_on)
        if label not in classes:
            raise SettingError(
                f"the classifier has no class {label}, but {', '.join(classes)}; give the classes "
                "as the dataset names them"
            )
        known = rows.target.any(axis=1) & ~_has(rows, unclear)
        has = _has(rows, concept.labels[tested_on])
        target = has[:, None].astype(np.uint8)
        own = replace(rows, target=target, labels=(concept.name,)).where(known)
        score = chances[:, known, classes.index(label), None]
        scored = with_interval(auc_draws(score, own, seeds=seeds, resamples=resamples))
        found[concept.name] = scored | {
            "auc": None if np.isnan(scored["auc"]) else scored["auc"],
            "positives": int(has[known].sum()),
            "negatives": int((~has[known]).sum()),
            "unclear": int((~known).sum()),
        }
    return {
        "trained_on": trained_on,
        "tested_on": tested_on,
        "concepts": found,
        "patients": len(np.unique(rows.patient)),
        "seeds": list(seeds),
        "resamples": resamples,
    }


def other_hospital(
    checkpoints: Sequence[Checkpoint],
    trained: Frames,
    tested: Frames,
    *,
    resamples: int = 2000,
    device: torch.device | str = "cpu",
) -> dict[str, Any]:
    """A linear readout learned on one dataset, scored on test patients of it and of another.

    Recordings are scored, each by the mean of its frames. No patient that is tested was seen by the
    encoder or by the readout, nor was a copy of their recording.

    Args:
        checkpoints: Seeds of one method.
        trained: Labeled frames to learn on: its training and validation parts.
        tested: Frames of the other dataset, cut alike; its test part is scored.
        resamples: Draws of the bootstrap over seeds and patients.
        device: Where to compute.

    Returns:
        Scores by concept within the dataset (`same`) and on the other (`other`), and settings.
    """
    check_resamples(resamples)
    if trained.spec.samples != tested.spec.samples or trained.spec.seconds != tested.spec.seconds:
        raise SettingError(
            f"frames of {trained.dataset} have {trained.spec.seconds:g} s and those of "
            f"{tested.dataset} {tested.spec.seconds:g} s; cut both alike"
        )
    for checkpoint in checkpoints:
        check_no_leak(checkpoint, tested)
        if not checkpoint.encoder.leads and trained.leads != tested.leads:
            raise SettingError(
                f"vectors of {', '.join(trained.leads)} and of {', '.join(tested.leads)} cannot be "
                "compared; choose `leads` that both datasets have"
            )
    readouts = Readouts.fit(checkpoints, trained, device)
    made: dict[str, Any] = {}
    for name, frames in (("same", trained), ("other", tested)):
        rows, chances = readouts.scores(frames, trained.digests if name == "other" else ())
        made[name] = score_shared(
            chances,
            rows,
            classes=trained.labels,
            trained_on=trained.dataset,
            seeds=[one.card.seed for one in checkpoints],
            concepts=shared_concepts(trained.dataset, tested.dataset),
            resamples=resamples,
        )
    return {
        "analysis": "other hospital",
        "encoders": [about(one) for one in checkpoints],
        "frame": tested.spec.to_dict(),
        "split_seed": [trained.split_seed, tested.split_seed],
        "leads": [list(trained.leads), list(tested.leads)],
        "readout": "logistic regression per recording, L2 chosen on validation patients",
        **made,
    }


def _has(rows: FrameVectors, label: str | None) -> NDArray[np.bool_]:
    """(rows,) whether a row has the label."""
    return np.asarray(rows.target[:, [one == label for one in rows.labels]].any(axis=1), np.bool_)
