from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from clocs.errors import SettingError
from clocs.frames.frames import Frames
from clocs.frames.views import Views, instances


def test_cmsc_pairs_are_consecutive_segments_of_one_lead(small_frames: Frames) -> None:
    pairs = instances(small_frames, of="lead", views=Views(segments=2))
    assert len(pairs) == 80 * 4  # 80 recordings, one pair each, four leads
    assert (pairs.windows[:, 1] - pairs.windows[:, 0] == small_frames.spec.samples).all()
    assert (small_frames.segment[pairs.frame] == 0).all()


def test_cmlc_views_are_all_leads_of_one_frame(small_frames: Frames) -> None:
    frames = instances(small_frames, of="frame", views=Views(all_leads=True))
    assert frames.windows.shape == (160, 4)
    assert np.array_equal(frames.windows, small_frames.starts)


def test_cmsmlc_views_are_segments_times_leads(small_frames: Frames) -> None:
    both = instances(small_frames, of="frame", views=Views(segments=2, all_leads=True))
    assert both.windows.shape == (80, 8)
    assert np.array_equal(both.windows[:, :4], small_frames.starts[::2])
    assert np.array_equal(both.windows[:, 4:], small_frames.starts[1::2])


def test_a_gap_breaks_a_pair(small_frames: Frames) -> None:
    keep = np.ones(len(small_frames), bool)
    keep[1] = False  # the second frame of the first recording
    cut = {
        name: getattr(small_frames, name)[keep]
        for name in ("starts", "scale", "recording", "patient", "segment", "split", "target")
    }
    gapped = Frames(**{**small_frames.__dict__, **cut})
    assert len(instances(gapped, of="lead", views=Views(segments=2))) == 79 * 4


def test_parts_together_are_the_whole(small_frames: Frames) -> None:
    parts = [len(instances(small_frames, of="lead", views=Views(), split=s)) for s in range(3)]
    assert sum(parts) == len(instances(small_frames, of="lead", views=Views())) == 640


def test_an_instance_of_a_frame_needs_all_leads(small_frames: Frames) -> None:
    with pytest.raises(SettingError):
        instances(small_frames, of="frame", views=Views(segments=2))


def test_segments_with_one_left_out_between_them_are_no_pair(small_frames: Frames) -> None:
    apart = replace(small_frames, segment=small_frames.segment * 2)
    assert len(instances(small_frames, of="lead", views=Views(segments=2))) > 0
    assert len(instances(apart, of="lead", views=Views(segments=2))) == 0
