"""Conditions: the same classifiers tested on fewer leads, or with noise, without training anew."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from clocs.errors import SettingError
from clocs.evaluation import metrics
from clocs.evaluation.bootstrap import macro_auc_draws
from clocs.evaluation.labeled_rows import LabeledPart
from clocs.evaluation.noise import parse_noise, with_noise
from clocs.evaluation.predictions import numbered
from clocs.evaluation.resampling import Resampling
from clocs.evaluation.scores import clipped_interval
from clocs.frames.frames import ABSENT
from clocs.frames.splits import PARTS


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
