"""Scores of a classifier on test patients, as in its card; `clocs.evaluate_classifier`."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from clocs.errors import ClocsWarning, LeakError, SettingError
from clocs.evaluation import metrics
from clocs.evaluation.comparison import draws_of, plan_of
from clocs.evaluation.predictions import Predictions, numbered
from clocs.evaluation.recording_vectors import RecordingVectors
from clocs.evaluation.resampling import check_resamples
from clocs.evaluation.result import plain
from clocs.evaluation.scores import clipped_interval, scores_by_sex_and_age
from clocs.frames.folds import split_of
from clocs.frames.frames import Frames
from clocs.frames.make import leads_of_those, make_frames
from clocs.frames.views import ALL_LEADS
from clocs.models.calibration import calibration, probabilities
from clocs.models.classifier import Classifier, as_classifier
from clocs.models.classifier_card import ClassifierCard
from clocs.models.reference import distance
from clocs.models.scored_part import ScoredPart, labeled_part, score_part
from clocs.patients.embed import how_to_use
from clocs.recording import UNNAMED_LEAD
from clocs.store.store import Store, as_store
from clocs.training import leak_guard
from clocs.training.card import Card
from clocs.training.device import pick_device

TEST = leak_guard.TEST


def evaluate_classifier(
    classifier: Classifier | Path | str,
    store: Store | Path | str,
    *,
    label_names: Mapping[str, str] | None = None,
    leads: Sequence[str] | None = None,
    split: Literal["hash", "folds"] | None = None,
    test_folds: Sequence[str] | None = None,
    validation_folds: Sequence[str] | None = None,
    split_seed: int | None = None,
    resamples: int = 2000,
    device: str | None = None,
) -> dict[str, Any]:
    """Score a classifier on the test patients of a labeled store; nothing is trained.

    On the store that it was trained with, these are the scores of its card.

    Args:
        classifier: A classifier, or its file.
        store: Recordings with the same labels.
        label_names: What labels of the store are called in the classifier, where they differ.
        leads: By name; those that the classifier was trained on by default, as far as the store has
            them.
        split: Whether the 'hash' of patients or official 'folds' decide who is tested on; as in
            training by default, where it was on this dataset.
        test_folds: The folds to test on.
        validation_folds: The folds to validate on, which are left out.
        split_seed: Random seed for the patient split; that of training by default.
        resamples: Bootstrap resamples of patients; 0 for no intervals.
        device: 'cpu', 'cuda' …; the best available by default.

    Raises:
        SettingError: The labels of the store are others.
        LeakError: A test patient was trained on.
    """
    check_resamples(resamples)
    classifier, store = as_classifier(classifier), as_store(store)
    card, encoder = classifier.card, classifier.encoders[0].card
    _expect_labels(card, store, label_names or {})
    by = split_of(split, test_folds, validation_folds)
    known = next((one for one in encoder.trained_on if one.dataset == store.manifest.dataset), None)
    if known is not None:
        split_seed = known.split_seed if split_seed is None else split_seed
        by = (known.folds or "hash") if by is None else by
    frames = make_frames(
        store,
        spec=encoder.frame,
        leads=_leads(encoder, store) if leads is None else leads,
        split=by,
        split_seed=split_seed or 0,
    )
    frames = _with_labels(frames, card, label_names or {})
    return scores_on_test(classifier, frames, resamples=resamples, device=pick_device(device))


def _leads(encoder: Card, store: Store) -> list[str]:
    """Those of the classifier that the store has."""
    wanted = tuple(encoder.encoder.get("leads") or encoder.leads)
    found = leads_of_those(store, wanted)
    if not found:
        raise SettingError(
            f"the classifier reads {', '.join(wanted)}, and {store.path} has none of them; "
            f"{how_to_use(store, encoder.encoder.get('leads', ()))}"
        )
    missing = [lead for lead in wanted if lead not in found]
    if missing and found != [UNNAMED_LEAD]:
        warnings.warn(
            f"{store.path} has no lead {', '.join(missing)}: the classifier reads "
            f"{', '.join(found)} alone",
            ClocsWarning,
            stacklevel=3,
        )
    return found


def _expect_labels(card: ClassifierCard, store: Store, names: Mapping[str, str]) -> None:
    manifest = store.manifest
    own = [names.get(label, label) for label in manifest.labels]
    if sorted(own) != sorted(card.labels):
        raise SettingError(
            f"{store.path} has the labels {', '.join(own)}, and the classifier predicts "
            f"{', '.join(card.labels)}; give a store with the same, or say with `label_names` what "
            "they are called in the classifier"
        )
    if manifest.multilabel != card.multilabel:
        several = "several labels" if manifest.multilabel else "one label"
        raise SettingError(
            f"recordings of {store.path} can have {several}, unlike those that the classifier was "
            "trained on; give another store"
        )


def _with_labels(frames: Frames, card: ClassifierCard, names: Mapping[str, str]) -> Frames:
    """Targets in the order of the classifier's labels."""
    own = [names.get(label, label) for label in frames.labels]
    if tuple(own) == card.labels:
        return replace(frames, labels=card.labels)
    order = [own.index(label) for label in card.labels]
    return replace(frames, labels=card.labels, target=frames.target[:, order])


