"""Which part of an ECG drove a prediction."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import clocs
from clocs.errors import ClocsError, SettingError
from clocs.frames.frames import Frames
from clocs.models.classifier import Classifier
from clocs.models.explain import CELL, Explainer, module_input
from clocs.recording import Gap, Recording
from clocs.store.store import Store
from clocs.training.checkpoint import Checkpoint
from some_classifier import some_classifier
from tiny_leads import many_lead_checkpoints, tiny_leads


@pytest.fixture(scope="module")
def classifier(checkpoint: Checkpoint) -> Classifier:
    return some_classifier(checkpoint, checkpoint)


@pytest.fixture(scope="module")
def twelve(small_frames: Frames) -> Iterator[Classifier]:
    """Of an encoder that sees its leads at once, half of whose numbers are maxima over time."""
    with tiny_leads():
        (made,) = many_lead_checkpoints(small_frames, (0,))
        dim = made.encoder.embedding_dim
        yield some_classifier(replace(made, card=replace(made.card, maxima=(dim // 2, dim))))


@pytest.fixture(scope="module")
def recording(small_store: Store) -> Recording:
    return small_store.recording(0)


def longer(recording: Recording, times: int) -> Recording:
    return replace(recording, digital=np.tile(recording.digital, (1, times)), episodes=())


def logit(explainer: Explainer, x: np.ndarray, k: int) -> float:
    """By the module that is exported, without anything of the explanation."""
    with torch.no_grad():
        logits = explainer.module.logits(torch.tensor(x)[None])[0]
    return float(logits[k] - (0 if explainer.card.multilabel else logits.mean()))


@pytest.mark.parametrize("which", ["classifier", "twelve"])
def test_the_effect_of_a_tenth_of_a_second_is_the_fall_of_the_logit_without_it(
    which: str, recording: Recording, request: pytest.FixtureRequest
) -> None:
    explainer = Explainer(request.getfixturevalue(which))
    x = module_input(explainer.checkpoint, recording)
    with torch.no_grad():
        effects = explainer.effects_of_cells(torch.tensor(x), 1)
    width, before = round(CELL * explainer.module.rate), logit(explainer, x, 1)
    assert effects.shape == (len(x), -(-x.shape[1] // width))
    for lead, cell in ((0, 0), (1, 7), (len(x) - 1, effects.shape[1] - 1)):
        changed, own = x.copy(), slice(cell * width, (cell + 1) * width)
        rest = np.delete(np.arange(x.shape[1]), own)
        changed[lead, own] = np.interp(np.arange(x.shape[1])[own], rest, x[lead, rest])
        fall = before - logit(explainer, changed, 1)
        assert effects[lead, cell] == pytest.approx(fall, abs=1e-5)


def test_of_many_leads_a_stretch_of_all_counts_and_in_each_as_much_as_the_lead(
    twelve: Classifier, recording: Recording
) -> None:
    explainer = Explainer(twelve)
    x = module_input(explainer.checkpoint, recording)
    with torch.no_grad():
        effects = explainer.effects(torch.tensor(x), 1)
        by_lead = explainer.effects_of_leads(torch.tensor(x), 1)
    rate, before = explainer.module.rate, logit(explainer, x, 1)
    for lead in range(len(x)):
        without = x.copy()
        without[lead] = np.nan
        assert by_lead[lead] == pytest.approx(before - logit(explainer, without, 1), abs=1e-5)
    weight = by_lead.clip(min=0) / by_lead.max()
    for cell in (0, 7, effects.shape[1] - 1):
        start, stop = (round(end * rate) for end in (cell * CELL, (cell + 1) * CELL))
        at, changed = np.arange(x.shape[1]), x.copy()
        gone = (at >= start) & (at < stop)
        for signal in changed:
            signal[gone] = np.interp(at[gone], at[~gone], signal[~gone])
        fall = before - logit(explainer, changed, 1)
        assert effects[:, cell] == pytest.approx(weight * fall, abs=1e-5)
    left = explainer.deleted(torch.tensor(x), effects, 0.1).numpy()
    changed = (left != x).any(axis=0)  # the same stretches in every lead
    assert ((left != x).mean(axis=1) > 0.8 * changed.mean()).all() and changed.mean() < 0.15


def test_the_most_probable_label_is_explained_unless_another_is_named(
    classifier: Classifier, recording: Recording
) -> None:
    made = clocs.explain(classifier, recording)
    assert made.label == max(made.probabilities, key=lambda name: made.probabilities[name])
    assert sum(made.probabilities.values()) == pytest.approx(1, abs=1e-5)
    other = clocs.explain(classifier, recording, "AF")
    assert other.label == "AF" and other.probability == made.probabilities["AF"]
    assert not np.allclose(other.attribution, made.attribution, equal_nan=True)
    with pytest.raises(SettingError, match="choose a `label` from AF, N, O"):
        clocs.explain(classifier, recording, "X")


def test_a_label_above_its_threshold_is_explained_before_a_more_probable_one_that_is_not(
    checkpoint: Checkpoint, recording: Recording
) -> None:
    one = some_classifier(checkpoint, multilabel=True)
    p = clocs.explain(one, recording).probabilities
    order = sorted(p, key=lambda name: p[name])
    limits = {order[0]: 0.0, order[1]: None, order[2]: 1.0}
    card = replace(one.card, thresholds=tuple(limits[name] for name in one.card.labels))
    assert clocs.explain(replace(one, card=card), recording).label == order[0]


def test_attributions_are_of_the_leads_and_samples_of_the_recording(
    classifier: Classifier, recording: Recording
) -> None:
    made = clocs.explain(classifier, recording)
    used = classifier.encoders[0].card.leads
    assert made.leads == used and made.start == 0
    assert made.attribution.shape == (len(used), recording.samples)
    assert np.isfinite(made.attribution).all()
    assert made.logit_without < made.logit
    half = replace(recording, digital=recording.digital[:, ::2], rate=recording.rate / 2)
    slow = clocs.explain(classifier, half)
    assert slow.attribution.shape == (len(used), half.samples)
    pairs = zip(slow.attribution, made.attribution[:, ::2], strict=True)
    same = [np.corrcoef(a, b)[0, 1] for a, b in pairs]
    assert min(same) > 0.8


def test_what_the_classifier_does_not_see_is_nan(
    classifier: Classifier, twelve: Classifier, recording: Recording
) -> None:
    """A gap costs the frame of its lead; a lead that is missing has no row; neither has an end."""
    spec = classifier.encoders[0].card.frame
    used = classifier.encoders[0].card.leads
    long = longer(recording, 2)
    gap = replace(long, gaps=(Gap(10, 20, used[0]),))
    made = clocs.explain(classifier, gap, seconds=20)
    frame = round(spec.seconds * recording.rate)
    margin = round(CELL * recording.rate)
    assert np.isnan(made.attribution[0, : frame - margin]).all()
    assert np.isfinite(made.attribution[0, frame + margin :]).all()
    assert np.isfinite(made.attribution[1:]).all()
    cut = recording.between(0, recording.samples - 200)
    if frame <= cut.samples:
        assert np.isnan(clocs.explain(classifier, cut).attribution[:, -50:]).all()
    few = recording.select([recording.leads[0], used[1]])
    seen = clocs.explain(twelve, few)
    assert set(seen.leads) <= set(few.leads) and np.isfinite(seen.attribution).all()


def test_of_a_long_recording_the_most_telling_stretch_is_explained_or_the_one_asked_for(
    classifier: Classifier, small_store: Store
) -> None:
    parts = [small_store.recording(row) for row in range(0, 12, 2)]
    explainer = Explainer(classifier)
    long = replace(parts[0], digital=np.concatenate([one.digital for one in parts], axis=1))
    made = explainer(long, "AF")
    assert made.seconds == pytest.approx(10, abs=0.01)
    own = [explainer(long, "AF", start=s).logit for s in np.arange(0, long.seconds - 9.9, 10)]
    assert made.logit >= max(own) - 1e-4
    asked = explainer(long, "AF", start=12.5, seconds=3)
    assert asked.start == pytest.approx(12.5) and asked.seconds == pytest.approx(3, abs=0.01)
    assert asked.probability == pytest.approx(made.probability)
    for start, seconds in ((1e6, 10), (-3, 10), (0, 0), (0, float("nan"))):
        with pytest.raises(SettingError, match=r"`start`|`seconds`"):
            explainer(long, start=start, seconds=seconds)


def test_a_recording_that_cannot_be_predicted_gets_a_sentence(
    classifier: Classifier, recording: Recording, small_store: Store, tmp_path: Path
) -> None:
    unused = [lead for lead in recording.leads if lead not in classifier.encoders[0].card.leads]
    with pytest.raises(ClocsError, match="has none of the leads"):
        clocs.explain(classifier, recording.select(unused))
    with pytest.raises(ClocsError, match="short"):
        clocs.explain(classifier, recording.between(0, 100))
    with pytest.raises(SettingError, match="is a store; choose one of its recordings"):
        clocs.explain(classifier, small_store.path)
    file = tmp_path / "rhythm.safetensors"
    classifier.save(file)
    name = small_store.table["id"][0]
    found = clocs.explain(file, small_store.path, recording=name)
    assert found.recording.id == name
