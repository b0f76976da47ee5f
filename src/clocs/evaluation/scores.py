"""Scoring: predictions -> an Evaluation, of all test patients and of groups of them.

Knows nothing about encoders or how the predictions came about.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from clocs.evaluation import metrics
from clocs.evaluation.bootstrap import interval, macro_auc_draws
from clocs.evaluation.predictions import Predictions
from clocs.frames.frames import SEXES, Frames

AGES = (18, 40, 60, 80)  # where groups of ages begin, years


def scores_of(
    predictions: Predictions,
    logits: NDArray[np.float64],
    *,
    resamples: int,
    device: torch.device | str = "cpu",
) -> dict[str, Any]:
    """The fields of `Evaluation` that are scores.

    Args:
        predictions: Of the test rows.
        logits: (members, rows, classes) of the same rows.
        resamples: Of patients, for the interval; 0 for none.
        device: Where to resample.
    """
    p, targets = predictions, predictions.targets
    members = range(len(p.seeds))
    auc = np.stack([metrics.auc_per_class(s, targets) for s in p.probabilities])
    precision = np.stack([metrics.average_precision(s, targets) for s in p.probabilities])
    f1 = np.stack(
        [metrics.f1_per_class(p.probabilities[m], targets, p.thresholds[m]) for m in members]
    )
    right = [
        metrics.accuracy(p.probabilities[m], targets, p.thresholds[m], multilabel=p.multilabel)
        for m in members
    ]
    recording = [
        metrics.macro(metrics.auc_per_class(*metrics.by_recording(s, targets, p.recording)))
        for s in p.probabilities
    ]
    of_logits = [metrics.macro(metrics.auc_per_class(z, targets)) for z in logits]
    macros = {
        name: [metrics.macro(v) for v in values] for name, values in _named(auc, precision, f1)
    }
    classes = {name: _by_label(p.labels, values) for name, values in _named(auc, precision, f1)}
    return {
        "auc": macros["auc"],
        "auc_mean": float(np.mean(macros["auc"])),
        "auc_std": float(np.std(macros["auc"], ddof=1)) if len(members) > 1 else None,
        "auc_recording": recording,
        "auc_recording_mean": float(np.mean(recording)),
        "auc_logits": of_logits,
        "auc_logits_mean": float(np.mean(of_logits)),
        "ci95": _interval(p, resamples, device),
        "auc_per_class": classes["auc"],
        "undefined_classes": [label for label, v in classes["auc"].items() if math.isnan(v)],
        "ap": macros["ap"],
        "ap_mean": float(np.mean(macros["ap"])),
        "ap_per_class": classes["ap"],
        "accuracy": right,
        "accuracy_mean": float(np.mean(right)),
        "f1": macros["f1"],
        "f1_mean": float(np.mean(macros["f1"])),
        "f1_per_class": classes["f1"],
        "thresholds": dict(zip(p.labels, p.thresholds.T.tolist(), strict=True)),
        "test_patients": len(np.unique(p.patient)),
        "test_frames": len(p),
    }


def groups_of(
    predictions: Predictions,
    frames: Frames,
    *,
    resamples: int,
    device: torch.device | str = "cpu",
) -> dict[str, Any]:
    """`by_sex` and `by_age`: scores of groups of the test patients, where sex or age are known."""
    sex = frames.sex[predictions.recording]
    age = frames.age[predictions.recording]
    edges = (0, *AGES, math.inf)
    sexes = {name: sex == number for number, name in enumerate(SEXES) if number}
    ages = {
        f"{low}+" if high == math.inf else f"{low}–{high - 1}": (age >= low) & (age < high)
        for low, high in pairwise(edges)
    }

    def scored(parts: dict[str, NDArray[np.bool_]]) -> dict[str, dict[str, Any]]:
        return {
            name: _group(predictions.where(rows), resamples, device)
            for name, rows in parts.items()
            if rows.any()
        }

    return {"by_sex": scored(sexes), "by_age": scored(ages)}


def _group(p: Predictions, resamples: int, device: torch.device | str) -> dict[str, Any]:
    auc = np.stack([metrics.auc_per_class(s, p.targets) for s in p.probabilities])
    missing = np.isnan(auc).all(axis=0)
    return {
        "patients": len(np.unique(p.patient)),
        "frames": len(p),
        "auc_mean": float(np.mean([metrics.macro(values) for values in auc])),
        "ci95": None if missing.all() else _interval(p, resamples, device),
        "undefined_classes": [p.labels[c] for c in np.flatnonzero(missing)],
    }


def _interval(p: Predictions, resamples: int, device: torch.device | str) -> list[float] | None:
    if not resamples:
        return None
    draws = macro_auc_draws(
        p.probabilities, p.targets, p.patient, resamples=resamples, device=device
    )
    return interval(draws)


def _named(
    auc: NDArray[np.float64], ap: NDArray[np.float64], f1: NDArray[np.float64]
) -> list[tuple[str, NDArray[np.float64]]]:
    return [("auc", auc), ("ap", ap), ("f1", f1)]


def _by_label(labels: tuple[str, ...], values: NDArray[np.float64]) -> dict[str, float]:
    """(seeds, classes) -> the mean over the seeds of each class."""
    return dict(zip(labels, values.mean(axis=0).tolist(), strict=True))
