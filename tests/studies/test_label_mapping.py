"""Labels that two datasets share, and a classifier of one tested on the other."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from clocs.datasets.cardiology import Cardiology
from clocs.datasets.chapman import Chapman
from clocs.datasets.physionet import PhysioNet2017, PhysioNet2020
from clocs.errors import LeakError, SettingError
from clocs.frames.frames import Frames
from clocs.pretraining.plan import Plan
from clocs.pretraining.pretrain import pretrain_frames
from clocs.training import Settings
from clocs.training.checkpoint import Checkpoint
from research.analyses.frame_vectors import FrameVectors
from research.analyses.label_mapping import (
    CONCEPTS,
    other_hospital,
    score_shared,
    shared_concepts,
)


def scored(
    chances: Any, targets: Any, *, tested_on: str = "cardiology", patients: Any = None, **more: Any
) -> dict[str, Any]:
    """A classifier of PhysioNet 2017 on Cardiology, one patient per row."""
    chances = np.asarray(chances, np.float64)
    count = chances.shape[-2]
    patients = np.arange(count) if patients is None else patients
    zeros, ids = np.zeros(count, np.int64), tuple(f"p{i}" for i in range(count))
    labels = ("AFIB", "NOISE", "NSR", "VT")
    rows = FrameVectors(
        np.zeros((count, 1), np.float32), patients, np.arange(count), zeros, zeros + 2,
        np.asarray(targets, np.uint8), tested_on, labels, False, ids,
    )  # fmt: skip
    given: dict[str, Any] = {
        "classes": ("N", "A", "O", "~"),
        "trained_on": "physionet2017",
        "resamples": 50,
    }
    return score_shared(chances.reshape(-1, *chances.shape[-2:]), rows, **(given | more))


def test_every_label_of_the_table_is_a_label_of_its_dataset() -> None:
    labels = {one.name: one.labels for one in (Chapman, PhysioNet2020, PhysioNet2017, Cardiology)}
    for concept in CONCEPTS:
        for table in (concept.labels, concept.unclear):
            for dataset, own in table.items():
                assert own in labels[dataset]


def test_datasets_share_what_both_have_labels_of() -> None:
    names = [concept.name for concept in shared_concepts("chapman", "physionet2020")]
    assert names == ["atrial fibrillation", "normal"]
    assert len(shared_concepts("physionet2017", "cardiology")) == 3
    assert not shared_concepts("chapman", "ptbxl")


def test_a_concept_is_scored_by_the_class_that_means_it() -> None:
    # fibrillation, noise, normal, tachycardia
    targets = np.eye(4)
    chances = [[0.2, 0.5, 0.2, 0.1], [0.0, 0.9, 0.0, 0.1], [0.6, 0.3, 0.1, 0], [0.3, 0.4, 0.3, 0]]
    found = scored(chances, targets)["concepts"]
    # what is noise may be fibrillation or not: it is not scored
    assert found["atrial fibrillation"]["auc"] == 1
    assert found["atrial fibrillation"]["positives"] == 1
    assert found["atrial fibrillation"]["negatives"] == 2
    assert found["atrial fibrillation"]["unclear"] == 1
    assert found["normal"]["auc"] == 1
    # ties count half: one of three is above noise's, one equals it
    assert found["noise"]["auc"] == pytest.approx((0.5 + 1 + 1) / 3)
    assert found["noise"]["negatives"] == 3


def test_the_mean_is_over_seeds() -> None:
    draw = np.random.default_rng(0)
    targets = np.eye(4)[draw.integers(0, 4, 80)]
    chances = draw.dirichlet(np.ones(4), (2, 80))
    both = scored(chances, targets, seeds=(3, 4))
    alone = [scored(own, targets, seeds=(3,)) for own in chances]
    for name, one in both["concepts"].items():
        assert one["auc"] == pytest.approx(np.mean([own["concepts"][name]["auc"] for own in alone]))
        assert one["ci95"][0] < one["auc"] < one["ci95"][1]
    json.dumps(both, allow_nan=False)


def test_patients_are_drawn_not_rows() -> None:
    draw = np.random.default_rng(1)
    targets = np.eye(4)[draw.integers(0, 4, 30)]
    chances = draw.dirichlet(np.ones(4), 30)
    once = scored(chances, targets)
    ten = [np.tile(one, (10, 1)) for one in (chances, targets)]
    many = scored(*ten, patients=np.tile(np.arange(30), 10))
    assert many["patients"] == 30
    for name, one in many["concepts"].items():
        assert one["ci95"] == pytest.approx(once["concepts"][name]["ci95"])


def test_rows_without_a_label_are_not_scored() -> None:
    targets = np.array([[1, 0, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0]])
    chances = [[0.1, 0.5, 0.1, 0.1], [0.1, 0.4, 0.1, 0.1], [0, 1, 0, 0]]
    concept = CONCEPTS[:1]
    found = scored(chances, targets, concepts=concept)["concepts"]["atrial fibrillation"]
    assert found["auc"] == 1 and found["unclear"] == 1


def test_datasets_without_a_shared_concept_are_refused() -> None:
    with pytest.raises(SettingError, match="no labels that mean the same"):
        scored(np.full((2, 4), 0.25), np.eye(4)[:2], tested_on="mine")


def test_a_classifier_without_the_class_is_refused() -> None:
    with pytest.raises(SettingError, match="no class A"):
        scored(np.full((2, 2), 0.5), np.eye(4)[:2], classes=("N", "O"))


@pytest.fixture(scope="module")
def hospitals(
    small_frames: Frames, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Frames, Frames, list[Checkpoint]]:
    """One dataset under the names of two, and an encoder of the first's training patients."""
    labels = ("AFIB", "GSVT", "SB", "SR")
    one = replace(small_frames, dataset="chapman", labels=labels).with_split_seed(0)
    digests = small_frames.digests + np.uint64(1)
    other = replace(
        small_frames,
        dataset="physionet2020",
        labels=("AF", "PVC", "RBBB", "Normal"),
        content="other",
        digests=digests,
    ).with_split_seed(0)
    plan = Plan("cmsc", (0, 1), embedding_dim=8, settings=Settings(epochs=1, batch_size=64))
    return one, other, pretrain_frames(one, plan, tmp_path_factory.mktemp("hospital"))


def test_another_hospital_is_scored_beside_the_own(
    hospitals: tuple[Frames, Frames, list[Checkpoint]],
) -> None:
    one, other, checkpoints = hospitals
    found = other_hospital(checkpoints, one, other, resamples=20)
    assert found["same"]["tested_on"] == "chapman" and found["other"]["seeds"] == [0, 1]
    assert found["other"]["concepts"].keys() == found["same"]["concepts"].keys()
    assert found["other"]["patients"] == len(other.patients_of(2))
    assert all(0 <= one["auc"] <= 1 for one in found["other"]["concepts"].values())
    json.dumps(found, allow_nan=False)


def test_other_leads_elsewhere_are_refused(
    hospitals: tuple[Frames, Frames, list[Checkpoint]],
) -> None:
    one, other, checkpoints = hospitals
    with pytest.raises(SettingError, match="choose `leads` that both datasets have"):
        other_hospital(checkpoints[:1], one, other.with_leads(("II",)), resamples=20)


def test_patients_that_the_encoder_has_seen_are_not_tested(
    hospitals: tuple[Frames, Frames, list[Checkpoint]],
) -> None:
    one, other, checkpoints = hospitals
    with pytest.raises(LeakError):
        other_hospital(checkpoints, other, one.with_split_seed(1), resamples=20)
