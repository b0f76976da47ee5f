"""How often somebody is found in galleries, where the answer is known."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from clocs.errors import LeakError, SettingError
from clocs.frames.frames import Frames
from clocs.training.checkpoint import Checkpoint
from research.analyses.frame_vectors import FrameVectors
from research.analyses.privacy import found_again, privacy, query_and_gallery


def vectors(people: int = 400, noise: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(0)
    own = draw.normal(size=(people, 6))
    return own, own + noise * draw.normal(size=own.shape)


def test_equal_vectors_are_always_found_and_random_ones_by_chance() -> None:
    own, same = vectors()
    for row in found_again(own, same, sizes=(100,), draws=20):
        assert row["top1"] == row["top10"] == 1
    draw = np.random.default_rng(1)
    row = found_again(own, draw.normal(size=own.shape), sizes=(100,), draws=200)[0]
    assert row["top1"] == pytest.approx(row["top1_chance"], abs=0.01)
    assert row["top10"] == pytest.approx(row["top10_chance"], abs=0.04)
    assert row["top10_chance"] == 0.1


def test_galleries_are_those_that_the_data_allow() -> None:
    own, other = vectors(400, 0.5)
    rows = found_again(own, other, sizes=(10, 100, 1000), draws=30)
    assert [(row["size"], row["galleries"]) for row in rows] == [(10, 30), (100, 30), (400, 1)]
    assert rows[0]["top1"] > rows[1]["top1"] > rows[2]["top1"] > rows[2]["top1_chance"]
    assert rows[0]["top1_ci95"][0] <= rows[0]["top1"] <= rows[0]["top1_ci95"][1]
    assert rows[2]["top1_ci95"] is None
    json.dumps(rows, allow_nan=False)


def test_a_gallery_of_everybody_equals_a_plain_search() -> None:
    own, other = vectors(300, 0.7)
    unit = [x / np.linalg.norm(x, axis=1, keepdims=True) for x in (own, other)]
    near = np.argsort(-unit[0] @ unit[1].T, axis=1)
    row = found_again(own, other, sizes=())[0]
    me = np.arange(300)[:, None]
    assert row["top1"] == pytest.approx((near[:, :1] == me).mean())
    assert row["top10"] == pytest.approx((near[:, :10] == me).any(axis=1).mean())


def test_the_mean_over_galleries_is_what_chance_gives() -> None:
    """With r of M − 1 others nearer, none of N − 1 drawn is: a ratio of binomials."""
    own, other = vectors(60, 1.0)
    unit = [x / np.linalg.norm(x, axis=1, keepdims=True) for x in (own, other)]
    similar = unit[0] @ unit[1].T
    nearer = (similar > np.diag(similar)[:, None]).sum(axis=1)
    expected = np.ones(60)
    for step in range(19):
        expected *= np.maximum(59 - nearer - step, 0) / (59 - step)
    row = found_again(own, other, sizes=(20,), draws=4000)[0]
    assert row["top1"] == pytest.approx(expected.mean(), abs=0.01)


def test_vectors_without_a_direction_find_nobody() -> None:
    row = found_again(np.zeros((50, 3)), np.zeros((50, 3)), sizes=())[0]
    assert row["top1"] == row["top10"] == 0


def test_galleries_are_the_same_again_and_others_by_seed() -> None:
    own, other = vectors(200, 0.8)
    one, again = (found_again(own, other, sizes=(50,), draws=9) for _ in range(2))
    assert one == again != found_again(own, other, sizes=(50,), draws=9, seed=1)


def _several() -> FrameVectors:
    """Patients 0 and 1 with two recordings, patient 2 with one; two frames each."""
    recording = np.repeat(np.arange(5), 2)
    draw = np.random.default_rng(0).normal(size=(10, 4)).astype(np.float32)
    return FrameVectors(
        draw, np.repeat([0, 0, 1, 1, 2], 2), recording, np.tile([0, 1], 5), np.full(10, 2),
        np.ones((10, 1), np.uint8), "made", ("x",), False, ("p", "q", "r"),
    )  # fmt: skip


def test_a_patient_is_once_in_a_gallery() -> None:
    found = _several()
    query, gallery, several = query_and_gallery(found, "halves")
    assert query.recording.tolist() == gallery.recording.tolist() == [0, 2, 4] and several.all()
    query, gallery, several = query_and_gallery(found, "recordings")
    assert query.recording.tolist() == [0, 2, 4] and gallery.recording.tolist() == [1, 3, 4]
    assert several.tolist() == [True, True, False]
    with pytest.raises(SettingError, match="too few patients with two recordings"):
        query_and_gallery(found.where(found.recording > 1), "recordings")
    with pytest.raises(SettingError, match="cut them into shorter frames"):
        query_and_gallery(found.where(found.segment == 0), "halves")


def test_an_encoder_is_measured_by_both_ways(checkpoint: Checkpoint, small_frames: Frames) -> None:
    found = privacy(checkpoint, small_frames, sizes=(4, 100), draws=10)
    people = len(small_frames.patients_of(2))
    assert [row["size"] for row in found["ways"]["trained"]] == [4, people]
    assert found["searchable"] == people and found["pairs"] == "halves"
    by_day = privacy(checkpoint, small_frames, sizes=(4,), draws=10, pairs="recordings")
    assert by_day["queries"] == people
    json.dumps([found, by_day], allow_nan=False)


def test_patients_who_were_trained_on_are_not_searched_for(
    checkpoint: Checkpoint, small_frames: Frames
) -> None:
    own = privacy(checkpoint, small_frames, sizes=(), patients="unseen")
    assert own["ways"].keys() == {"cosine"}
    assert own["searchable"] == len(small_frames.patients_of(2))
    elsewhere = replace(
        small_frames, dataset="another", digests=small_frames.digests + np.uint64(1)
    )
    everybody = privacy(checkpoint, elsewhere, sizes=(), patients="unseen")
    assert everybody["searchable"] == len(small_frames.patient_ids)
    with pytest.raises(LeakError):
        privacy(checkpoint, small_frames.with_split_seed(1), sizes=())
