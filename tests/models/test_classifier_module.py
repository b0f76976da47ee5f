"""`Classifier.to_module`: a plain torch module that gives what a recording is predicted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

import clocs
from clocs import Checkpoint, Frames, Store
from clocs.errors import SettingError
from clocs.evaluation.labeled import LabeledPart, RecordingVectors, rows_with_label
from clocs.frames.make import make_frames
from clocs.models.classifier import Classifier, moves_of
from clocs.models.explain import module_input
from clocs.models.predict import predict_recordings
from clocs.patients.embed import embed_each, embed_levels, embed_recordings
from clocs.patients.encode import InputSpec, cut_each
from clocs.pretraining.plan import Plan
from clocs.pretraining.pretrain import untrained
from clocs.recording import FrameSpec
from clocs.training.card import CENTERED
from some_classifier import some_classifier
from tiny_leads import many_lead_checkpoints, tiny_leads


@pytest.fixture(scope="module")
def frames(small_store: Store) -> Frames:
    return make_frames(small_store, spec=FrameSpec(2.5, 400))


@pytest.fixture(params=["cnn", "tiny-leads"])
def encoders(request: pytest.FixtureRequest, frames: Frames) -> Iterator[list[Checkpoint]]:
    with tiny_leads() as many:
        if request.param == many:
            yield many_lead_checkpoints(frames)
        else:
            yield untrained(frames, Plan("random", (0, 1), encoder="cnn", embedding_dim=12))


def inputs(classifier: Classifier, store: Store, count: int = 4) -> Tensor:
    some = [module_input(classifier.encoders[0], store.recording(i)) for i in range(count)]
    return torch.from_numpy(np.stack(some))


def expected(classifier: Classifier, store: Store, count: int = 4) -> Tensor:
    """By the product's embeddings of frames and the classifier's own functions."""
    some = [store.recording(i) for i in range(count)]
    each = [embed_recordings(one, some, level="frame") for one in classifier.encoders]
    rows = classifier.logits(torch.from_numpy(np.stack([one.vectors for one in each])))
    owner = each[0].rows["recording"].to_numpy()
    means = torch.stack([rows[torch.from_numpy(owner == one.id)].mean(dim=0) for one in some])
    return classifier.probabilities(means)


@pytest.mark.parametrize("multilabel", [False, True])
def test_the_module_gives_the_probabilities_of_recordings(
    multilabel: bool, encoders: list[Checkpoint], small_store: Store
) -> None:
    classifier = some_classifier(*encoders, multilabel=multilabel)
    module = classifier.to_module()
    assert module.labels == ("AF", "N", "O")
    with torch.no_grad():
        found = module(inputs(classifier, small_store))
    assert found.shape == (4, 3)
    assert torch.allclose(found, expected(classifier, small_store), atol=1e-5)


def test_logits_of_few_leads_are_moved_alike_by_module_and_prediction(
    frames: Frames, small_store: Store
) -> None:
    moves = {
        "1": {"scale": [0.5, 0.6, 0.7], "bias": [1.0, -1.0, 0.0]},
        "2": {"scale": [1.0] * 3, "bias": [0.0] * 3},
    }
    with tiny_leads():
        plain = some_classifier(*many_lead_checkpoints(frames))
        moved = replace(plain, card=replace(plain.card, by_leads=moves))
        whole = [small_store.recording(i) for i in range(3)]
        single = [one.select(["II"]) for one in whole]
        names = [f"p({label})" for label in plain.card.labels]
        for recordings, same in ((whole, True), (single, False)):
            raw, table = (predict_recordings(one, recordings) for one in (plain, moved))
            assert (table.select(names).equals(raw.select(names))) == same
            x = np.stack([module_input(plain.encoders[0], one) for one in recordings])
            with torch.no_grad():
                found = moved.to_module()(torch.from_numpy(x)).numpy()
            np.testing.assert_allclose(found, table.select(names).to_numpy(), atol=1e-5)


def test_between_known_numbers_of_leads_moves_are_interpolated(frames: Frames) -> None:
    """A single lead that is off must not make twelve leads into six."""
    moves = {
        "6": {"scale": [0.4] * 3, "bias": [6.0, 0.0, -6.0]},
        "12": {"scale": [1.0] * 3, "bias": [0.0] * 3},
    }
    with tiny_leads():
        plain = some_classifier(*many_lead_checkpoints(frames))
    found = moves_of(replace(plain.card, by_leads=moves))
    assert found[1, :, 0].tolist() == pytest.approx([6.0] * 7 + [5.0, 4.0, 3.0, 2.0, 1.0, 0.0])
    assert found[0, 11].tolist() == pytest.approx([0.9] * 3)


def test_the_module_gives_what_clocs_predict_gives_of_a_store(
    encoders: list[Checkpoint], small_store: Store
) -> None:
    classifier = some_classifier(*encoders)
    table = clocs.predict(classifier, small_store)
    expected = np.stack([table[f"p({label})"].to_numpy() for label in ("AF", "N", "O")], 1)
    ids = table["recording"].to_list()
    order = [ids.index(small_store.recording(i).id) for i in range(4)]
    with torch.no_grad():
        found = classifier.to_module()(inputs(classifier, small_store)).numpy()
    assert np.abs(found - expected[order]).max() < 1e-5


@pytest.mark.parametrize("maxima", [True, False])
@pytest.mark.parametrize(("network", "dim"), [("voltage", 80), ("multilead", 16)])
def test_of_maxima_over_time_a_recording_has_the_greatest_of_its_frames(
    network: str, dim: int, maxima: bool, frames: Frames, small_store: Store
) -> None:
    made = untrained(frames, Plan("random", encoder=network, embedding_dim=dim))[0]
    assert made.card.maxima == (8, 16)
    encoder = replace(made, card=replace(made.card, maxima=(8, 16) if maxima else ()))
    classifier, recording = some_classifier(encoder), small_store.recording(0)
    single = embed_recordings(encoder, [recording], level="frame")
    z = single.vectors
    assert len(z) > 1 and (z[:, 8:16] != z[0, 8:16]).any()
    own = z.astype(np.float64).mean(axis=0)
    if maxima:
        own[8:16] = z[:, 8:16].max(axis=0)
    expected = classifier.probabilities(classifier.logits(torch.from_numpy(own[None, None])))

    table = predict_recordings(classifier, [recording])
    found = table.select(f"p({label})" for label in classifier.card.labels).to_numpy()
    assert np.allclose(found, expected, atol=1e-5)
    module = classifier.to_module()
    with torch.no_grad():
        seen = module(torch.from_numpy(module_input(encoder, recording))[None])
    assert torch.allclose(seen.double(), expected, atol=1e-5)
    part = LabeledPart(frames, rows_with_label(frames, None, leads_at_once=True), "recording")
    row = [frames.recording_ids[n] for n in frames.recording[part.frame]].index(recording.id)
    assert np.allclose(RecordingVectors([encoder], "cpu").of(part)[0, row], own, atol=1e-5)

    # `clocs embed` and searches use the same vector, scaled to length 1
    if not maxima:
        own = (z / np.linalg.norm(z, axis=1, keepdims=True)).astype(np.float64).mean(axis=0)
    own /= np.linalg.norm(own)
    whole = embed_recordings(encoder, [recording]).vectors
    assert np.allclose(whole[0], own, atol=1e-6)
    assert np.array_equal(single.to("recording").vectors, whole)
    of_store = embed_levels(encoder, small_store, levels=["recording"])["recording"]
    ids = of_store.rows["recording"].to_list()
    assert np.array_equal(of_store.vectors[ids.index(recording.id)], whole[0])
    spec = InputSpec.from_checkpoint(encoder)
    assert np.array_equal(np.asarray(embed_each(cut_each([recording], spec), spec)[0]), whole[0])
    with torch.no_grad():
        seen = encoder.to_module()(torch.from_numpy(module_input(encoder, recording))[None])
    assert np.allclose(seen[0], own, atol=1e-5)


def test_gradients_reach_normalized_frames_and_logits_train(
    encoders: list[Checkpoint], small_store: Store
) -> None:
    classifier = some_classifier(*encoders)
    module = classifier.to_module()
    x = inputs(classifier, small_store)
    views, there = module.frames(x)
    assert bool(there.all())
    rows = views.flatten(0, 1).requires_grad_()
    module.network(rows)[:, 0].sum().backward()
    assert rows.grad is not None and float(rows.grad.abs().sum()) > 0
    module.train()
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-2)
    labels, losses = torch.tensor([0, 1, 2, 1]), []
    for _ in range(6):
        loss = torch.nn.functional.cross_entropy(module.logits(x), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]


def test_what_is_missing_does_not_count(encoders: list[Checkpoint], small_store: Store) -> None:
    classifier = some_classifier(*encoders)
    module, x = classifier.to_module(), inputs(classifier, small_store)
    shorter = x[..., :400]
    longer = torch.cat([shorter, torch.full_like(shorter, torch.nan)], dim=-1)
    with torch.no_grad():
        assert torch.allclose(module(longer), module(shorter), atol=1e-6)
        assert module(torch.full_like(shorter, torch.nan)).isnan().all()


def test_members_of_different_inputs_are_refused(encoders: list[Checkpoint]) -> None:
    first, second = encoders
    other = replace(second, card=replace(second.card, normalization=CENTERED))
    with pytest.raises(SettingError, match="members of this classifier take different inputs"):
        some_classifier(first, other).to_module()
