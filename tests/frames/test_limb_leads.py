"""The limb leads that follow from I and II are derived, and need not be stored."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from clocs.errors import SettingError
from clocs.experiments.simulated import simulated_frames
from clocs.frames.compact import with_step
from clocs.frames.frames import ABSENT, Frames
from clocs.frames.views import instances, leads, segments
from clocs.recording import LIMB_LEADS, STANDARD_LEADS

STEP = 0.004  # mV


@pytest.fixture(scope="module")
def twelve() -> Frames:
    """Twelve leads in which the limb leads follow from I and II, in steps of one size."""
    frames = with_step(simulated_frames("chapman", 0, patients=6), STEP)
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


def test_a_saved_file_leaves_out_what_follows_and_derives_it_on_loading(
    twelve: Frames, tmp_path: Path
) -> None:
    twelve.save(tmp_path / "all.safetensors")
    twelve.save(tmp_path / "few.safetensors", derive=True)
    again = Frames.load(tmp_path / "few.safetensors")
    assert again.leads == twelve.leads == Frames.facts(tmp_path / "few.safetensors")["leads"]
    for lead in twelve.leads:
        np.testing.assert_allclose(in_mv(again, lead), in_mv(twelve, lead), atol=2 * STEP)
    sizes = [(tmp_path / name).stat().st_size for name in ("few.safetensors", "all.safetensors")]
    assert sizes[0] < 0.75 * sizes[1]


def test_a_limb_lead_that_differs_from_i_and_ii_is_kept(twelve: Frames, tmp_path: Path) -> None:
    signals = twelve.signals.copy()
    at = twelve.starts[5, twelve.leads.index("aVF")]
    signals[at + 100] += 40
    own = replace(twelve, signals=signals)
    assert own.without_limb_leads().present[5].sum() == 9
    own.save(tmp_path / "own.safetensors", derive=True)
    again = Frames.load(tmp_path / "own.safetensors")
    np.testing.assert_array_equal(in_mv(again, "aVF")[5], in_mv(own, "aVF")[5])


def test_a_lead_that_is_kept_is_kept_all_along_a_recording_which_stays_one_run(
    twelve: Frames, tmp_path: Path
) -> None:
    own = with_step(twelve, STEP)  # derived leads have half of it
    signals = own.signals.copy()
    row = int(np.flatnonzero(np.diff(own.recording) == 0)[0])  # the next is of its recording
    signals[own.starts[row, own.leads.index("aVF")] + 100] += 40
    replace(own, signals=signals).save(tmp_path / "own.safetensors", derive=True)
    views = replace(segments(2), random_crops=True)
    again = instances(Frames.load(tmp_path / "own.safetensors"), of="frame", views=views * leads())
    assert len(again) == len(instances(twelve, of="frame", views=views * leads()))


def test_coarser_steps_change_signals_by_half_a_step_at_most() -> None:
    frames = simulated_frames("chapman", 0, patients=4)
    coarse = with_step(frames, 0.05)
    assert set(np.unique(coarse.scale)) == {np.float32(0.05)}
    for lead in frames.leads:
        assert np.abs(in_mv(coarse, lead) - in_mv(frames, lead)).max() <= 0.0251
    with pytest.raises(SettingError, match="above 0"):
        with_step(frames, 0)


def test_consecutive_frames_stay_in_one_piece_so_that_crops_can_be_cut(
    twelve: Frames, tmp_path: Path
) -> None:
    coarse = with_step(twelve, 0.008)
    coarse.save(tmp_path / "few.safetensors", derive=True)
    next_frame = (np.diff(twelve.recording) == 0) & (np.diff(twelve.segment) == 1)
    for frames in (twelve, coarse, Frames.load(tmp_path / "few.safetensors")):
        steps = np.diff(frames.starts, axis=0)[next_frame]
        assert next_frame.any() and (steps == frames.spec.samples).all()


def test_frames_that_do_not_lie_next_to_one_another_make_no_run_to_crop(twelve: Frames) -> None:
    views = replace(segments(2), random_crops=True)
    whole = instances(twelve, of="lead", views=views, leads_at_once=True)
    apart = replace(twelve, starts=twelve.starts[::-1].copy())
    cut = instances(apart, of="lead", views=views, leads_at_once=True)
    assert whole.room is not None and whole.room.any()
    assert cut.room is not None and not cut.room.any()
