"""How often somebody is found again, where the answer is known."""

from __future__ import annotations

import json

import numpy as np
import pytest

from clocs.errors import SettingError
from research.analyses.frame_vectors import FrameVectors
from research.analyses.search import Pairs, pairs_of


def rows(vectors: np.ndarray, patient: np.ndarray | None = None) -> FrameVectors:
    """One frame per recording, one recording per row."""
    count = len(vectors)
    patient = np.arange(count) if patient is None else patient
    zeros = np.zeros(count, np.int64)
    return FrameVectors(
        np.asarray(vectors, np.float32), patient, np.arange(count), zeros, zeros + 2,
        np.ones((count, 1), np.uint8), "made", ("x",), False, tuple(map(str, range(count))),
    )  # fmt: skip


def halves(people: int, noise: float, seed: int = 0) -> Pairs:
    draw = np.random.default_rng(seed)
    own = draw.normal(size=(people, 6))
    second = rows(own + noise * draw.normal(size=own.shape))
    return Pairs(rows(own), second, second)


def test_equal_vectors_are_always_found_and_random_ones_by_chance() -> None:
    same = halves(400, 0.0).found(200)
    assert same["top1"] == 1 and same["ci95"] == [1, 1] and same["median_rank"] == 1
    lost = halves(400, 1e6).found(200)
    assert lost["top1"] == pytest.approx(1 / 400, abs=0.01)
    assert 150 < lost["median_rank"] < 250


def test_ranks_equal_a_plain_search() -> None:
    pairs = halves(300, 0.7)
    unit = [
        x / np.linalg.norm(x, axis=1, keepdims=True)
        for x in (pairs.query.vectors.astype(float), pairs.gallery.vectors.astype(float))
    ]
    near = unit[0] @ unit[1].T
    by_hand = [1 + int((np.delete(line, i) >= line[i]).sum()) for i, line in enumerate(near)]
    assert pairs.ranks().tolist() == by_hand
    found = pairs.found(500)
    assert found["top1"] == pytest.approx(np.mean(np.array(by_hand) == 1))
    assert found["ci95"][0] < found["top1"] < found["ci95"][1]
    assert found["median_rank"] == np.median(by_hand)
    assert found["median_rank_ci95"][0] <= found["median_rank"] <= found["median_rank_ci95"][1]
    json.dumps(found, allow_nan=False)


def test_vectors_without_a_direction_find_nobody() -> None:
    nothing = rows(np.zeros((50, 3)))
    found = Pairs(nothing, nothing, nothing).found(20)
    assert found["top1"] == 0 and found["median_rank"] == 50


def test_a_patient_counts_once_whatever_the_number_of_pairs() -> None:
    axes = np.eye(3)
    gallery = rows(axes)
    # patient 0 is found in one pair of one, patient 1 in none of three
    who = np.array([0, 1, 1, 1])
    query, target = rows(axes[[0, 2, 2, 2]], who), rows(axes[[0, 1, 1, 1]], who)
    found = Pairs(query, target, gallery).found(20)
    assert found["patients"] == 2 and found["pairs"] == 4 and found["size"] == 3
    assert found["top1"] == 0.5


def recorded() -> tuple[FrameVectors, np.ndarray]:
    """Two frames of each of six recordings: three of patient 0, two of 1, one of 2; and days."""
    draw = np.random.default_rng(0).normal(size=(12, 4)).astype(np.float32)
    found = FrameVectors(
        draw, np.repeat([0, 0, 0, 1, 1, 2], 2), np.repeat(np.arange(6), 2), np.tile([0, 1], 6),
        np.full(12, 2), np.ones((12, 1), np.uint8), "made", ("x",), False, ("p", "q", "r"),
    )  # fmt: skip
    return found, np.array([100, 100, 105, 7, np.nan, 3.0])


def test_recordings_are_paired_by_the_days_between_them() -> None:
    found, days = recorded()
    made = pairs_of(found, days)
    assert list(made) == ["halves", "same day", "1 to 7 days", "another day"]
    for own in made.values():  # everybody is once in the gallery
        assert own.gallery.patient.tolist() == [0, 1, 2]
        assert own.query.patient.tolist() == own.target.patient.tolist()
    assert made["halves"].query.recording.tolist() == [0, 3, 5]
    same, other = made["same day"], made["another day"]
    assert same.query.recording.tolist() == [0, 1] and same.target.recording.tolist() == [1, 0]
    assert set(other.query.recording) == {0, 1, 2}  # an unknown day is neither
    assert made.keys() - pairs_of(found).keys() == {"same day", "another day", "1 to 7 days"}


def test_recordings_of_one_frame_have_no_halves() -> None:
    found, _ = recorded()
    with pytest.raises(SettingError, match="cut them into shorter frames"):
        pairs_of(found.where(found.segment == 0))
