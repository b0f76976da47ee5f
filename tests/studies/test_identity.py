"""Identity and disease, told apart in vectors where it is known which dimensions carry which."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from clocs.errors import SettingError
from clocs.frames.frames import Frames
from clocs.training.checkpoint import Checkpoint, seen_patients
from research.analyses.directions import (
    disease_directions,
    identity_directions,
    random_directions,
)
from research.analyses.frame_vectors import FrameVectors
from research.analyses.identity import SICK, WELL, identity_and_disease, of_vectors

PEOPLE, DIM = 900, 12
IDENTITY, DISEASE = slice(0, 5), slice(5, 8)


def mixed(seed: int = 5) -> NDArray[np.float64]:
    """A map of known dimensions to the ones that are seen, neither orthogonal nor evenly scaled."""
    draw = np.random.default_rng(seed)
    one, other = (np.linalg.qr(draw.normal(size=(DIM, DIM)))[0] for _ in range(2))
    return np.asarray(one * draw.uniform(0.5, 2, DIM) @ other)


def people(turn: NDArray[np.float64] | None = None, *, multilabel: bool = False) -> FrameVectors:
    """Two frames of each person: five dimensions are the person's, three the class's."""
    draw = np.random.default_rng(0)
    labels = draw.integers(0, 4, PEOPLE)
    vectors = 0.15 * draw.normal(size=(PEOPLE, 2, DIM))
    vectors[:, :, IDENTITY] += 2 * draw.normal(size=(PEOPLE, 1, 5))
    corners = 1.5 * np.array([[1, 1, 1], [1, -1, -1], [-1, 1, -1], [-1, -1, 1]])
    vectors[:, :, DISEASE] += corners[labels][:, None]
    turned = vectors if turn is None else vectors @ turn
    rows = np.repeat(np.arange(PEOPLE), 2)
    return FrameVectors(
        vectors=turned.reshape(-1, DIM).astype(np.float32),
        patient=rows,
        recording=rows,
        segment=np.tile([0, 1], PEOPLE),
        split=np.repeat(np.arange(PEOPLE) % 3, 2),
        target=np.eye(4, dtype=np.uint8)[labels][rows],
        dataset="made",
        labels=("a", "b", "c", "d"),
        multilabel=multilabel,
        patient_ids=tuple(map(str, range(PEOPLE))),
    )


@pytest.fixture(scope="module", params=[False, True], ids=["one label", "several labels"])
def measured(request: pytest.FixtureRequest) -> dict[tuple[str, int], dict[str, Any]]:
    made = people(mixed(), multilabel=request.param)
    found = of_vectors(made, made.part("test"), removed=(1, 3, 5), resamples=50)
    assert found["searched_by"] == "halves" and found["pairs"].keys() == {"halves"}
    json.dumps(found, allow_nan=False)
    return {(row["removed"], row["directions"]): row for row in found["rows"]}


def test_identity_and_disease_are_both_found_before_anything_is_removed(
    measured: dict[tuple[str, int], dict[str, Any]],
) -> None:
    row = measured["nothing", 0]
    assert row["search"]["trained"]["top1"] > 0.9 and row["search"]["trained"]["size"] == 300
    assert row["diagnosis"]["auc"] > 0.99


def test_without_the_five_dimensions_of_identity_nobody_is_found_and_disease_stays(
    measured: dict[tuple[str, int], dict[str, Any]],
) -> None:
    row = measured["identity", 5]
    for way in ("cosine", "trained"):
        assert row["search"][way]["top1"] < 0.04  # of 300; the class alone leaves one in 75
    assert row["diagnosis"]["auc"] > 0.99
    one = measured["identity", 1]["search"]["trained"]["top1"]
    assert (
        row["search"]["trained"]["top1"] < one < measured["nothing", 0]["search"]["trained"]["top1"]
    )


def test_without_the_three_dimensions_of_disease_none_is_diagnosed_and_people_are_found(
    measured: dict[tuple[str, int], dict[str, Any]],
) -> None:
    row = measured["disease", 3]
    assert row["diagnosis"]["auc"] < 0.6
    assert row["search"]["trained"]["top1"] > 0.85
    assert measured["disease", 1]["diagnosis"]["auc"] > row["diagnosis"]["auc"]


def test_random_directions_cost_less_than_chosen_ones(
    measured: dict[tuple[str, int], dict[str, Any]],
) -> None:
    row = measured["random", 3]
    assert row["diagnosis"]["auc"] > measured["disease", 3]["diagnosis"]["auc"] + 0.2
    assert measured["random", 5]["search"]["trained"]["top1"] > 0.1


def test_directions_are_those_that_carry_it() -> None:
    made = people(mixed())
    train = made.part("train")
    identity, disease = identity_directions(*train.halves()), disease_directions(train)
    back = np.linalg.inv(mixed())
    assert (identity.ratio[:5] > 10).all() and (identity.ratio[5:] < 1).all()
    assert len(disease) == 3
    # what is removed, in known dimensions: all of identity's, almost nothing of the others
    known = (made.vectors - identity.remove(made.vectors, 5)) @ back
    before = made.vectors @ back
    assert np.abs(known[:, IDENTITY] - before[:, IDENTITY]).mean() < 0.2
    assert np.abs(known[:, DISEASE]).mean() < 0.2


@pytest.mark.parametrize("count", [0, 2, 5])
def test_removing_twice_is_removing_once(count: int) -> None:
    made = people(mixed())
    identity = identity_directions(*made.halves())
    once = identity.remove(made.vectors, count)
    assert np.allclose(identity.remove(once, count), once, atol=1e-4)
    assert np.linalg.matrix_rank(once - once.mean(axis=0), tol=1e-2) == DIM - count
    with pytest.raises(SettingError, match="directions to remove"):
        identity.remove(made.vectors, DIM + 1)


def test_random_directions_are_at_right_angles_and_the_same_again() -> None:
    like = identity_directions(*people().halves())
    one, again = random_directions(like), random_directions(like)
    assert np.allclose(one.axes.T @ one.axes, np.eye(DIM), atol=1e-10)
    assert np.array_equal(one.axes, again.axes)
    assert not np.allclose(one.axes, random_directions(like, seed=1).axes)


def test_another_dataset_is_searched_by_days_and_diagnosed_by_patients_not_learned_on() -> None:
    """Directions are learned on one dataset and removed from another, of four visits each."""
    learned = people(mixed())
    draw, count = np.random.default_rng(3), 120
    sick = draw.integers(0, 2, count)
    vectors = 0.15 * draw.normal(size=(count, 4, DIM))
    vectors[:, :, IDENTITY] += 2 * draw.normal(size=(count, 1, 5))
    vectors[:, :, 5] += 3 * sick[:, None]
    who = np.repeat(np.arange(count), 8)
    elsewhere = replace(
        learned,
        vectors=np.repeat((vectors @ mixed()).reshape(-1, DIM), 2, axis=0).astype(np.float32),
        patient=who,
        recording=np.repeat(np.arange(4 * count), 2),
        segment=np.tile([0, 1], 4 * count),
        split=np.full(8 * count, 2),
        target=np.stack([sick, 1 - sick], axis=1).astype(np.uint8)[who],
        dataset="elsewhere",
        labels=(SICK, WELL),
    )
    days = np.tile([0.0, 0.0, 5.0, 400.0], count)
    found = of_vectors(learned, elsewhere, days=days, removed=(5,), resamples=50)
    assert found["searched_by"] == "another day"
    assert {"halves", "same day", "1 to 7 days", "over a year"} < found["pairs"].keys()
    before, without, at_random = found["rows"]
    assert without["removed"] == "identity" and at_random["removed"] == "random"
    assert before["search"]["trained"]["top1"] > 0.9 and before["diagnosis"]["auc"] > 0.95
    assert without["search"]["cosine"]["top1"] < 0.1 and without["diagnosis"]["auc"] > 0.95
    shuffled = replace(elsewhere, target=np.roll(elsewhere.target, 8 * 31, axis=0))
    by_chance = of_vectors(learned, shuffled, removed=(), resamples=50)
    assert 0.3 < by_chance["rows"][0]["diagnosis"]["auc"] < 0.7


def test_an_encoder_is_measured_with_its_settings(
    checkpoint: Checkpoint, usual_frames: Frames
) -> None:
    two = usual_frames.with_leads(usual_frames.leads[:2])
    found = identity_and_disease(checkpoint, two, removed=(4,), resamples=20)
    assert found["dataset"] == "synthetic" and found["dim"] == 2 * checkpoint.encoder.embedding_dim
    kinds = [(row["removed"], row["directions"]) for row in found["rows"]]
    assert kinds[:2] == [("nothing", 0), ("identity", 4)]
    assert found["rows"][0]["search"]["cosine"]["size"] == len(usual_frames.patients_of(2))
    json.dumps(found)


def test_patients_whom_an_encoder_has_seen_are_left_out_for_all(
    checkpoint: Checkpoint, usual_frames: Frames
) -> None:
    """Under another split, training patients of the encoder are among the test patients."""
    seen = seen_patients(checkpoint, usual_frames)
    splits = map(usual_frames.with_split_seed, range(1, 100))
    other = next(s for s in splits if (~seen[np.unique(s.patient[s.split == 2])]).sum() > 3)
    given: dict[str, Any] = {"removed": (), "resamples": 20}
    own = identity_and_disease(checkpoint, other, **given)
    assert own["patients_seen"] > 0
    assert own["patients"] + own["patients_seen"] == len(other.patients_of(2))
    control = identity_and_disease("median-beat", other, besides=[checkpoint], **given)
    assert control["patients"] == own["patients"]
    assert identity_and_disease("median-beat", other, **given)["patients_seen"] == 0
