"""Folds: every patient that no encoder has learned from is tested on once, and all scores pooled.

The patients are put into parts by a hash, or by official folds. Each part is the test part once,
the next one is then the validation part, and all others are trained on, as are, always, the
patients that one of the encoders has learned from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from clocs.errors import LeakError, SettingError
from clocs.evaluation import metrics
from clocs.evaluation.groups import GroupResult, draws_and_groups, overall_scores
from clocs.evaluation.result import Predictions
from clocs.frames.frames import Frames
from clocs.frames.splits import keys_of
from clocs.training.checkpoint import Checkpoint, seen_patients

MIN_FOLDS = 3  # one to test on, one to validate on, one to train on
NumberOfFolds: TypeAlias = int | Literal["official"]


def divided(
    groups: Sequence[Sequence[Checkpoint]], frames: Frames, folds: NumberOfFolds
) -> dict[str, Frames]:
    """By name, the same frames once for each part of the unseen patients, which is tested on.

    Raises:
        SettingError: A part would have no labeled patient.
        LeakError: The encoders have learned from everybody.
    """
    seen = np.zeros(len(frames.patient_ids), np.bool_)
    for checkpoint in (one for group in groups for one in group):
        seen |= seen_patients(checkpoint, frames)
    labeled = np.zeros(len(seen), np.bool_)
    labeled[frames.patient[frames.has_label]] = True
    if not (labeled & ~seen).any():
        raise LeakError(
            f"the encoders were trained on every labeled patient of {frames.dataset}; evaluate on "
            "another dataset, or train on fewer patients"
        )
    names, part = _parts(frames, folds)
    part = np.where(seen, -1, part)
    if folds == "official":  # those that an encoder was trained on are not tested
        left = [place for place in range(len(names)) if (part == place).any()]
        names = [names[place] for place in left]
        part = np.array([left.index(place) if place in left else -1 for place in part.tolist()])
    if len(names) < MIN_FOLDS:
        raise SettingError(
            f"{len(names)} parts can be tested on, and `folds` needs {MIN_FOLDS}: to test, to "
            "validate and to train on; give a larger number"
        )
    sizes = np.bincount(part[labeled & (part >= 0)], minlength=len(names))
    if not sizes.all():
        raise SettingError(
            f"{frames.dataset} has {int(sizes.sum())} labeled patients that no encoder was "
            f"trained on, too few for {len(names)} `folds`: one part has none; give fewer"
        )
    made = {}
    for place, name in enumerate(names):
        split = np.zeros(len(part), np.int8)
        split[part == (place + 1) % len(names)] = 1
        split[part == place] = 2
        split = frames.without_copies(split[frames.patient])
        made[name] = replace(frames, split=split, folds={})
    return made


def _parts(frames: Frames, folds: NumberOfFolds) -> tuple[list[str], NDArray[np.int64]]:
    """Names of the parts, and (patients,) which each belongs to; -1 where to none."""
    if folds == "official":
        if not any(frames.fold):
            raise SettingError(
                f"{frames.dataset} has no official folds; give a number as `folds`, such as 5"
            )
        names = sorted(set(frames.fold) - {""}, key=lambda name: (len(name), name))
        return names, np.array([names.index(one) if one else -1 for one in frames.fold])
    if isinstance(folds, bool) or not isinstance(folds, int) or folds < MIN_FOLDS:
        raise SettingError(f"`folds` is {folds!r:.50}; give at least {MIN_FOLDS}, or 'official'")
    keyed = frames.keyed(frames.patient_ids)
    keys = keys_of(f"{frames.split_seed}:fold:{patient}" for patient in keyed)
    return [str(place + 1) for place in range(folds)], (keys % np.uint64(folds)).astype(np.int64)


def pooled(
    folds: Mapping[str, Frames],
    results: Sequence[GroupResult],
    *,
    resamples: int,
    device: torch.device | str = "cpu",
) -> GroupResult:
    """The results of one method, one per fold, as one over all tested patients.

    F1 and accuracy use each fold's own thresholds; those that are listed are their means.
    """
    frames, parts = next(iter(folds.values())), [one.predictions for one in results]
    predictions = _joined(parts)
    logits = np.concatenate([one.logits for one in results], axis=1)
    place = {name: i for i, name in enumerate(frames.recording_ids)}
    recording = np.array([place[name] for name in predictions.recording_ids])[predictions.recording]
    draws, by_group = draws_and_groups(predictions, frames, recording, resamples, device)
    first = results[0].evaluation
    evaluations = [one.evaluation for one in results]
    validation = np.mean([one.auc_validation for one in evaluations], axis=0)
    evaluation = replace(
        first,
        **overall_scores(predictions, logits, draws)
        | {"test_frames": sum(one.test_frames for one in evaluations)}
        | _thresholded(parts, predictions)
        | by_group,
        auc_validation=validation.tolist(),
        auc_validation_mean=float(validation.mean()),
        labeled=_mean_counts([one.labeled for one in evaluations]),
        labeled_validation=_mean_counts([one.labeled_validation for one in evaluations]),
        settings={
            name: value
            for name, value in first.settings.items()
            if all(one.settings.get(name) == value for one in evaluations)
        },
        left_out_copies=sum(one.left_out_copies for one in evaluations),
        curve=None,
        split=f"{len(folds)} folds",
        folds=[
            {
                "fold": name,
                "patients": one.test_patients,
                "frames": one.test_frames,
                "auc": one.auc,
                "auc_mean": one.auc_mean,
                "auc_recording_mean": one.auc_recording_mean,
                "undefined_classes": one.undefined_classes,
            }
            for name, one in zip(folds, evaluations, strict=True)
        ],
    )
    return GroupResult(evaluation, predictions, [], draws, logits)


def _mean_counts(by_fold: Sequence[Sequence[int]]) -> list[int]:
    """(folds, seeds) -> one per seed."""
    return [round(float(np.mean(own))) for own in zip(*by_fold, strict=True)]


def _joined(parts: Sequence[Predictions]) -> Predictions:
    """Predictions for all rows; patients and recordings of two parts are never the same."""
    first = parts[0]
    rows: dict[str, Any] = {}
    for name in ("patient", "recording"):
        before = np.cumsum([0, *(len(getattr(one, f"{name}_ids")) for one in parts)])
        shifted = [getattr(one, name) + before[i] for i, one in enumerate(parts)]
        rows[name] = np.concatenate(shifted)
        rows[f"{name}_ids"] = tuple(x for one in parts for x in getattr(one, f"{name}_ids"))
    for name in ("targets", "frame", "lead"):
        rows[name] = np.concatenate([getattr(one, name) for one in parts])
    thresholds = np.stack([one.thresholds for one in parts])
    known = np.maximum((~np.isnan(thresholds)).sum(axis=0), 1)
    mean = np.nansum(thresholds, axis=0) / known
    return replace(
        first,
        probabilities=np.concatenate([one.probabilities for one in parts], axis=1),
        thresholds=np.where(np.isnan(thresholds).all(axis=0), np.nan, mean),
        **rows,
    )


def _thresholded(parts: Sequence[Predictions], whole: Predictions) -> dict[str, Any]:
    """F1 and accuracy, each row by the thresholds of its own fold."""
    above = np.concatenate([one.probabilities - one.thresholds[:, None] for one in parts], axis=1)
    zero = np.where(np.isnan(whole.thresholds), np.nan, 0.0)
    f1 = [metrics.f1_per_class(own, whole.targets, at) for own, at in zip(above, zero, strict=True)]
    accuracy = [
        metrics.accuracy(
            own if whole.multilabel else scores, whole.targets, at, multilabel=whole.multilabel
        )
        for own, scores, at in zip(above, whole.probabilities, zero, strict=True)
    ]
    per_seed = {"f1": [metrics.macro(values) for values in f1], "accuracy": accuracy}
    return {
        **per_seed,
        **{f"{name}_mean": float(np.mean(values)) for name, values in per_seed.items()},
        "f1_per_class": dict(zip(whole.labels, np.mean(f1, axis=0).tolist(), strict=True)),
    }
