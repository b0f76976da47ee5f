"""Limb leads are derived from I and II; steps can be coarser."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from clocs.errors import SettingError
from clocs.experiments.data import simulated_frames
from clocs.frames.frames import ABSENT, Frames
from clocs.frames.views import instances, segments
from clocs.recording import LIMB_LEADS, STANDARD_LEADS

STEP = 0.004  # mV


@pytest.fixture(scope="module")
def twelve() -> Frames:
    """Twelve leads in which the limb leads follow from I and II, in steps of one size."""
    frames = simulated_frames("chapman", 0, patients=6).with_step(STEP)
    return frames.with_leads(
        [lead for lead in frames.leads if lead not in LIMB_LEADS]
    ).with_limb_leads()


def in_mv(frames: Frames, lead: str) -> np.ndarray:
    return frames.windows(np.arange(len(frames)), frames.leads.index(lead))


def test_limb_leads_are_exact_sums_of_i_and_ii(twelve: Frames) -> None:
    one, two = in_mv(twelve, "I"), in_mv(twelve, "II")
    assert twelve.leads == STANDARD_LEADS
    wanted = {"III": two - one, "aVR": -(one + two) / 2, "aVL": one - two / 2, "aVF": two - one / 2}
    for lead, values in wanted.items():
        np.testing.assert_allclose(in_mv(twelve, lead), values, atol=1e-6)


def test_a_lead_too_large_for_half_a_step_is_derived_in_a_coarser_one(twelve: Frames) -> None:
    loud = replace(twelve, signals=np.full_like(twelve.signals, 30_000))
    eight = loud.with_leads([lead for lead in loud.leads if lead not in LIMB_LEADS])
    right = in_mv(eight.with_limb_leads(), "aVR")
    np.testing.assert_allclose(right, -30_000 * STEP, rtol=1e-4)


def test_a_frame_without_ii_gets_no_derived_lead(twelve: Frames) -> None:
    eight = twelve.with_leads([lead for lead in twelve.leads if lead not in LIMB_LEADS])
    starts = eight.starts.copy()
    starts[3, eight.leads.index("II")] = ABSENT
    made = replace(eight, starts=starts).with_limb_leads()
    columns = [made.leads.index(lead) for lead in LIMB_LEADS]
    assert not made.present[3, columns].any()
    assert made.present[4, columns].all()
    single = twelve.with_leads(("V1",))
    assert single.with_limb_leads() is single


def test_a_file_without_limb_leads_of_version_0_1_derives_them_on_loading() -> None:
    path = Path(__file__).parent.parent / "recorded" / "frames-0.1.0.safetensors"
    loaded = Frames.load(path)
    assert loaded.leads == STANDARD_LEADS == Frames.facts(path)["leads"]
    found = hashlib.sha256()
    for array in (loaded.signals, loaded.starts, loaded.scale):
        found.update(array.tobytes())
    assert found.hexdigest().startswith("2c7bb19051b77c1fdb1737e3e1395672")


def test_coarser_steps_change_signals_by_half_a_step_at_most() -> None:
    frames = simulated_frames("chapman", 0, patients=4)
    coarse = frames.with_step(0.05)
    assert set(np.unique(coarse.scale)) == {np.float32(0.05)}
    for lead in frames.leads:
        assert np.abs(in_mv(coarse, lead) - in_mv(frames, lead)).max() <= 0.0251
    with pytest.raises(SettingError, match="above 0"):
        frames.with_step(0)


def test_consecutive_frames_stay_in_one_piece_so_that_crops_can_be_cut(twelve: Frames) -> None:
    coarse = twelve.with_step(0.008)
    next_frame = (np.diff(twelve.recording) == 0) & (np.diff(twelve.segment) == 1)
    for frames in (twelve, coarse):
        steps = np.diff(frames.starts, axis=0)[next_frame]
        assert next_frame.any() and (steps == frames.spec.samples).all()


def test_frames_that_do_not_lie_next_to_one_another_make_no_run_to_crop(twelve: Frames) -> None:
    views = replace(segments(2), random_crops=True)
    whole = instances(twelve, of="lead", views=views, leads_at_once=True)
    apart = replace(twelve, starts=twelve.starts[::-1].copy())
    cut = instances(apart, of="lead", views=views, leads_at_once=True)
    assert whole.room is not None and whole.room.any()
    assert cut.room is not None and not cut.room.any()
