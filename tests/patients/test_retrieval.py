"""Retrieval is scored on patients never seen, and the scores mean what they say."""

from __future__ import annotations

import io
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from rich.console import Console

from clocs import Checkpoint, Frames, Store
from clocs.cli.tables import retrieval_table
from clocs.errors import LeakError, SettingError
from clocs.patients.embeddings import Embeddings
from clocs.patients.retrieval import (
    Retrieval,
    _same_patient,
    diagnosis,
    retrieval,
    unseen_recordings,
)
from clocs.recording import FrameSpec
from embedding_parts import random_embeddings


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
    assert found["precision"] == pytest.approx(np.mean(shares), abs=1e-3)
    assert found["base_rate"] == pytest.approx(np.mean(base))
    assert found["queries"] == len(known)
    assert found["precision"] == pytest.approx(
        found["base_rate"], abs=0.06
    )  # labels drawn at random


def test_clusters_of_one_label_are_found() -> None:
    patients = random_embeddings(200)
    labels = [["A"] if i % 2 else ["B"] for i in range(200)]
    signs = np.where(np.arange(200) % 2, 1, -1)[:, None] * 10
    rows = patients.rows.with_columns(pl.Series("labels", labels))
    found = diagnosis(
        Embeddings((patients.vectors + signs).astype(np.float32), rows, "patient", "e")
    )
    assert found is not None
    assert found["precision"] == 1.0
    assert found["base_rate"] == pytest.approx(99 / 199)
    assert found["per_label"]["A"]["precision"] == 1.0


def test_a_store_is_scored_on_its_unseen_patients(
    checkpoint: Checkpoint, small_store: Store, usual_frames: Frames
) -> None:
    score, *_ = retrieval([checkpoint], small_store)
    test = len(usual_frames.patients_of(2))
    assert score.patients == test and score.patients_seen == 0
    assert score.halves is not None and score.recordings is not None
    assert score.halves["queries"] == score.halves["among"] == 2 * test
    assert score.recordings["queries"] == 2 * test
    assert score.recordings["among"] == 2 * test - 1
    assert score.recordings["chance"] == pytest.approx(1 / (2 * test - 1))
    assert score.halves["top1"] > score.halves["chance"]
    assert 0 <= score.recordings["top1"] <= score.recordings["top10"] <= 1


def test_the_table_has_one_row_per_method_with_mean_and_spread_over_seeds(
    checkpoint: Checkpoint, small_store: Store
) -> None:
    score, *_ = retrieval([checkpoint], small_store)
    assert score.halves is not None and score.diagnosis is None  # of too few patients
    seeds = [
        replace(score, seed=seed, halves=score.halves | {"top1": top1, "top10": 0.5})
        for seed, top1 in enumerate((0.1, 0.2, 0.4))
    ]
    single = replace(seeds[0], method="cmsc", run="another")
    lines = shown([*seeds, single])
    (own,) = [line for line in lines if line.startswith("random-bn")]
    assert "0.233 ± 0.153" in own and "0.500 ± 0.000" in own
    (other,) = [line for line in lines if line.startswith("cmsc")]
    assert "0.100" in other and "±" not in other
    assert "mean ± sd over seeds 0, 1, 2" in " ".join(lines)
    # Two pre-trainings by one method are two rows, named by how they were trained.
    lines = shown([seeds[0], replace(seeds[0], run="another", embedding_dim=16)])
    assert sum("E = 128" in line for line in lines) == sum("E = 16" in line for line in lines) == 1


def shown(scores: list[Retrieval]) -> list[str]:
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(retrieval_table(scores))
    return [line.strip("│ ") for line in console.export_text().splitlines()]


def test_a_match_within_one_recording_is_called_that(
    checkpoint: Checkpoint, small_store: Store
) -> None:
    """The store's patients have two recordings each; in the paper's datasets they have one."""
    score, *_ = retrieval([checkpoint], small_store)
    assert not score.one_recording_each
    words = "every patient has one recording"
    assert words not in " ".join(shown([score]))
    assert words in " ".join(shown([replace(score, one_recording_each=True)]))


