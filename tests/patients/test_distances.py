"""Distances within and between patients, against loops written by hand."""

from __future__ import annotations

from itertools import combinations
from typing import Literal

import numpy as np
import pytest
from scipy.spatial.distance import cosine, euclidean

from clocs import Checkpoint, Frames, Store
from clocs.errors import SettingError
from clocs.patients.distances import _Blocks, distances_between, frame_distances, patient_distances

Metric = Literal["euclidean", "cosine"]


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_all_pairs_equal_a_loop(metric: Metric) -> None:
    draw = np.random.default_rng(0)
    vectors = draw.normal(size=(40, 5)).astype(np.float32)
    patient, lead = draw.integers(6, size=40), draw.integers(2, size=40)
    found = distances_between(vectors, patient, lead, metric=metric)
    slow: dict[bool, list[float]] = {True: [], False: []}
    apart = cosine if metric == "cosine" else euclidean
    for i, j in combinations(range(40), 2):
        if lead[i] == lead[j]:
            slow[bool(patient[i] == patient[j])].append(float(apart(vectors[i], vectors[j])))
    np.testing.assert_allclose(np.sort(found.intra), np.sort(slow[True]), atol=1e-6)
    np.testing.assert_allclose(np.sort(found.inter), np.sort(slow[False]), atol=1e-6)
    wins = np.mean([(a < b) + 0.5 * (a == b) for a in slow[True] for b in slow[False]])
    assert found.separability == pytest.approx(wins, abs=1e-3)
    assert (found.intra_pairs, found.inter_pairs) == (len(slow[True]), len(slow[False]))


def test_distant_patients_do_not_overlap_and_random_ones_do() -> None:
    draw = np.random.default_rng(1)
    patient = np.repeat(np.arange(50), 4)
    noise = draw.normal(size=(200, 8)).astype(np.float32)
    apart = distances_between(noise + 100 * patient[:, None], patient, np.zeros(200, int))
    assert apart.separability == 1.0 and apart.overlap < 0.01
    alike = distances_between(noise, patient, np.zeros(200, int))
    assert abs(alike.separability - 0.5) < 0.05 and alike.overlap > 0.8


def test_sampled_pairs_are_the_same_each_time_and_represent_all() -> None:
    draw = np.random.default_rng(2)
    patient = np.repeat(np.arange(100), 10)
    vectors = (draw.normal(size=(1000, 4)) + patient[:, None] / 50).astype(np.float32)
    group = np.zeros(1000, int)
    whole = distances_between(vectors, patient, group)
    drawn, again = (distances_between(vectors, patient, group, most=3000) for _ in range(2))
    np.testing.assert_array_equal(drawn.inter, again.inter)
    assert len(drawn.intra) == 3000 and drawn.intra_pairs == 4500
    assert 2800 < len(drawn.inter) < 3200 and drawn.inter_pairs == whole.inter_pairs == 495_000
    assert drawn.separability == pytest.approx(whole.separability, abs=0.03)


def test_every_pair_has_its_number() -> None:
    keys = np.repeat(np.arange(5), [1, 7, 2, 30, 3])[:, None]
    blocks = _Blocks.of(keys)
    pairs = blocks.pairs(np.arange(blocks.total))
    expected = {(i, j) for i, j in combinations(range(43), 2) if keys[i] == keys[j]}
    assert {(int(i), int(j)) for i, j in pairs} == expected
    huge = _Blocks.of(np.zeros((3_000_000, 1), int))
    last = huge.pairs(np.array([0, huge.total - 1]))
    assert last.tolist() == [[0, 1], [2_999_998, 2_999_999]]


def test_too_few_patients_to_compare_are_refused() -> None:
    with pytest.raises(SettingError, match="0 pairs within and 3 between"):
        distances_between(np.eye(3, dtype=np.float32), np.arange(3), np.zeros(3, int))


def test_the_report_on_a_store_equals_the_distances_of_its_frames(
    checkpoint: Checkpoint, small_store: Store, usual_frames: Frames
) -> None:
    report = patient_distances(checkpoint, small_store)
    expected = frame_distances(checkpoint, usual_frames)
    np.testing.assert_allclose(np.sort(report.intra), np.sort(expected.intra), atol=1e-5)
    assert report.separability == pytest.approx(expected.separability)
    assert report.about["patients"] == len(usual_frames.patients_of(2))
    assert report.about["patients_seen"] == 0
    trained = patient_distances(checkpoint, small_store, split="all")
    assert trained.about["patients_seen"] == len(usual_frames.patients_of(0, 1))
