"""Frames of another duration made of those there are, and how far a frame could be moved."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from clocs.errors import ClocsWarning, SettingError
from clocs.frames.frames import ABSENT, Frames
from clocs.frames.make import make_frames
from clocs.frames.views import room, runs, with_seconds
from clocs.recording import FrameSpec
from clocs.store.store import Store


@pytest.fixture(scope="module")
def frames(small_store: Store) -> Frames:
    return make_frames(small_store, spec=FrameSpec(2.5, 250), leads=("II", "V2"))


def test_longer_frames_are_those_that_the_store_would_give(
    frames: Frames, small_store: Store
) -> None:
    longer = with_seconds(frames, 5.0)
    expected = make_frames(small_store, spec=FrameSpec(5, 500), leads=("II", "V2"))
    assert longer.spec == expected.spec and len(longer) == len(expected)
    rows = np.arange(len(longer))
    for lead in (0, 1):
        assert np.allclose(longer.windows(rows, lead), expected.windows(rows, lead), atol=1e-3)
    for name in ("recording", "patient", "segment", "split", "target"):
        assert np.array_equal(getattr(longer, name), getattr(expected, name)), name


def test_a_run_that_is_no_multiple_is_covered_by_frames_that_overlap(frames: Frames) -> None:
    longer = with_seconds(frames, 4.0)
    first = longer.recording == longer.recording[0]
    own = frames.recording == longer.recording[0]
    length = int(own.sum()) * 250
    starts = longer.starts[first, 0]
    assert len(starts) == -(-length // 400)
    assert starts[0] == frames.starts[own][0, 0]
    assert starts[-1] + 400 == frames.starts[own][-1, 0] + 250
    assert longer.segment[first].tolist() == list(range(len(starts)))


def test_recordings_that_are_too_short_are_left_out_and_said(frames: Frames) -> None:
    short = frames.recording == 0
    kept = ~short | (np.cumsum(short) <= 1)
    rows = {
        name: getattr(frames, name)[kept]
        for name in ("starts", "scale", "recording", "patient", "segment", "split", "target")
    }
    with pytest.warns(ClocsWarning, match=r"1 recordings of synthetic have no 5 s"):
        longer = with_seconds(replace(frames, **rows), 5.0)
    assert 0 not in longer.recording
    with pytest.raises(SettingError, match="give fewer `seconds`"):
        with_seconds(frames, 3600)


def test_a_run_ends_where_a_lead_or_a_label_changes(frames: Frames) -> None:
    assert np.array_equal(runs(frames, of_one_label=True), frames.recording)
    early, late = room(frames)
    assert early[:4].tolist() == [0, 250, 500, 750] and late[:4].tolist() == [750, 500, 250, 0]
    starts, target = frames.starts.copy(), frames.target.copy()
    starts[1, 0] = ABSENT
    target[6:8] = 1 - target[6:8]
    changed = replace(frames, starts=starts, target=target)
    assert runs(changed, of_one_label=True)[:8].tolist() == [0, 1, 2, 2, 3, 3, 4, 4]
    assert room(changed)[1][:8].tolist() == [0, 0, 250, 0, 250, 0, 250, 0]