def scores_on_test(
    classifier: Classifier,
    frames: Frames,
    vectors: RecordingVectors | None = None,
    *,
    resamples: int = 2000,
    device: torch.device | str = "cpu",
) -> dict[str, Any]:
    """All scores of a classifier on the test part of frames that are cut as it sees them."""
    for one in classifier.encoders:
        leak_guard.check_no_leak(one, frames)
    test = labeled_part(classifier, frames, TEST)
    copies = leak_guard.copies_of_seen(classifier.encoders, frames)
    kept = ~copies[test.frames.recording[test.frame]]
    if not kept.any():
        raise LeakError(
            f"every test recording of {frames.dataset} is a copy of one that was trained on"
        )
    scored = score_part(classifier, test.where(kept), device, vectors)
    made = scores_of(classifier.card, scored, resamples=resamples, device=device)
    made["left_out_copies"] = int((~kept).sum())
    made["abstention"] = _abstention(classifier, scored)
    return made


def _abstention(classifier: Classifier, scored: ScoredPart) -> dict[str, Any] | None:
    """How many recordings are within the limits, and the scores of these; None without limits."""
    limits = classifier.card.limits
    if not (limits and classifier.reference):
        return None
    away = distance(classifier.reference, torch.from_numpy(scored.vectors)).numpy()
    noisy = scored.quality < limits.get("quality", -np.inf)
    far = away > limits.get("distance", np.inf)
    kept = ~(noisy | far)
    counts = {
        "coverage": float(kept.mean()),
        "recordings": int(kept.sum()),
        "too_noisy": int(noisy.sum()),
        "too_far": int(far.sum()),
    }
    if kept.any():
        p = predictions_of(classifier.card, scored.where(kept))
        counts |= _macro(p, _per_class(p))
    made: dict[str, Any] = plain(counts)
    return made


def _per_class(p: Predictions) -> dict[str, NDArray[np.float64]]:
    """(classes,) each."""
    chances, thresholds = p.probabilities[0], p.thresholds[0]
    return {
        "auc": metrics.auc_per_class(chances, p.targets),
        "ap": metrics.average_precision(chances, p.targets),
        "f1": metrics.f1_per_class(chances, p.targets, thresholds),
        **at_thresholds(chances, p.targets, thresholds),
    }


def _macro(p: Predictions, per_class: dict[str, NDArray[np.float64]]) -> dict[str, float]:
    right = metrics.accuracy(
        p.probabilities[0], p.targets, p.thresholds[0], multilabel=p.multilabel
    )
    means = {name: metrics.macro(per_class[name]) for name in ("auc", "ap", "f1")}
    return means | {"accuracy": right}


