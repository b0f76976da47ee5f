"""Rows that a classifier learns from: moved, seen through fewer leads, with noise."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from clocs.errors import SettingError
from clocs.evaluation.finetune_task import Augmentation
from clocs.evaluation.labeled import LabeledPart, rows_with_label
from clocs.frames.frames import ABSENT, Frames
from clocs.frames.views import room
from clocs.kernels import keyed_random

CPU = torch.device("cpu")
KEYS = keyed_random.member_keys([0, 1])


@pytest.fixture
def part(small_frames: Frames) -> LabeledPart:
    starts = small_frames.starts.copy()
    starts[::3, 0] = ABSENT
    frames = replace(small_frames, starts=starts)
    return LabeledPart(frames, rows_with_label(frames, 0, leads_at_once=True))


def made(part: LabeledPart, **changed: float | bool) -> Augmentation:
    given = {"crops": False, "lead_subsets": 0.0, "gaussian": 0.0} | changed
    return Augmentation.of(part, CPU, **given)  # type: ignore[arg-type]


def test_crops_stay_within_their_run_and_move_all_leads_alike(part: LabeledPart) -> None:
    rows = torch.arange(len(part)).expand(2, -1)
    starts = torch.from_numpy(part.rows.in_view())[rows]
    moved = made(part, crops=True).starts(starts, rows, KEYS)
    absent = starts == ABSENT
    assert torch.equal(moved == ABSENT, absent)
    shift = torch.where(absent, 0, moved - starts)
    own = shift.abs().amax(dim=-1, keepdim=True)
    assert torch.equal(torch.where(absent, own, shift.abs()), own.expand_as(shift))
    early, late = (torch.from_numpy(one[part.rows.frame]) for one in room(part.frames))
    least, most = shift.amin(dim=(0, 2)), shift.amax(dim=(0, 2))
    assert bool((least >= -early).all()) and bool((most <= late).all())
    assert not torch.equal(moved[0], moved[1]) and not torch.equal(moved[0], starts[0])


def test_subsets_leave_at_least_one_lead_of_some_rows(part: LabeledPart) -> None:
    rows = torch.arange(len(part)).expand(2, -1)
    starts = torch.from_numpy(part.rows.in_view())[rows]
    fewer = made(part, lead_subsets=0.5).starts(starts, rows, KEYS)
    there, before = fewer != ABSENT, starts != ABSENT
    assert bool(there.any(dim=-1).all()) and bool((there <= before).all())
    changed = (there != before).any(dim=-1).float().mean()
    assert 0.2 < changed < 0.6
    with pytest.raises(SettingError, match="many leads at once"):
        one_lead = rows_with_label(part.frames, 0)
        made(replace(part, rows=one_lead), lead_subsets=0.5)


def test_noise_differs_by_member_and_leaves_missing_leads_missing(part: LabeledPart) -> None:
    x = torch.zeros(2, 5, 3, 101)
    x[:, :, 1] = torch.nan
    noisy = made(part, gaussian=0.5).signals(x, KEYS)
    assert bool(noisy[:, :, 1].isnan().all()) and not bool(noisy[:, :, 0].isnan().any())
    spread = noisy[:, :, 0].std(dim=-1)
    assert bool((spread > 0).all()) and bool((spread < 0.7).all())
    assert not torch.equal(noisy[0, :, 0], noisy[1, :, 0])
    assert made(part).signals(x, KEYS) is x
