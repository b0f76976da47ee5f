"""Retrieval is scored on patients never seen, and the scores mean what they say."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from clocs import Checkpoint, Frames, Store
from clocs.errors import LeakError
from clocs.patients import Embeddings
from clocs.patients.retrieval import diagnosis, halves, score_retrieval
from clocs.patients.unseen import unseen

from .conftest import random_embeddings


def test_precision_equals_a_count_by_hand_and_chance_is_the_base_rate() -> None:
    patients = random_embeddings(400)
    found = diagnosis(patients)
    assert found is not None
    labels = [set(one) for one in patients.rows["labels"]]
    known = [i for i in range(400) if labels[i]]
    unit = patients.vectors / np.linalg.norm(patients.vectors, axis=1, keepdims=True)
    shares, base = [], []
    for i in known:
        others = [j for j in known if j != i]
        near = sorted(others, key=lambda j: -float(unit[i] @ unit[j]))[:10]
        shares.append(np.mean([bool(labels[i] & labels[j]) for j in near]))
        base.append(np.mean([bool(labels[i] & labels[j]) for j in others]))
    assert found.precision == pytest.approx(np.mean(shares), abs=1e-3)
    assert found.base_rate == pytest.approx(np.mean(base))
    assert found.queries == len(known)
    assert found.precision == pytest.approx(found.base_rate, abs=0.06)  # labels drawn at random


def test_clusters_of_one_label_are_found() -> None:
    patients = random_embeddings(200)
    labels = [["A"] if i % 2 else ["B"] for i in range(200)]
    signs = np.where(np.arange(200) % 2, 1, -1)[:, None] * 10
    rows = patients.rows.with_columns(pl.Series("labels", labels))
    found = diagnosis(
        Embeddings((patients.vectors + signs).astype(np.float32), rows, "patient", "e")
    )
    assert found is not None
    assert found.precision == 1.0
    assert found.base_rate == pytest.approx(99 / 199)
    assert found.per_label["A"]["precision"] == 1.0


def test_halves_share_no_frame_and_leave_out_the_middle() -> None:
    rows = Embeddings.make_rows(
        {
            "dataset": ["d"] * 9,
            "patient": ["a"] * 5 + ["b"] * 3 + ["c"],
            "recording": ["a"] * 5 + ["b"] * 3 + ["c"],
            "segment": [0, 1, 2, 4, 7, 0, 1, 2, 0],
            "lead": ["II"] * 9,
        },
        9,
    )
    first, second = halves(Embeddings(np.eye(9, dtype=np.float32), rows, "frame", "e"))
    assert first.rows["recording"].to_list() == second.rows["recording"].to_list() == ["a", "b"]
    assert np.flatnonzero(first.vectors[0]).tolist() == [0, 1]
    assert np.flatnonzero(second.vectors[0]).tolist() == [3, 4]
    assert np.flatnonzero(first.vectors[1]).tolist() == [5]
    assert np.flatnonzero(second.vectors[1]).tolist() == [7]


def test_a_store_is_scored_on_its_unseen_patients(
    checkpoint: Checkpoint, small_store: Store, small_frames: Frames
) -> None:
    (score,) = score_retrieval([checkpoint], small_store)
    test = len(small_frames.patients_of(2))
    assert score.patients == test and score.patients_seen == 0
    assert score.halves is not None and score.recordings is not None
    assert score.halves.queries == score.halves.among == 2 * test
    assert score.recordings.queries == 2 * test
    assert score.recordings.among == 2 * test - 1
    assert score.recordings.chance == pytest.approx(1 / (2 * test - 1))
    assert score.halves.top1 > score.halves.chance
    assert 0 <= score.recordings.top1 <= score.recordings.top10 <= 1


def test_seen_patients_are_left_out_and_counted(
    checkpoint: Checkpoint, small_store: Store, small_frames: Frames
) -> None:
    everyone = unseen([checkpoint], small_store, split="all")
    assert everyone.patients == len(small_frames.patients_of(2))
    assert everyone.seen == len(small_frames.patients_of(0, 1))
    fresh = replace(
        checkpoint,
        patients=np.zeros(0, np.uint64),
        recordings=np.zeros(0, np.uint64),
    )
    assert unseen([fresh], small_store, split="all").seen == 0
    both = unseen([fresh, checkpoint], small_store, split="all")
    assert both.seen == everyone.seen
    with pytest.raises(LeakError, match="has seen every patient of the part 'train'"):
        unseen([checkpoint], small_store, split="train")
