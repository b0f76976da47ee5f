"""A classifier's file."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from clocs.errors import CheckpointError
from clocs.models.classifier import Classifier, fit_reference, load_classifier
from clocs.training.card import ClassifierCard, is_classifier
from clocs.training.checkpoint import Checkpoint, load_checkpoint

LABELS = ("AF", "N", "O")


@pytest.fixture
def classifier(checkpoint: Checkpoint) -> Classifier:
    """Two members on the same encoder, with different layers on top."""
    torch.manual_seed(3)
    dim = checkpoint.encoder.embedding_dim
    card = ClassifierCard(
        name="rhythm-test",
        dataset="synthetic",
        content="0",
        labels=LABELS,
        multilabel=False,
        protocol="linear",
        encoders=(checkpoint.card, checkpoint.card),
        temperature=(2.0, 2.0, 2.0),
        thresholds=(0.4, None, 0.5),
        limits={"1": {"ecg_share": 0.2}},
        scores={"auc": 0.9},
    )
    head = {"weight": torch.randn(2, dim, 3), "bias": torch.randn(2, 3)}
    return Classifier(card, (checkpoint, checkpoint), head, fit_reference(torch.randn(2, 50, dim)))


def test_a_card_of_an_earlier_version_moves_no_logits(classifier: Classifier) -> None:
    facts = classifier.card.to_dict()
    del facts["by_leads"]
    assert ClassifierCard.from_dict(json.loads(json.dumps(facts))).by_leads == {}


@pytest.mark.parametrize(
    "moves",
    [
        {"3": {"scale": [1, 1, 1], "bias": [0, 0, 0]}},
        {"1": {"scale": [1, 1], "bias": [0, 0]}},
        {"1": {"scale": [1, 1, 1]}},
        {"1": {"scale": [1, 1, None], "bias": [0, 0, 0]}},
        {"1": [1, 1, 1]},
        [1],
    ],
)
def test_moves_that_fit_no_class_or_number_of_leads_are_refused(
    moves: object, classifier: Classifier
) -> None:
    facts = json.loads(json.dumps(classifier.card.to_dict() | {"by_leads": moves}))
    with pytest.raises(ValueError, match="by_leads"):
        ClassifierCard.from_dict(facts)


def as_json(one: Classifier) -> object:
    return json.loads(json.dumps(one.card.to_dict()))


def test_what_was_saved_is_loaded(classifier: Classifier, tmp_path: Path) -> None:
    file = tmp_path / "rhythm.safetensors"
    classifier.save(file)
    assert is_classifier(file)
    found = load_classifier(file)
    assert as_json(found) == as_json(classifier)
    for name, tensor in classifier.head.items():
        assert torch.equal(found.head[name], tensor)
    assert torch.equal(found.reference["mean"], classifier.reference["mean"])
    for one, other in zip(found.encoders, classifier.encoders, strict=True):
        assert all(torch.equal(one.weights[k], v) for k, v in other.weights.items())
        assert all(torch.equal(one.buffers[k], v) for k, v in other.buffers.items())


def test_probabilities_are_of_the_members_mean_at_the_temperature(classifier: Classifier) -> None:
    z = torch.randn(2, 5, classifier.encoders[0].encoder.embedding_dim)
    each = [z[m] @ classifier.head["weight"][m] + classifier.head["bias"][m] for m in (0, 1)]
    expected = ((each[0] + each[1]) / 2 / 2.0).softmax(dim=1)
    assert torch.allclose(classifier.probabilities(classifier.logits(z)), expected, atol=1e-6)


def test_with_several_labels_the_confidence_is_that_all_of_them_are_right(
    classifier: Classifier,
) -> None:
    chances, share = np.array([[0.9, 0.2, 0.1]]), np.ones(1)
    z = torch.zeros(2, 1, classifier.encoders[0].encoder.embedding_dim)
    several = replace(classifier, card=replace(classifier.card, multilabel=True))
    assert several.doubts(chances, z, share)["confidence"] == pytest.approx(0.9 * 0.8 * 0.9)
    assert classifier.doubts(chances, z, share)["confidence"] == pytest.approx(0.9)


def test_limits_are_those_of_the_most_leads_that_a_recording_has(classifier: Classifier) -> None:
    limits = {"1": {"ecg_share": 0.2}, "6": {"ecg_share": 0.4}}
    card = replace(classifier.card, limits=limits)
    found = [card.limits_of(leads)["ecg_share"] for leads in (1, 5, 6, 12)]
    assert found == [0.2, 0.2, 0.4, 0.4]


def test_a_damaged_or_foreign_file_is_refused(
    classifier: Classifier, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    file = tmp_path / "rhythm.safetensors"
    classifier.save(file)
    content = bytearray(file.read_bytes())
    content[-5] ^= 1
    file.write_bytes(content)
    with pytest.raises(CheckpointError, match="damaged"):
        load_classifier(file)
    checkpoint.save(tmp_path / "seed-0.safetensors")
    assert not is_classifier(tmp_path / "seed-0.safetensors")
    with pytest.raises(CheckpointError, match="is an encoder, not a classifier"):
        load_classifier(tmp_path / "seed-0.safetensors")
    assert not is_classifier(tmp_path / "missing.safetensors")


@pytest.mark.parametrize(
    "change",
    [
        {"temperature": (1.0,)},
        {"temperature": (0.0, 1.0, 1.0)},
        {"thresholds": (0.5, 2.0, None)},
        {"labels": ("AF", "AF", "O")},
        {"protocol": "guess"},
        {"name": "a\x1b[31m"},
        {"limits": {"ecg_share": float("inf")}},
        {"limits": {"ecg_share": 10**400}},
        {"limits": {"noise": 1.0}},
        {"limits": {"2": {"ecg_share": float("nan")}}},
        {"limits": {"7": {"ecg_share": 0.1}}},
    ],
)
def test_a_card_beyond_its_limits_is_refused(
    classifier: Classifier, change: dict[str, object], tmp_path: Path
) -> None:
    file = tmp_path / "odd.safetensors"
    replace(classifier, card=replace(classifier.card, **change)).save(file)  # type: ignore[arg-type]
    with pytest.raises(CheckpointError, match="is not a clocs classifier"):
        load_classifier(file)


def test_a_reference_of_other_shapes_is_refused(classifier: Classifier, tmp_path: Path) -> None:
    for name, tensor in classifier.reference.items():
        odd = classifier.reference | {name: tensor[:1]}
        file = tmp_path / f"{name}.safetensors"
        replace(classifier, reference=odd).save(file)
        with pytest.raises(CheckpointError, match="its reference has other shapes"):
            load_classifier(file)


def test_the_recordings_of_all_members_are_remembered(
    classifier: Classifier, tmp_path: Path
) -> None:
    first, second = classifier.encoders
    other = replace(second, recordings=np.array([1, 2], np.uint64))
    replace(classifier, encoders=(first, other)).save(tmp_path / "two.safetensors")
    found = load_classifier(tmp_path / "two.safetensors").encoders[0].recordings
    assert set(found.tolist()) == {1, 2, *first.recordings.tolist()}


def on_shipped(classifier: Classifier, name: str) -> Classifier:
    """The same layers on an encoder of the package."""
    encoder = load_checkpoint(name)
    dim = encoder.encoder.embedding_dim
    head = {"weight": torch.randn(2, dim, 3), "bias": classifier.head["bias"]}
    card = replace(classifier.card, encoders=(encoder.card, encoder.card))
    return Classifier(card, (encoder, encoder), head, {})


def test_an_encoder_of_the_package_is_named_rather_than_copied(
    classifier: Classifier, tmp_path: Path
) -> None:
    classifier = on_shipped(classifier, "cmsmlc-many-leads")  # of float16
    small, large = tmp_path / "small.safetensors", tmp_path / "large.safetensors"
    classifier.save(small, shared=True)
    classifier.save(large)
    assert small.stat().st_size < large.stat().st_size / 50
    found = load_classifier(small)
    assert as_json(found) == as_json(classifier)
    for one, other in zip(found.encoders, load_classifier(large).encoders, strict=True):
        assert all(torch.equal(one.weights[k], v) for k, v in other.weights.items())
        assert all(torch.equal(one.buffers[k], v) for k, v in other.buffers.items())
        assert np.array_equal(one.recordings, other.recordings)


def test_an_encoder_that_is_not_in_the_package_is_not_shared(
    classifier: Classifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "rhythm.safetensors"
    with pytest.raises(CheckpointError, match="not one of the package"):
        classifier.save(file, shared=True)
    assert not file.exists()
    on_shipped(classifier, "cmsc-chapman").save(file, shared=True)
    monkeypatch.setattr("clocs.training.card.shipped_encoders", list)  # another version
    with pytest.raises(CheckpointError, match="this version of clocs does not have"):
        load_classifier(file)
