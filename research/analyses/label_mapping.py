"""Another hospital: a classifier learned on one dataset, tested on another, by shared labels.

The table says which labels of datasets mean the same. Definitions differ all the same: Chapman's
AFIB and Cardiology's include flutter, which PhysioNet 2017's A does not. A normal ECG is normal in
every respect in PhysioNet 2020, but Chapman's SR is about the rhythm alone, so the concept loses
more between these two than the encoder does. Labels that overlap in part only (GSVT, which has
sinus tachycardia among it, and SVT) have no row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from clocs.errors import SettingError
from clocs.evaluation.bootstrap import (
    Resampling,
    check_resamples,
    clipped_interval,
    macro_auc_draws,
)
from clocs.evaluation.metrics import auc
from clocs.frames.frames import Frames
from clocs.training.checkpoint import Checkpoint, check_no_leak, copies_of_seen
from research.analyses.frame_vectors import (
    AcrossLeads,
    FrameVectors,
    about,
    embed_frames,
    fit_readout,
    probabilities,
)

_NOISE = {"physionet2017": ("~",), "cardiology": ("NOISE",)}


@dataclass(frozen=True)
class Concept:
    """A diagnosis, and what datasets call it."""

    name: str
    labels: Mapping[str, tuple[str, ...]]  # by dataset; one without it has no such label
    # by dataset, labels of recordings that may or may not have it, which are not scored
    unclear: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


CONCEPTS: Final = (
    Concept(
        "atrial fibrillation",
        {
            "chapman": ("AFIB",),
            "physionet2020": ("AF",),
            "physionet2017": ("A",),
            "cardiology": ("AFIB",),
        },
        unclear=_NOISE,
    ),
    Concept(
        "normal",
        {
            "chapman": ("SR",),
            "physionet2020": ("Normal",),
            "physionet2017": ("N",),
            "cardiology": ("NSR",),
        },
        unclear=_NOISE,
    ),
    Concept("noise", _NOISE),
)


def shared_concepts(one: str, other: str) -> tuple[Concept, ...]:
    """The concepts that two datasets have labels of."""
    return tuple(c for c in CONCEPTS if one in c.labels and other in c.labels)


def score_shared(
    chances: NDArray[np.float64],
    *,
    classes: Sequence[str],
    multilabel: bool,
    trained_on: str,
    targets: NDArray[np.uint8],
    labels: Sequence[str],
    tested_on: str,
    patient: NDArray[np.integer],
    patient_ids: Sequence[str],
    seeds: Sequence[int] = (0,),
    concepts: Sequence[Concept] | None = None,
    resamples: int = 2000,
) -> dict[str, Any]:
    """The AUC of each concept that two datasets share, their mean, and intervals over patients.

    Args:
        chances: (seeds, rows, classes) probabilities by classifiers of the one dataset.
        classes: Names of those classes.
        multilabel: Whether these are independent of each other (sigmoids), not one of them.
        trained_on: The dataset that the classifiers learned on.
        targets: (rows, labels) labels of the rows, which are of the other dataset.
        labels: Names of those labels.
        tested_on: The other dataset.
        patient: (rows,) index into `patient_ids`.
        patient_ids: Patients of the other dataset.
        seeds: One per classifier.
        concepts: Those to score; all that both datasets have by default.
        resamples: Draws of the bootstrap over seeds and patients.

    Raises:
        SettingError: The datasets share no concept.
    """
    concepts = shared_concepts(trained_on, tested_on) if concepts is None else concepts
    if not concepts:
        names = sorted({name for c in CONCEPTS for name in c.labels})
        raise SettingError(
            f"{trained_on} and {tested_on} have no labels that mean the same; choose two of "
            f"{', '.join(names)}"
        )
    who, number = np.unique(patient, return_inverse=True)
    ids = [patient_ids[one] for one in who]
    plan = Resampling.of(tested_on, ids, seeds, resamples=resamples)
    found, mean, draws = {}, [], []
    for concept in concepts:
        known = _any(targets, labels, labels) & ~_any(
            targets, labels, concept.unclear.get(tested_on, ())
        )
        has = _any(targets, labels, concept.labels[tested_on])[known]
        score = _chance(chances, classes, concept.labels[trained_on], multilabel)[:, known]
        areas = [auc(own[has], own[~has]) for own in score]
        own_draws = macro_auc_draws(
            score[..., None], has[:, None].astype(np.uint8), number[known], plan
        )
        draws.append(own_draws)
        mean.append(np.mean(areas))
        found[concept.name] = {
            "auc": _defined(np.mean(areas)),
            "auc_per_seed": [_defined(area) for area in areas],
            "ci95": clipped_interval(own_draws),
            "label_trained": list(concept.labels[trained_on]),
            "label_tested": list(concept.labels[tested_on]),
            "positives": int(has.sum()),
            "negatives": int((~has).sum()),
            "unclear": int((~known).sum()),
        }
    return {
        "trained_on": trained_on,
        "tested_on": tested_on,
        "auc": _defined(np.mean(mean)),
        "ci95": clipped_interval(np.mean(draws, axis=0)),
        "concepts": found,
        "patients": len(ids),
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

    Recordings are scored, each by the mean of its frames. Where the datasets have other leads,
    vectors of single leads are averaged instead of put side by side. No patient that is tested was
    seen by the encoder or by the readout, nor was a copy of their recording.

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
    across: AcrossLeads = "side by side" if trained.leads == tested.leads else "mean"
    chances: list[list[NDArray[np.float64]]] = [[], []]
    scored: list[FrameVectors] = []
    for checkpoint in checkpoints:
        for frames in (trained, tested):
            check_no_leak(checkpoint, frames)
        own = {
            name: embed_frames(
                checkpoint, trained, split=name, across_leads=across, device=device
            ).by_recording()
            for name in ("train", "validation", "test")
        }
        other = embed_frames(checkpoint, tested, split="test", across_leads=across, device=device)
        fitted = fit_readout(own["train"], own["validation"], device)
        scored = [
            _unseen(own["test"], trained, checkpoints, ()),
            _unseen(other.by_recording(), tested, checkpoints, trained.digests),
        ]
        for rows, so_far in zip(scored, chances, strict=True):
            so_far.append(probabilities(fitted, rows, multilabel=trained.multilabel))
    made: dict[str, Any] = {}
    for name, rows, stacked in zip(("same", "other"), scored, chances, strict=True):
        made[name] = score_shared(
            np.stack(stacked),
            classes=trained.labels,
            multilabel=trained.multilabel,
            trained_on=trained.dataset,
            targets=rows.target,
            labels=rows.labels,
            tested_on=rows.dataset,
            patient=rows.patient,
            patient_ids=rows.patient_ids,
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
        "across_leads": across if not checkpoints[0].encoder.leads else None,
        "readout": "logistic regression per recording, L2 chosen on validation patients",
        **made,
    }


def _defined(value: np.floating | float) -> float | None:
    """JSON has no nan."""
    return None if np.isnan(value) else float(value)


def _unseen(
    rows: FrameVectors,
    frames: Frames,
    checkpoints: Sequence[Checkpoint],
    known: NDArray[np.uint64] | tuple[()],
) -> FrameVectors:
    """Without copies of what was trained on."""
    copies = copies_of_seen(checkpoints, frames) | np.isin(frames.digests, known)
    return rows.where(~copies[rows.recording]).labeled()


def _any(
    targets: NDArray[np.uint8], labels: Sequence[str], wanted: Sequence[str]
) -> NDArray[np.bool_]:
    """(rows,) whether a row has one of the labels."""
    columns = [i for i, label in enumerate(labels) if label in wanted]
    return np.asarray(targets[:, columns].any(axis=1), np.bool_)


def _chance(
    chances: NDArray[np.float64], classes: Sequence[str], wanted: Sequence[str], multilabel: bool
) -> NDArray[np.float64]:
    """(seeds, rows) that one of the classes holds."""
    absent = [label for label in wanted if label not in classes]
    if absent:
        raise SettingError(
            f"the classifier has no class {absent[0]}, but {', '.join(classes)}; give the classes "
            "as the dataset names them"
        )
    own = chances[..., [list(classes).index(label) for label in wanted]]
    if multilabel:  # as if they were independent
        return np.asarray(1 - (1 - own).prod(axis=-1))
    return np.asarray(own.sum(axis=-1))
