"""From encoders and labels to a classifier."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import clocs
from clocs import Checkpoint, Classifier, Frames, FrameSpec, Store
from clocs.errors import CheckpointError, ClocsWarning, LeakError, SettingError
from clocs.evaluation import labeled as recording_vectors
from clocs.evaluation.groups import score_groups
from clocs.frames.make import make_frames
from clocs.models.classifier import load_classifier
from clocs.models.scores import labeled_part, nll, predictions_of, score_part
from clocs.pretraining.plan import Plan
from clocs.pretraining.pretrain import pretrain_frames
from clocs.training import Settings
from clocs.training.checkpoint import seen_patients
from clocs.training.embed import embedded_pieces
from tiny_leads import many_lead_checkpoints, tiny_leads

QUICK: dict[str, Any] = {"epochs": 2, "batch_size": 64, "lr": 1e-3, "resamples": 50}


@pytest.fixture(scope="module")
def encoders(small_frames: Frames, tmp_path_factory: pytest.TempPathFactory) -> list[Checkpoint]:
    """Three untrained encoders."""
    plan = Plan("random-bn", (0, 1, 2), embedding_dim=16)
    return pretrain_frames(small_frames, plan, tmp_path_factory.mktemp("random") / "run")


@pytest.fixture(scope="module")
def linear(encoders: list[Checkpoint], small_store: Store) -> Classifier:
    return clocs.finetune(encoders[0], small_store, resamples=50)


def equal(one: Classifier, other: Classifier) -> bool:
    pairs = [(one.head[k], other.head[k]) for k in one.head]
    for a, b in zip(one.encoders, other.encoders, strict=True):
        pairs += [(a.weights[k], b.weights[k]) for k in a.weights]
        pairs += [(a.buffers[k], b.buffers[k]) for k in a.buffers]
    return all(torch.equal(a, b) for a, b in pairs)


def test_a_linear_head_leaves_the_encoder_as_it_is(
    linear: Classifier, encoders: list[Checkpoint]
) -> None:
    assert linear.card.protocol == "linear"
    for name, tensor in encoders[0].weights.items():
        assert torch.equal(linear.encoders[0].weights[name], tensor)


@pytest.mark.parametrize("protocol", ["linear", "linear-converged", "finetune"])
def test_every_protocol_with_a_layer_returns_classifiers_that_predict_as_it_did(
    encoders: list[Checkpoint], small_frames: Frames, protocol: str
) -> None:
    settings = Settings(epochs=2, batch_size=64, lr=1e-3)
    (result,) = score_groups(
        [encoders[:2]],
        small_frames,
        protocol=protocol,
        per="recording",
        settings=settings,
        resamples=0,
    )
    assert len(result.classifiers) == 2
    for made, expected in zip(result.classifiers, result.predictions.probabilities, strict=True):
        weights = {k: v for k, v in made.weights.items() if not k.startswith("head.")}
        member = Checkpoint(encoders[0].card, weights, made.buffers, encoders[0].recordings)
        head = {k: made.weights[f"head.{k}"] for k in ("weight", "bias")}
        card: Any = SimpleNamespace(labels=small_frames.labels, by_leads={})
        one = Classifier(card, (member,), head, {})
        logits = score_part(one, labeled_part(one, small_frames, 2)).logits
        found = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        assert np.allclose(found, expected, atol=1e-5)


def test_a_frozen_encoder_embeds_every_recording_once(
    encoders: list[Checkpoint],
    small_store: Store,
    small_frames: Frames,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[int] = []

    def counted(checkpoints: Any, frames: Frames, rows: Any, device: Any, cache: Any) -> Any:
        seen.extend(np.unique(frames.recording[rows.frame]))
        return embedded_pieces(checkpoints, frames, rows, device, cache)

    monkeypatch.setattr(recording_vectors, "embedded_pieces", counted)
    made = clocs.finetune(encoders, small_store, members="best", resamples=0)
    assert sorted(seen) == np.unique(small_frames.recording[small_frames.has_label]).tolist()
    again = clocs.evaluate_classifier(made, small_store, resamples=0)
    assert again == made.card.scores


def test_the_file_is_what_was_returned_and_its_card_can_be_read(
    encoders: list[Checkpoint], small_store: Store, tmp_path: Path
) -> None:
    file = tmp_path / "new" / "rhythm.safetensors"
    made = clocs.finetune(encoders[0], small_store, out=file, head="whole", **QUICK)
    assert equal(made, load_classifier(file))
    assert [path.name for path in file.parent.iterdir()] == [file.name]
    card = made.card
    assert card.name == "rhythm"
    assert card.protocol == "finetune"
    assert card.training["protocol"] == "finetune"
    assert card.training["train"]["patients"] > card.training["validation"]["patients"]
    assert not torch.equal(
        *(next(iter(one.weights.values())) for one in (made.encoders[0], encoders[0]))
    )
    json.dumps(card.scores, allow_nan=False)


def test_scores_are_of_all_test_patients_and_none_that_was_trained_on(
    linear: Classifier, small_frames: Frames
) -> None:
    scores = linear.card.scores
    test = small_frames.split == 2
    assert scores["patients"] == len(np.unique(small_frames.patient[test]))
    assert scores["recordings"] == len(np.unique(small_frames.recording[test]))
    assert np.sum(scores["confusion"]) == scores["recordings"]
    assert sum(one["recordings"] for one in scores["per_class"].values()) == scores["recordings"]
    assert scores["ci95"][0] <= scores["auc"] <= scores["ci95"][1]
    assert set(scores["by_sex"]) == {"female", "male"}
    (encoder,) = linear.encoders
    seen = seen_patients(encoder, small_frames)
    assert seen[np.unique(small_frames.patient[~test])].all()
    assert not seen[np.unique(small_frames.patient[test])].any()


def test_another_split_of_the_same_patients_is_a_leak(
    linear: Classifier, small_store: Store
) -> None:
    with pytest.raises(LeakError, match="split_seed"):
        clocs.evaluate_classifier(linear, small_store, split_seed=1)


def test_evaluating_a_classifier_gives_the_scores_of_its_card(
    encoders: list[Checkpoint], small_store: Store, tmp_path: Path
) -> None:
    file = tmp_path / "rhythm.safetensors"
    made = clocs.finetune(
        encoders, small_store, out=file, head="whole", members="ensemble", **QUICK
    )
    assert len(made.encoders) == 3
    found = clocs.evaluate_classifier(file, small_store, resamples=50)
    assert_close(found, made.card.scores)


def assert_close(found: Any, expected: Any) -> None:
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            assert_close(found[key], value)
    elif isinstance(expected, list):
        for one, other in zip(found, expected, strict=True):
            assert_close(one, other)
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, abs=1e-9)
    else:
        assert found == expected


def test_the_best_seed_is_the_best_on_validation_patients(
    encoders: list[Checkpoint], small_store: Store
) -> None:
    made = clocs.finetune(encoders, small_store, resamples=0)
    auc = made.card.training["auc_validation"]
    assert made.card.training["kept"] == [int(np.argmax(auc))]
    assert made.encoders[0].card.seed == int(np.argmax(auc))
    assert len(auc) == 3


def test_seeds_of_one_encoder_differ_and_frozen_ones_would_not(
    encoders: list[Checkpoint], small_store: Store
) -> None:
    made = clocs.finetune(
        encoders[0], small_store, head="whole", seeds=2, members="ensemble", **QUICK
    )
    assert not torch.equal(made.head["weight"][0], made.head["weight"][1])
    with pytest.raises(SettingError, match="the same for every seed"):
        clocs.finetune(encoders[0], small_store, seeds=2)


def test_a_choice_that_does_not_exist_is_named(
    encoders: list[Checkpoint], small_store: Store
) -> None:
    wrong: Any = "whole body"
    with pytest.raises(SettingError, match="`head` is linear or whole, not 'whole body'"):
        clocs.finetune(encoders[0], small_store, head=wrong)
    with pytest.raises(SettingError, match="does not take `crops`"):
        clocs.finetune(encoders[0], small_store, crops=True)


def test_only_unchanged_encoders_of_the_package_are_shared(
    encoders: list[Checkpoint], small_store: Store
) -> None:
    with pytest.raises(SettingError, match="cannot be shared"):
        clocs.finetune(encoders[0], small_store, head="whole", shared=True)
    with pytest.raises(CheckpointError, match="not one of the package"):
        clocs.finetune(encoders[0], small_store, shared=True)


def test_rare_classes_count_more_with_class_weights(
    linear: Classifier, encoders: list[Checkpoint], small_store: Store
) -> None:
    weighted = clocs.finetune(encoders[0], small_store, class_weights=True, resamples=0)
    assert weighted.card.training["class_weights"]
    assert not torch.equal(weighted.head["weight"], linear.head["weight"])


def test_an_existing_file_is_never_overwritten(
    encoders: list[Checkpoint], small_store: Store, tmp_path: Path
) -> None:
    file = tmp_path / "rhythm.safetensors"
    made = clocs.finetune(encoders[0], small_store, out=file, resamples=0)
    before = file.read_bytes()
    with pytest.raises(CheckpointError, match="exists and is not overwritten"):
        clocs.finetune(encoders[0], small_store, out=file, resamples=0)
    with pytest.raises(CheckpointError, match="a training with other settings"):
        clocs.finetune(encoders[1], small_store, out=file, resamples=0, resume=True)
    again = clocs.finetune(encoders[0], small_store, out=file, resamples=0, resume=True)
    assert equal(made, again)
    assert file.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == [file.name]


def test_labels_that_differ_are_refused_and_other_names_are_mapped(
    linear: Classifier, small_store: Store, tmp_path: Path
) -> None:
    first, *others = linear.card.labels
    renamed = Classifier(
        replace(linear.card, labels=("Flutter", *others)),
        linear.encoders,
        linear.head,
        {},
    )
    with pytest.raises(SettingError, match=r"Flutter.*label_names"):
        clocs.evaluate_classifier(renamed, small_store)
    found = clocs.evaluate_classifier(
        renamed, small_store, label_names={first: "Flutter"}, resamples=0
    )
    assert found["auc"] == pytest.approx(linear.card.scores["auc"], abs=1e-9)


def test_a_recording_may_have_several_labels(tmp_path: Path) -> None:
    draw = np.random.default_rng(5)
    labels = (draw.random((80, 3)) < 0.5).astype(int)
    labels[:, 2] |= ~labels.any(axis=1)
    time = np.arange(1000) / 100
    tones = np.stack([np.sin(2 * np.pi * hertz * time) for hertz in (3, 7, 11)])
    signals = labels @ tones + 0.3 * draw.normal(size=(80, 1000))
    store = clocs.from_arrays(
        signals,
        [f"p{i}" for i in range(80)],
        rate=100,
        leads=["II"],
        labels=labels,
        classes=["slow", "middle", "fast"],
        frame=FrameSpec(5.0, 500),
        out=tmp_path / "store",
    )
    frames = make_frames(store)
    plan = Plan("random-bn", (0,), embedding_dim=16)
    encoder = pretrain_frames(frames, plan, tmp_path / "run")[0]
    card = clocs.finetune(encoder, store, resamples=0).card
    assert card.multilabel
    assert len(set(card.temperature)) > 1
    counts = np.array(card.scores["confusion"])
    assert counts.shape == (3, 2, 2)
    assert (counts.sum(axis=(1, 2)) == card.scores["recordings"]).all()
    for label, ((neither, alone), (missed, both)) in zip(card.labels, counts, strict=True):
        own = card.scores["per_class"][label]
        assert own["sensitivity"] == pytest.approx(both / (both + missed))
        assert own["specificity"] == pytest.approx(neither / (neither + alone))
        assert own["recordings"] == both + missed


def test_the_limits_of_abstention_are_those_of_validation_recordings(
    linear: Classifier, small_frames: Frames
) -> None:
    card = linear.card
    validation = score_part(linear, labeled_part(linear, small_frames, 1))
    beyond = linear.beyond(validation.doubts(linear), validation.part.lead_counts.tolist())
    assert 0 < np.any(list(beyond.values()), axis=0).mean() <= 0.25
    rest = card.scores["abstention"]
    assert rest["coverage"] == pytest.approx(rest["recordings"] / card.scores["recordings"])
    assert {"auc", "f1", "accuracy", "too_noisy", "too_far"} <= rest.keys()


def test_few_leads_are_calibrated_by_validation_recordings_without_the_others(
    small_store: Store, small_frames: Frames
) -> None:
    with tiny_leads():
        encoder = many_lead_checkpoints(small_frames, (0,))[0]
        made = clocs.finetune(encoder, small_store, resamples=0)
        assert made.card.by_leads.keys() == made.card.limits.keys() == {"1", "2"}
        assert made.card.by_leads["2"] == {"scale": [1.0] * 4, "bias": [0.0] * 4}
        raw = replace(made, card=replace(made.card, by_leads={}))
        single = labeled_part(made, small_frames, 1).through(1)
        losses = [
            nll(
                score_part(one, single).logits / np.array(one.card.temperature),
                single.targets,
                multilabel=False,
            )
            for one in (made, raw)
        ]
        assert losses[0] < losses[1]


def assert_predicted_as_scored(classifier: Classifier, store: Store, frames: Frames) -> None:
    """What `clocs.predict` says of the test part is what the scores are of."""
    table = clocs.predict(classifier, store, split="test")
    scored = score_part(classifier, labeled_part(classifier, frames, 2))
    made = predictions_of(classifier.card, scored)
    own = {name: place for place, name in enumerate(made.columns()["recording"])}
    rows = [own[name] for name in table["recording"]]
    assert len(rows) == len(made)
    columns = [f"p({label})" for label in classifier.card.labels]
    chances = table.select(columns).to_numpy()
    assert np.allclose(chances, made.probabilities[0][rows], atol=1e-5)
    assert np.allclose(table["ecg_share"].to_numpy(), scored.ecg_share[rows], atol=1e-5)
    within = table["abstained"].is_null().sum()
    assert within == classifier.card.scores["abstention"]["recordings"]


def test_prediction_gives_the_probabilities_that_were_scored(
    linear: Classifier, small_store: Store, small_frames: Frames
) -> None:
    assert_predicted_as_scored(linear, small_store, small_frames)


def test_encoders_of_many_leads_are_fine_tuned_too(small_store: Store) -> None:
    frames = make_frames(small_store, spec=FrameSpec(2.5, 500), leads=("I", "II", "V2"))
    with tiny_leads():
        group = many_lead_checkpoints(frames)
        made = clocs.finetune(group, small_store, head="whole", members="ensemble", **QUICK)
        assert made.encoders[0].card.frame == frames.spec
        found = clocs.evaluate_classifier(made, small_store, resamples=50)
        assert_close(found, made.card.scores)
        assert_predicted_as_scored(made, small_store, frames)


def test_a_classifier_is_no_encoder_to_start_from(
    linear: Classifier, small_store: Store, tmp_path: Path
) -> None:
    linear.save(tmp_path / "linear.safetensors")
    with pytest.raises(SettingError, match="classifier already"):
        clocs.finetune(tmp_path / "linear.safetensors", small_store)


def test_a_store_without_the_classifiers_leads_is_refused_unless_others_are_named(
    linear: Classifier, small_store: Store
) -> None:
    (encoder,) = linear.encoders
    leads = ("V7", *encoder.card.leads)
    partly = replace(encoder, card=replace(encoder.card, leads=leads))
    with pytest.warns(ClocsWarning, match="no lead V7"):
        found = clocs.evaluate_classifier(
            replace(linear, encoders=(partly,)), small_store, resamples=0
        )
    assert found["auc"] == pytest.approx(linear.card.scores["auc"], abs=1e-9)
    none = replace(linear, encoders=(replace(encoder, card=replace(encoder.card, leads=("V7",))),))
    with pytest.raises(SettingError, match="with `leads`"):
        clocs.evaluate_classifier(none, small_store)
    assert clocs.evaluate_classifier(none, small_store, leads=["II"], resamples=0)["auc"] > 0
