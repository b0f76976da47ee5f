"""A classifier at another site: what a few of its labels mend, and what is never touched."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import clocs
from clocs import Checkpoint, Classifier, Frames, Store
from clocs.errors import CheckpointError, SettingError
from clocs.evaluation.labeled import LabeledPart, rows_with_label
from clocs.frames.frames import ABSENT
from clocs.models.classifier import load_classifier
from clocs.models.scores import labeled_part
from clocs.pretraining.plan import Plan
from clocs.pretraining.pretrain import pretrain_frames
from clocs.training.card import LEAD_GROUPS


@pytest.fixture(scope="module")
def encoder(small_frames: Frames, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    plan = Plan("random-bn", (0,), embedding_dim=16)
    return pretrain_frames(small_frames, plan, tmp_path_factory.mktemp("random") / "run")[0]


@pytest.fixture(scope="module")
def classifier(encoder: Checkpoint, small_store: Store) -> Classifier:
    return clocs.finetune(encoder, small_store, resamples=0)


@pytest.fixture(scope="module")
def overconfident(classifier: Classifier) -> Classifier:
    """As one from another hospital: logits ten times too large, and nobody known to it."""
    card = replace(classifier.card, temperature=(0.1,) * len(classifier.card.labels))
    encoders = tuple(
        replace(
            one,
            card=replace(one.card, trained_on=(), recording_hashes=False),
            recordings=one.recordings[:0],
        )
        for one in classifier.encoders
    )
    return replace(classifier, card=card, encoders=encoders)


@pytest.fixture(scope="module")
def calibrated(overconfident: Classifier, small_store: Store) -> Classifier:
    return clocs.calibrate(overconfident, small_store)


def test_overconfidence_is_mended_on_patients_without_a_part_in_it(
    calibrated: Classifier,
) -> None:
    report = calibrated.card.training["calibration"]
    before, few, *_, most = report["held_out"]
    assert (before["patients"], few["patients"]) == (0, 25)
    assert most["patients"] == report["patients"] - math.ceil(report["patients"] / 5)
    assert before["ece_sd"] == pytest.approx(0)
    assert most["ece"] < before["ece"]


def test_encoder_and_layer_stay_and_the_temperature_rises(
    calibrated: Classifier, overconfident: Classifier
) -> None:
    assert torch.equal(calibrated.head["weight"], overconfident.head["weight"])
    assert min(calibrated.card.temperature) > 0.3
    assert calibrated.card.limits.keys() <= set(LEAD_GROUPS)


def test_the_new_file_is_another_and_predicts_as_its_report_says(
    overconfident: Classifier, small_store: Store, tmp_path: Path, calibrated: Classifier
) -> None:
    made = clocs.calibrate(overconfident, small_store, out=tmp_path / "ours.safetensors")
    assert made.card.name == "ours"
    assert load_classifier(tmp_path / "ours.safetensors").card == made.card
    assert made.card.temperature == pytest.approx(calibrated.card.temperature)
    with pytest.raises(CheckpointError, match="exists or does not end in"):
        clocs.calibrate(overconfident, small_store, out=tmp_path / "ours.safetensors")


def test_a_label_of_the_site_may_stand_for_several(
    overconfident: Classifier, small_store: Store
) -> None:
    first, second, *_ = overconfident.card.labels
    names = {first: f"{first}|{second}", second: f"{first}|{second}"}
    made = clocs.calibrate(overconfident, small_store, label_names=names)
    assert made.card.training["calibration"]["recordings_left_out"] == 0
    for wrong in ({first: f"{first}|{second}"}, {"nothing": first}, {first: "nothing"}):
        with pytest.raises(SettingError, match="say with `label_names` what they are called in it"):
            clocs.calibrate(overconfident, small_store, label_names=wrong)


def test_patients_that_were_trained_on_have_no_part(
    classifier: Classifier, small_store: Store, small_frames: Frames
) -> None:
    test = labeled_part(classifier, small_frames, 2)
    patients = np.unique(small_frames.patient[test.frame])
    with pytest.raises(SettingError, match=f"has {len(patients)} patients with labels"):
        clocs.calibrate(classifier, small_store)


def test_a_part_through_few_leads_has_so_many_and_is_always_the_same(
    small_frames: Frames,
) -> None:
    part = LabeledPart(
        small_frames, rows_with_label(small_frames, 1, leads_at_once=True), "recording"
    )
    for leads in (1, 2):
        some = part.through(leads)
        assert len(some) == len(part)
        assert set(some.lead_counts) == {leads}
    used = (part.through(1).rows.windows != ABSENT).any(axis=0)
    assert used.sum() == len(small_frames.leads)
