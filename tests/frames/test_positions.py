from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clocs.frames.make import frame_labels, pairs
from clocs.frames.signals import cut, frame_count, frame_width
from clocs.recording import FrameSpec


@pytest.mark.parametrize(
    ("samples", "rate", "seconds", "expected"),
    [
        (5000, 500, 10.0, 1),
        (5000, 500, 5.0, 2),
        (4999, 500, 5.0, 1),
        (7499, 300, 2500 / 300, 2),
        (7500, 300, 2500 / 300, 3),
        (6000, 200, 1.28, 23),
        (255, 200, 1.28, 0),
        (256, 200, 1.28, 1),
        (2, 0.3, 10 / 3, 2),
    ],
)
def test_frame_counts_are_exact_where_seconds_are_not(
    samples: int, rate: float, seconds: float, expected: int
) -> None:
    assert frame_count(samples, rate, FrameSpec(seconds)) == expected


@given(st.integers(1, 4000), st.integers(1, 2000), st.integers(-1, 1), st.integers(0, 500))
def test_a_frame_of_a_whole_number_of_samples_counts_as_integers_do(
    width: int, rate: int, slip: int, frames: int
) -> None:
    samples = max(0, frames * width + slip)
    assert frame_count(samples, rate, FrameSpec(width / rate)) == samples // width


@given(st.lists(st.integers(0, 9000), max_size=8), st.floats(50, 1000), st.floats(0.5, 10))
def test_frames_lie_in_their_recording_without_overlap(
    samples: list[int], rate: float, seconds: float
) -> None:
    spec = FrameSpec(seconds)
    cuts = cut(np.array(samples, dtype=np.int64), rate, spec)
    width = float(frame_width(rate, spec))
    assert cuts.start.size == sum(int(frame_count(n, rate, spec)) for n in samples)
    ends = cuts.start + width
    assert all(ends <= np.array(samples, dtype=np.int64)[cuts.recording] + 1)
    same = cuts.recording[1:] == cuts.recording[:-1]
    assert (np.diff(cuts.start)[same] >= width - 1).all()


@given(st.data())
def test_a_frame_bears_the_label_of_the_episode_at_its_first_sample(data: st.DataObject) -> None:
    lengths = data.draw(st.lists(st.integers(1, 60), min_size=1, max_size=5))
    cuts = cut(np.array(lengths), 1.0, FrameSpec(4.0))
    truth = [np.full(n, -1) for n in lengths]
    episodes: list[tuple[int, int, int, int]] = []
    for recording, n in enumerate(lengths):
        edges = sorted(data.draw(st.sets(st.integers(0, n), max_size=6)))
        for start, stop in zip(edges[::2], edges[1::2], strict=False):
            label = data.draw(st.integers(0, 3))
            episodes.append((recording, start, stop, label))
            truth[recording][start:stop] = label
    columns = np.array(data.draw(st.permutations(episodes)), dtype=np.int64).reshape(-1, 4).T
    recording_, start_, stop_, label_ = columns
    found = frame_labels(cuts, recording=recording_, start=start_, stop=stop_, label=label_)
    wanted = [truth[r][s] for r, s in zip(cuts.recording, cuts.start, strict=True)]
    assert found.tolist() == wanted


def test_pairs_are_of_one_recording_consecutive_and_both_kept() -> None:
    cuts = cut(np.array([5, 4, 0, 2]), 1.0, FrameSpec(1.0))  # frames 0-4 | 5-8 | | 9-10
    kept = np.ones(11, dtype=np.bool_)
    assert pairs(cuts, kept).tolist() == [0, 2, 5, 7, 9]
    kept[[3, 9]] = False
    assert pairs(cuts, kept).tolist() == [0, 5, 7]
