"""Steps of saved frames can be coarser."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from clocs.errors import SettingError, StoreError
from clocs.experiments.data import simulated_frames
from clocs.frames.frames import Frames
from clocs.frames.views import Views, instances


@pytest.fixture(scope="module")
def twelve() -> Frames:
    """Twelve leads in steps of one size."""
    return simulated_frames("chapman", 0, patients=6).with_step(0.004)


def in_mv(frames: Frames, lead: str) -> np.ndarray:
    return frames.windows(np.arange(len(frames)), frames.leads.index(lead))


def test_a_file_without_limb_leads_of_version_0_1_is_refused_with_a_remedy() -> None:
    path = Path(__file__).parent.parent / "recorded" / "frames-0.1.0.safetensors"
    for read in (Frames.load, Frames.facts):
        with pytest.raises(StoreError, match=r"limb leads.*`clocs export --to frames`"):
            read(path)


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
    views = replace(Views(segments=2), random_crops=True)
    whole = instances(twelve, of="lead", views=views, leads_at_once=True)
    apart = replace(twelve, starts=twelve.starts[::-1].copy())
    cut = instances(apart, of="lead", views=views, leads_at_once=True)
    assert whole.room is not None and whole.room.any()
    assert cut.room is not None and not cut.room.any()