def test_all_scores_are_of_the_frame_that_is_asked_for(
    checkpoint: Checkpoint, small_store: Store
) -> None:
    own, *_ = retrieval([checkpoint], small_store)
    short, *_ = retrieval([checkpoint], small_store, frame=2.0)
    assert own.frame == small_store.manifest.frame
    assert short.frame == FrameSpec(2.0, checkpoint.encoder.samples)
    assert short.halves is not None and short.halves["frame"] == 2.0
    assert short.recordings is not None and short.recordings["frame"] == 2.0
    row = short.json()
    assert row["frame"] == {"seconds": 2.0, "samples": checkpoint.encoder.samples}
    assert {
        "split_seed",
        "leads",
        "embedding_dim",
        "seed",
        "frame_trained",
        "version",
    } <= row.keys()


def test_encoders_trained_on_different_frames_are_named(
    checkpoint: Checkpoint, small_store: Store
) -> None:
    score, *_ = retrieval([checkpoint], small_store)
    other = replace(score, method="cmsc", run="another", frame_trained=FrameSpec(2.0))
    assert "trained on frames of" not in " ".join(shown([score]))
    assert "trained on frames of 2 s (cmsc) and" in " ".join(shown([score, other]))


def test_seeds_of_one_pre_training_share_its_run(
    checkpoint: Checkpoint, small_store: Store
) -> None:
    others = [
        replace(checkpoint, card=replace(checkpoint.card, **changed))
        for changed in ({"seed": 7}, {"split_seed": 3}, {"training": {"lr": 0.5}})
    ]
    first, *rest = retrieval([checkpoint, *others], small_store)[:4]
    assert [one.run == first.run for one in rest] == [True, False, False]


def test_encoders_of_different_leads_need_the_leads_to_score_on(
    checkpoint: Checkpoint, small_store: Store
) -> None:
    single = replace(checkpoint, card=replace(checkpoint.card, leads=("II",)))
    with pytest.raises(SettingError, match=r"different leads \(II and II, V2, aVL, aVR\)"):
        retrieval([checkpoint, single], small_store)
    both = retrieval([checkpoint, single], small_store, leads=["II"])[:2]
    assert [one.leads for one in both] == [("II",), ("II",)]
    assert both[0].halves == both[1].halves
    assert retrieval([checkpoint], small_store)[0].leads == checkpoint.card.leads


def test_chance_of_ten_is_what_drawing_gives() -> None:
    draw, own = np.random.default_rng(0), np.array([1, 3])
    found = _same_patient(np.zeros((2, 10), bool), own, 40, FrameSpec(5.0))
    hits = [np.mean([(draw.permutation(40)[:10] < n).any() for _ in range(4000)]) for n in own]
    assert found["chance"] == pytest.approx(2 / 40)
    assert found["chance10"] == pytest.approx(np.mean(hits), abs=0.02)
    few = _same_patient(np.ones((1, 3), bool), np.array([2]), 3, FrameSpec(5.0))
    assert few["chance10"] == 1.0


def test_seen_patients_are_left_out_and_counted(
    checkpoint: Checkpoint, small_store: Store, usual_frames: Frames
) -> None:
    _, everyone = unseen_recordings([checkpoint], small_store, split="all")
    assert everyone["patients"] == len(usual_frames.patients_of(2))
    assert everyone["patients_seen"] == len(usual_frames.patients_of(0, 1))
    fresh = replace(
        checkpoint,
        card=replace(checkpoint.card, trained_on=()),
        recordings=np.zeros(0, np.uint64),
    )
    assert unseen_recordings([fresh], small_store, split="all")[1]["patients_seen"] == 0
    _, both = unseen_recordings([fresh, checkpoint], small_store, split="all")
    assert both["patients_seen"] == everyone["patients_seen"]
    with pytest.raises(LeakError, match="has seen every patient in the split 'train'"):
        unseen_recordings([checkpoint], small_store, split="train")
