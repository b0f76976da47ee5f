"""Encoders of many leads evaluated: rows of all leads, scores per recording, further tests."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from clocs.cli.tables import evaluation_table
from clocs.errors import CheckpointError, SettingError
from clocs.evaluation.groups import score_groups
from clocs.evaluation.labeled import LabeledPart, rows_with_label
from clocs.evaluation.protocols import PROTOCOLS
from clocs.evaluation.result import Predictions
from clocs.frames.frames import ABSENT, Frames
from clocs.frames.make import make_frames
from clocs.recording import FrameSpec
from clocs.store.store import Store
from clocs.training import Settings
from clocs.training.checkpoint import Checkpoint
from clocs.training.embed import embed_instances
from evaluation_parts import classifier_logits, compare
from research.noise import fewer_leads, noisy_test
from tiny_leads import many_lead_checkpoints, tiny_leads

WITHOUT_MAPS = [name for name in PROTOCOLS if name != "attentive"]  # which the tiny encoder has not
QUICK = Settings(epochs=2, batch_size=32, lr=1e-2)
FRAME = FrameSpec(2.5, 500)


@pytest.fixture(scope="module", autouse=True)
def encoder() -> Iterator[str]:
    with tiny_leads() as name:
        yield name


@pytest.fixture(scope="module")
def frames(small_store: Store) -> Frames:
    return make_frames(small_store, spec=FRAME, leads=("I", "II", "V2"))


@pytest.fixture(scope="module")
def group(frames: Frames, encoder: str) -> list[Checkpoint]:
    return many_lead_checkpoints(frames.for_leads(("II", "V2", "V6", "I")))


@pytest.fixture(scope="module")
def one_lead(frames: Frames) -> list[Checkpoint]:
    from clocs.pretraining.plan import Plan
    from clocs.pretraining.pretrain import untrained

    return untrained(frames, Plan("random-bn", (0, 1), embedding_dim=8))


def scored(groups: Any, frames: Frames, **more: Any) -> Any:
    how: dict[str, Any] = {"settings": QUICK, "resamples": 20} | more
    return score_groups(groups, frames, **how)


@pytest.mark.parametrize("protocol", WITHOUT_MAPS)
def test_many_leads_are_scored_per_recording(
    group: list[Checkpoint], frames: Frames, protocol: str, tmp_path: Path
) -> None:
    (one,) = scored([group], frames, protocol=protocol)
    test = frames.split == 2
    recordings = np.unique(frames.recording[test])
    found, p = one.evaluation, one.predictions
    assert found.per == p.per == "recording"
    assert len(p) == len(recordings) and found.test_frames == int(test.sum())
    assert found.auc == pytest.approx(found.auc_recording)
    assert found.leads == ["II", "V2", "I"]  # V6 is not there
    trained = len(np.unique(frames.recording[frames.split == 0]))
    assert found.labeled == [trained] * 2 and found.by == "recording"
    assert set(p.columns()["lead"]) == {"all"}
    p.save(tmp_path / "p.safetensors")
    assert Predictions.load(tmp_path / "p.safetensors").per == "recording"


def test_a_recordings_embedding_is_the_mean_of_its_frames(
    group: list[Checkpoint], frames: Frames
) -> None:
    own = frames.for_leads(group[0].encoder.leads)
    part = LabeledPart(own, rows_with_label(own, 2, leads_at_once=True), "recording")
    z = embed_instances(group, own, part.rows)
    average = part.averaging("cpu")
    assert average is not None
    mean = average(z)
    recordings = own.recording[part.rows.frame]
    for place, recording in enumerate(np.unique(recordings)):
        expected = z[:, torch.from_numpy(recordings == recording)].mean(dim=1)
        assert torch.allclose(mean[:, place], expected, atol=1e-6)
        assert np.array_equal(part.targets[place], own.target[part.frame[place]])


def test_a_recording_has_the_label_of_most_of_its_frames(frames: Frames) -> None:
    target = frames.target.copy()
    first = np.flatnonzero(frames.recording == frames.recording[0])
    target[first] = 0
    target[first[0], 0] = target[first[1:], 1] = 1
    rows = rows_with_label(replace(frames, target=target), int(frames.split[0]))
    for multilabel in (False, True):
        changed = replace(frames, target=target, multilabel=multilabel)
        part = LabeledPart(changed, rows, "recording")
        place = np.flatnonzero(frames.recording[part.frame] == frames.recording[0])[0]
        assert part.targets[place].tolist() == np.eye(target.shape[1])[1].tolist()


def test_one_lead_encoders_are_scored_per_row_unless_told_otherwise(
    one_lead: list[Checkpoint], frames: Frames, small_frames: Frames
) -> None:
    (rows,) = scored([one_lead], frames)
    assert rows.evaluation.per == "row" and len(rows.predictions) == rows.evaluation.test_frames
    (recordings,) = scored([one_lead], frames, per="recording")
    assert len(recordings.predictions) < len(rows.predictions)
    with pytest.raises(SettingError, match="`per` is row or recording"):
        scored([one_lead], frames, per="patient")


def test_one_lead_and_many_lead_encoders_are_compared_per_recording(
    group: list[Checkpoint], one_lead: list[Checkpoint], frames: Frames
) -> None:
    found = scored([one_lead, group], frames, protocol="linear-converged")
    assert [one.evaluation.per for one in found] == ["recording"] * 2
    comparison = compare(found[0].predictions, found[1].predictions, resamples=20)
    assert comparison.seeds == 2
    (alone,) = scored([group], frames, protocol="linear-converged")
    assert alone.evaluation.auc == pytest.approx(found[1].evaluation.auc, abs=1e-6)
    first = evaluation_table(alone.evaluation).rows[0]
    assert first[0] == "AUC per recording" and f"{alone.evaluation.auc_mean:.3f}" in first[1]


def one_lead_alone(part: LabeledPart) -> LabeledPart:
    return fewer_leads(part, ["II"])


@pytest.mark.parametrize("protocol", WITHOUT_MAPS)
def test_further_tests_are_of_the_same_classifiers(
    group: list[Checkpoint], frames: Frames, protocol: str
) -> None:
    noisy = partial(noisy_test, kind="muscle", snr_db=0.0)
    further = [lambda part: part, one_lead_alone, noisy]
    (one,) = scored([group], frames, protocol=protocol, further=further)
    same, few, loud = one.further
    assert np.array_equal(same.probabilities, one.predictions.probabilities)
    assert len(few) == len(loud) == len(same)
    assert (few.probabilities != same.probabilities).any()
    assert (loud.probabilities != same.probabilities).any()
    assert np.array_equal(loud.thresholds, same.thresholds)


def test_further_tests_of_one_lead_encoders_leave_out_rows(
    one_lead: list[Checkpoint], frames: Frames
) -> None:
    (one,) = scored([one_lead], frames, protocol="knn", per="row", further=[one_lead_alone])
    p, (few,) = one.predictions, one.further
    kept = p.lead == p.leads.index("II")
    assert np.array_equal(few.probabilities, p.probabilities[:, kept])


def test_leads_that_no_test_frame_has_are_refused(group: list[Checkpoint], frames: Frames) -> None:
    with pytest.raises(SettingError, match="no test frame of synthetic has one of the leads V6"):
        scored([group], frames, further=[lambda part: fewer_leads(part, ["V6"])])


def test_longer_frames_than_those_of_training_are_seen_by_the_same_weights(
    group: list[Checkpoint], one_lead: list[Checkpoint], small_store: Store
) -> None:
    longer = make_frames(small_store, spec=FrameSpec(5, 1000), leads=("I", "II", "V2"))
    (one,) = scored([group], longer, protocol="finetune")
    assert one.classifiers[0].encoder.samples == 1000
    x = torch.zeros(1, 2, 4, 1000)
    assert classifier_logits(one.classifiers[0], x).shape[:2] == (1, 2)
    with pytest.raises(CheckpointError, match="sees 200 samples per second, not 400"):
        group[0].for_frame(FrameSpec(2.5, 1000))
    with pytest.raises(CheckpointError, match="leave out `seconds`"):
        one_lead[0].for_frame(FrameSpec(5, 1000))


def test_seconds_make_longer_frames_of_those_there_are(
    group: list[Checkpoint], frames: Frames
) -> None:
    how = {"protocol": "finetune", "crops": True, "lead_subsets": 0.5, "gaussian": 0.1}
    how |= {"head_dropout": 0.3, "stop_by": "auc", "precision": "bfloat16"}
    (one,) = scored([group], frames, seconds=4, further=[one_lead_alone], **how)
    assert one.classifiers[0].encoder.samples == 800
    assert one.evaluation.settings["head_dropout"] == 0.3
    best = one.evaluation.settings["best_epoch"]
    (kept,) = scored([group], frames, seconds=4, curve=True, **how)
    curves = kept.evaluation.curve
    assert best == [1 + int(np.argmax(curve)) for curve in curves]
    assert one.evaluation.auc_validation == pytest.approx([max(c) for c in curves], abs=1e-6)


def test_the_attentive_head_sees_the_feature_maps_of_many_leads(small_store: Store) -> None:
    """Of the large encoder, so on short frames."""
    some = make_frames(small_store, spec=FrameSpec(2.5, 80), leads=("I", "II", "V2"))
    group = many_lead_checkpoints(some, encoder="multilead")
    how = {"protocol": "attentive", "stop_by": "auc"}
    (one,) = scored([group], some, further=[one_lead_alone], **how)
    found, (few,) = one.evaluation, one.further
    assert found.per == "recording"
    assert len(one.predictions) == len(np.unique(some.recording[some.split == 2]))
    assert (few.probabilities != one.predictions.probabilities).any()
    assert found.settings["stop_by"] == "auc"


def test_encoders_without_a_feature_map_are_refused_by_attentive(
    group: list[Checkpoint], frames: Frames
) -> None:
    with pytest.raises(SettingError, match="has no feature map"):
        scored([group], frames, protocol="attentive")


def test_a_recording_that_has_none_of_the_leads_is_not_scored(
    group: list[Checkpoint], frames: Frames
) -> None:
    starts = frames.starts.copy()
    gone = frames.recording == frames.recording[frames.split == 2][0]
    starts[gone] = ABSENT
    (one,) = scored([group], replace(frames, starts=starts))
    (every,) = scored([group], frames)
    assert len(one.predictions) == len(every.predictions) - 1


@pytest.mark.parametrize("protocol", WITHOUT_MAPS)
def test_few_labeled_patients_are_enough_for_every_protocol(
    group: list[Checkpoint], frames: Frames, protocol: str
) -> None:
    more = {"k": 2} if protocol == "knn" else {}
    few, some = (
        scored([group], frames, protocol=protocol, by="patient", fraction=f, **more)[0].evaluation
        for f in (0.1, 0.3)
    )
    assert 0 < max(few.labeled) < min(some.labeled)


def test_few_labels_can_be_regularised_more_strongly(
    group: list[Checkpoint], frames: Frames
) -> None:
    how: dict[str, Any] = {"protocol": "linear-converged", "by": "patient", "fraction": 0.1}
    (usual,) = scored([group], frames, **how)
    (same,) = scored([group], frames, strongest_l2=1, **how)
    assert same.evaluation.auc == usual.evaluation.auc
    (more,) = scored([group], frames, strongest_l2=100, **how)
    assert max(usual.evaluation.settings["l2"]) <= 1 < max(more.evaluation.settings["l2"]) <= 100
