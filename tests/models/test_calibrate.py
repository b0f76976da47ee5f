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
from clocs.frames.make import make_frames
from clocs.models.calibrate import LabeledSite, _fitted
from clocs.models.classifier import load_classifier
from clocs.models.scores import labeled_part
from clocs.pretraining.plan import Plan
from clocs.pretraining.pretrain import pretrain_frames
from clocs.recording import FrameSpec
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


def three_recordings(classifier: Classifier) -> LabeledSite:
    """Of the first two classes, which alone the site has; the classifier is right about them."""
    count = len(classifier.card.labels)
    z = torch.randn(1, 3, classifier.encoders[0].encoder.embedding_dim)
    true = np.eye(count, dtype=np.uint8)[classifier.logits(z)[:, :2].argmax(dim=1).numpy()]
    return LabeledSite(
        z, np.ones(3), np.full(3, 12), np.arange(3), true, np.diag(np.arange(count) < 2)
    )


def test_a_class_that_the_site_does_not_have_stays(classifier: Classifier) -> None:
    made = _fitted(classifier, three_recordings(classifier))
    moved = (made.head["bias"] != classifier.head["bias"]).any(dim=0).tolist()
    assert moved == [True, True] + [False] * (len(moved) - 2)


def test_few_labels_move_a_classifier_no_further_than_they_gain(classifier: Classifier) -> None:
    site = three_recordings(classifier)
    chances = classifier.probabilities(classifier.logits(site.vectors)).numpy()
    made = _fitted(classifier, site)
    added = (made.head["bias"] - classifier.head["bias"])[0].numpy()
    divided = np.log(made.card.temperature[0] / classifier.card.temperature[0])
    gained = -np.log((chances * site.true).sum(axis=1)).sum()
    assert 0 < np.square([*added, divided]).sum() / 2 < gained


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


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> tuple[Classifier, Store, Store]:
    """A classifier of three tones, several at a time; its store, and a site that knows two."""
    folder, draw = tmp_path_factory.mktemp("several"), np.random.default_rng(5)
    labels = (draw.random((400, 3)) < 0.5).astype(int)
    labels[:, 2] |= ~labels.any(axis=1)
    time = np.arange(500) / 100
    tones = np.stack([np.sin(2 * np.pi * hertz * time) for hertz in (3, 7, 11)])
    signals = labels @ tones + 0.5 * draw.normal(size=(400, 500))
    classes = ["slow", "middle", "fast"]
    stores = [
        clocs.from_arrays(
            signals[own],
            [f"{name}-{i}" for i in range(200)],
            rate=100,
            leads=["II"],
            labels=labels[own, :known],
            classes=classes[:known],
            frame=FrameSpec(5.0, 500),
            name=name,
            out=folder / name,
        )
        for name, own, known in (("home", np.s_[:200], 3), ("site", np.s_[200:], 2))
    ]
    plan = Plan("random-bn", (0,), embedding_dim=16)
    encoder = pretrain_frames(make_frames(stores[0]), plan, folder / "run")[0]
    home, site = stores
    return clocs.finetune(encoder, home, resamples=0), home, site


def test_where_several_labels_can_hold_each_has_a_bias_and_a_temperature(
    several: tuple[Classifier, Store, Store],
) -> None:
    honest, _, site = several
    away = torch.tensor([[4.0, 0.0, 4.0]])
    cold = tuple(t * scale for t, scale in zip(honest.card.temperature, (1, 0.1, 0.1), strict=True))
    wrong = replace(
        honest,
        card=replace(honest.card, temperature=cold),
        head=honest.head | {"bias": honest.head["bias"] + away},
    )
    made = clocs.calibrate(wrong, site)
    before, *_, most = made.card.training["calibration"]["held_out"]
    assert most["ece"] < 0.7 * before["ece"]
    moved = (made.head["bias"] - wrong.head["bias"])[0]
    assert moved[0] < -1
    assert made.card.temperature[1] > 3 * wrong.card.temperature[1]
    # the site does not know the third label: nothing is learned about it
    assert moved[2] == 0
    assert made.card.temperature[2] == pytest.approx(wrong.card.temperature[2])
    assert torch.equal(made.head["weight"], wrong.head["weight"])
    assert made.card.thresholds == wrong.card.thresholds


def test_what_was_known_of_few_leads_stays_below_what_is_learned(
    several: tuple[Classifier, Store, Store],
) -> None:
    honest, _, site = several
    moves = {"1": {"scale": [2.0, 0.5, 1.0], "bias": [1.0, -1.0, 0.0]}}
    moved = replace(honest, card=replace(honest.card, by_leads=moves))
    made = clocs.calibrate(moved, site)
    z = torch.randn(1, 5, 16)
    added = (made.head["bias"] - moved.head["bias"])[0]
    assert added[:2].abs().min() > 0
    for leads in (1, 12):
        before, after = (one.logits(z, [leads] * 5) for one in (moved, made))
        assert torch.allclose(after, before + added, atol=1e-5)


def test_a_site_with_one_label_at_a_time_is_refused_where_several_can_hold(
    several: tuple[Classifier, Store, Store], small_store: Store
) -> None:
    first, *_ = small_store.manifest.labels
    with pytest.raises(SettingError, match="say with `label_names` what they are called in it"):
        clocs.calibrate(several[0], small_store, label_names={first: "slow"})


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