def scores_of(
    card: ClassifierCard,
    scored: ScoredPart,
    *,
    resamples: int,
    device: torch.device | str = "cpu",
) -> dict[str, Any]:
    """Scores of these recordings, ready for JSON."""
    p = predictions_of(card, scored)
    chances, thresholds = p.probabilities[0], p.thresholds[0]
    plan = plan_of(p, resamples, device) if resamples else None
    frames, recording = scored.part.frames, scored.recording
    groups = scores_by_sex_and_age(p, frames.sex[recording], frames.age[recording], plan)
    for some in groups.values():
        for group in some.values():
            group["recordings"] = group.pop("frames")
            group["auc"] = group.pop("auc_mean")
    per_class = _per_class(p)
    scores: dict[str, Any] = {
        "dataset": frames.dataset,
        "content": frames.content,
        "patients": len(np.unique(p.patient)),
        "recordings": len(p),
        **_macro(p, per_class),
        "ci95": None if plan is None else clipped_interval(draws_of(p, plan)),
        "per_class": {
            label: {name: float(values[c]) for name, values in per_class.items()}
            | {"recordings": int(p.targets[:, c].sum())}
            for c, label in enumerate(card.labels)
        },
        "confusion": confusion(chances, p.targets, thresholds, multilabel=card.multilabel),
        "calibration": calibration(
            scored.logits, np.array(card.temperature), p.targets, multilabel=card.multilabel
        ),
        **groups,
    }
    made: dict[str, Any] = plain(scores)
    return made


def predictions_of(card: ClassifierCard, scored: ScoredPart) -> Predictions:
    """Calibrated probabilities of these recordings, as paired tests and figures take them."""
    frames, encoder = scored.part.frames, card.encoders[0]
    chances = probabilities(scored.logits, np.array(card.temperature), multilabel=card.multilabel)
    nothing = np.zeros(len(chances), np.int64)
    return Predictions(
        method=encoder.method,
        pretrain=encoder.dataset,
        downstream=frames.dataset,
        content=frames.content,
        protocol=card.protocol,
        fraction=1.0,
        by="recording",
        split_seed=frames.split_seed,
        seeds=(0,),
        labels=card.labels,
        multilabel=card.multilabel,
        probabilities=chances[None],
        targets=scored.targets,
        thresholds=np.array([[np.nan if t is None else t for t in card.thresholds]]),
        **numbered("patient", scored.patient, frames.patient_ids),
        **numbered("recording", scored.recording, frames.recording_ids),
        leads=(ALL_LEADS,),
        frame=nothing.astype(np.int32),
        lead=nothing,
        per="recording",
    )


def at_thresholds(
    chances: NDArray[np.float64], targets: NDArray[np.uint8], thresholds: NDArray[np.float64]
) -> dict[str, NDArray[np.float64]]:
    """(classes,) sensitivity and specificity; nan where there is no threshold or nobody."""
    predicted, true = chances >= thresholds, targets.astype(bool)
    known = np.where(np.isnan(thresholds), np.nan, 1.0)
    with np.errstate(invalid="ignore", divide="ignore"):
        return {
            "sensitivity": known * (predicted & true).sum(axis=0) / true.sum(axis=0),
            "specificity": known * (~predicted & ~true).sum(axis=0) / (~true).sum(axis=0),
        }


def confusion(
    chances: NDArray[np.float64],
    targets: NDArray[np.uint8],
    thresholds: NDArray[np.float64],
    *,
    multilabel: bool,
) -> list[Any]:
    """Counts of recordings: rows are what is true, columns what is predicted.

    Multi-class: (classes, classes), predicted the most probable class. Multi-label: for each class
    [[neither, predicted only], [true only, both]], predicted from its threshold on.
    """
    true = targets.astype(bool)
    if not multilabel:
        found = np.zeros((targets.shape[1],) * 2, np.int64)
        np.add.at(found, (true.argmax(axis=1), chances.argmax(axis=1)), 1)
        return list(found.tolist())
    predicted = chances >= thresholds
    return [
        [
            [int((~t & ~p).sum()), int((~t & p).sum())],
            [int((t & ~p).sum()), int((t & p).sum())],
        ]
        for t, p in zip(true.T, predicted.T, strict=True)
    ]
