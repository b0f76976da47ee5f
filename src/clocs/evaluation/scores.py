"""Test scores: of all patients, and by sex and age."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clocs.evaluation import metrics
from clocs.evaluation.bootstrap import interval, macro_auc_draws
from clocs.evaluation.predictions import Predictions
from clocs.evaluation.resampling import Resampling
from clocs.frames.frames import SEXES

AGES = (18, 40, 60, 80)  # years at which the next age group begins


def overall_scores(
    predictions: Predictions,
    logits: NDArray[np.float64],
    draws: NDArray[np.float64] | None,
) -> dict[str, Any]:
    """The fields of `Evaluation` that are scores; logits: (members, rows, classes)."""
    p, targets = predictions, predictions.targets
    per_class = {
        "auc": [metrics.auc_per_class(s, targets) for s in p.probabilities],
        "ap": [metrics.average_precision(s, targets) for s in p.probabilities],
        "f1": [
            metrics.f1_per_class(s, targets, thresholds)
            for s, thresholds in zip(p.probabilities, p.thresholds, strict=True)
        ],
    }
    recordings = [metrics.by_recording(s, targets, p.recording) for s in p.probabilities]
    per_seed = {name: [metrics.macro(v) for v in values] for name, values in per_class.items()} | {
        "auc_recording": [metrics.macro(metrics.auc_per_class(*one)) for one in recordings],
        "ap_recording": [metrics.macro(metrics.average_precision(*one)) for one in recordings],
        "auc_logits": [metrics.macro(metrics.auc_per_class(z, targets)) for z in logits],
        "accuracy": [
            metrics.accuracy(s, targets, thresholds, multilabel=p.multilabel)
            for s, thresholds in zip(p.probabilities, p.thresholds, strict=True)
        ],
    }
    means = {
        name: dict(zip(p.labels, np.mean(values, axis=0).tolist(), strict=True))
        for name, values in per_class.items()
    }
    return {
        **per_seed,
        **{f"{name}_mean": float(np.mean(values)) for name, values in per_seed.items()},
        **{f"{name}_per_class": values for name, values in means.items()},
        "auc_std": float(np.std(per_seed["auc"], ddof=1)) if len(p.seeds) > 1 else None,
        "ci95": None if draws is None else clipped_interval(draws),
        "undefined_classes": [label for label, v in means["auc"].items() if math.isnan(v)],
        "thresholds": dict(zip(p.labels, p.thresholds.T.tolist(), strict=True)),
        "test_patients": len(np.unique(p.patient)),
        "test_frames": len(p),
    }


def scores_by_sex_and_age(
    predictions: Predictions,
    sex: NDArray[np.int8],
    age: NDArray[np.float32],
    plan: Resampling | None,
) -> dict[str, Any]:
    """Scores of groups of test patients; sex: (rows,) index into `SEXES`, age: (rows,) or nan."""
    edges = (0, *AGES, math.inf)
    sexes = {name: sex == number for number, name in enumerate(SEXES) if number}
    ages = {
        f"{low}+" if high == math.inf else f"{low}–{high - 1}": (age >= low) & (age < high)
        for low, high in pairwise(edges)
    }

    def scored(parts: dict[str, NDArray[np.bool_]]) -> dict[str, dict[str, Any]]:
        return {
            name: _group(predictions.where(rows), plan)
            for name, rows in parts.items()
            if rows.any()
        }

    return {"by_sex": scored(sexes), "by_age": scored(ages)}


def _group(p: Predictions, plan: Resampling | None) -> dict[str, Any]:
    auc = np.stack([metrics.auc_per_class(s, p.targets) for s in p.probabilities])
    missing = np.isnan(auc).all(axis=0)
    around = None
    if plan is not None and not missing.all():
        around = clipped_interval(macro_auc_draws(p.probabilities, p.targets, p.patient, plan))
    return {
        "patients": len(np.unique(p.patient)),
        "frames": len(p),
        "auc_mean": float(np.mean([metrics.macro(values) for values in auc])),
        "ci95": around,
        "undefined_classes": [p.labels[c] for c in np.flatnonzero(missing)],
    }


def clipped_interval(draws: NDArray[np.float64]) -> list[float] | None:
    """The central 95 % of draws of an AUC; None where no draw has one."""
    if np.isnan(draws).all():
        return None
    return [min(max(end, 0.0), 1.0) for end in interval(draws)]  # the weights of seeds know no ends
