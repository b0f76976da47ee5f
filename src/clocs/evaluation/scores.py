"""Test scores: of all patients, and by sex and age."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from clocs.errors import SettingError
from clocs.evaluation import metrics
from clocs.evaluation.bootstrap import Resampling, interval, macro_auc_draws
from clocs.evaluation.labeled import LabeledPart
from clocs.evaluation.noise import parse_noise, with_noise
from clocs.evaluation.result import Predictions, numbered
from clocs.frames.frames import ABSENT, SEXES
from clocs.frames.splits import PARTS

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


@dataclass(frozen=True)
class Condition:
    """What test rows are seen through."""

    name: str  # for tables
    leads: tuple[str, ...] | None = None  # the others are absent; None: all that there are
    noise: str | None = None  # kind and dB, such as 'muscle:6'

    def applied(self, part: LabeledPart, device: torch.device | str) -> LabeledPart:
        """The test part under this condition."""
        if self.noise is not None:
            kind, snr_db = parse_noise(self.noise)
            noisy = with_noise(
                part.frames, kind, snr_db, split=PARTS[2], others=False, device=device
            )
            rows = part.rows
            starts, scale = noisy.starts[rows.frame], noisy.scale[rows.frame]
            if not rows.leads_at_once:
                each = np.arange(len(rows)), rows.lead
                starts, scale = starts[each][:, None], scale[each][:, None]
            part = replace(part, frames=noisy, rows=replace(rows, windows=starts, scale=scale))
        return part if self.leads is None else through_leads(part, self.leads)


AnyCondition: TypeAlias = Condition | tuple[str, Sequence[str] | None, str | None]


def as_condition(given: AnyCondition) -> Condition:
    """A condition, or (name, leads, noise)."""
    if isinstance(given, Condition):
        return given
    name, leads, noise = given
    if noise is not None:
        parse_noise(noise)
    return Condition(name, None if leads is None else tuple(leads), noise)


def through_leads(part: LabeledPart, leads: Sequence[str]) -> LabeledPart:
    """The rows that have one of these leads, without their other leads.

    Raises:
        SettingError: No row has one.
    """
    own, rows = part.frames.leads, part.rows
    known = np.array([lead in leads for lead in own])
    if rows.leads_at_once:
        windows = np.where(known, rows.windows, ABSENT)
        scale = np.where(known, rows.scale, np.float32(np.nan))
        kept = (windows != ABSENT).any(axis=1)
        rows = replace(rows, windows=windows, scale=scale)
    else:
        kept = known[rows.lead]
    if not kept.any():
        raise SettingError(
            f"no test frame of {part.frames.dataset} has one of the leads {', '.join(leads)}; the "
            f"encoder sees {', '.join(own)}"
        )
    return replace(part, rows=rows.where(kept))


def leads_of(part: LabeledPart) -> list[str]:
    """The leads that its rows have."""
    rows, leads = part.rows, part.frames.leads
    if not rows.leads_at_once:
        present = np.isin(np.arange(len(leads)), rows.lead)
    else:
        present = (rows.in_view() != ABSENT).any(axis=0)
    return [lead for lead, there in zip(leads, present, strict=True) if there]


def score_under(
    condition: Condition,
    part: LabeledPart,
    scores: NDArray[np.float64],
    copies: NDArray[np.bool_],
    *,
    seeds: Sequence[int],
    resamples: int,
    device: torch.device,
) -> dict[str, Any]:
    """Scores of one method under a condition; scores: (members, rows, classes)."""
    frames = part.frames
    kept = ~copies[frames.recording[part.frame]]
    scores, part = scores[:, kept], part.where(kept)
    auc = [metrics.macro(metrics.auc_per_class(own, part.targets)) for own in scores]
    around = None
    if resamples:
        own = numbered("patient", frames.patient[part.frame], frames.patient_ids)
        plan = Resampling.of(
            frames.dataset, own["patient_ids"], seeds, resamples=resamples, device=device
        )
        around = clipped_interval(macro_auc_draws(scores, part.targets, own["patient"], plan))
    return {
        "condition": condition.name,
        "leads": leads_of(part),
        "noise": condition.noise,
        "rows": len(part),
        "auc": auc,
        "auc_mean": float(np.mean(auc)),
        "ci95": around,
    }
