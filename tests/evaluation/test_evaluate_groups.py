from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier

from clocs.errors import SettingError
from clocs.evaluation import evaluate_groups, score_groups
from clocs.evaluation.baseline import score_against_untrained
from clocs.evaluation.classifier_loss import class_weights, classifier_loss
from clocs.evaluation.groups import evaluate_frames
from clocs.evaluation.labelled_rows import LabelledShare, choose_rows, rows_with_label
from clocs.evaluation.protocols import PROTOCOLS
from clocs.evaluation.protocols.knn import votes
from clocs.frames.frames import Frames
from clocs.pretraining.plan import Plan
from clocs.pretraining.pretrain_frames import pretrain_frames
from clocs.pretraining.untrained import untrained
from clocs.training.checkpoint import Checkpoint
from clocs.training.loop import Settings
from evaluation_parts import labelled

QUICK = Settings(epochs=3, batch_size=64, lr=1e-3)


@pytest.fixture(scope="module")
def groups(
    small_frames: Frames, tmp_path_factory: pytest.TempPathFactory
) -> list[list[Checkpoint]]:
    """Two methods of two seeds, and one with another embedding dimension."""
    folder = tmp_path_factory.mktemp("groups")
    quick = Settings(epochs=2, batch_size=64)
    plans = [
        Plan("cmsc", (0, 1), embedding_dim=16, settings=quick),
        Plan("random-bn", (0, 1), embedding_dim=16),
        Plan("random-bn", (0,), embedding_dim=8),
    ]
    return [pretrain_frames(small_frames, p, folder / str(i)) for i, p in enumerate(plans)]


def multilabel(frames: Frames) -> Frames:
    """The same with a second label for some."""
    target = frames.target.copy()
    target[frames.recording % 3 == 0, 0] = 1
    return Frames(**{**frames.__dict__, "target": target, "multilabel": True})


@pytest.mark.parametrize("protocol", list(PROTOCOLS))
@pytest.mark.parametrize("many", [False, True])
def test_all_groups_at_once_give_the_numbers_of_each_alone(
    groups: list[list[Checkpoint]], small_frames: Frames, protocol: str, many: bool
) -> None:
    frames = multilabel(small_frames) if many else small_frames
    by = "patient" if many else "frame"
    how: dict[str, Any] = {"protocol": protocol, "fraction": 0.3, "by": by, "resamples": 20}
    how["settings"] = Settings(epochs=2, batch_size=64, lr=1e-3)
    together = evaluate_groups(groups, frames, **how)
    for group, found in zip(groups, together, strict=True):
        alone = evaluate_frames(group, frames, **how)
        for name in ("auc", "auc_logits", "auc_recording", "ap", "ci95"):
            assert getattr(found, name) == pytest.approx(getattr(alone, name), abs=2e-4), name
        assert found.labelled == alone.labelled
        assert (found.method, found.embedding_dim) == (alone.method, alone.embedding_dim)


def test_a_count_of_labels_is_a_count_of_recordings(
    groups: list[list[Checkpoint]], small_frames: Frames
) -> None:
    found = evaluate_frames(groups[0], small_frames, labels=5, settings=QUICK, resamples=0)
    assert found.labelled == [5 * 2 * 4] * 2  # recordings × frames × leads
    assert (found.labels_count, found.by) == (5, "recording")
    available = len(np.unique(small_frames.recording[small_frames.split == 0]))
    assert found.fraction == pytest.approx(5 / available)
    with pytest.raises(SettingError, match=f"from 1 to {available}"):
        evaluate_frames(groups[0], small_frames, labels=available + 1, settings=QUICK)


@pytest.mark.parametrize("by", ["frame", "patient", "recording"])
def test_fewer_labels_are_some_of_the_more(small_frames: Frames, by: Any) -> None:
    rows = rows_with_label(small_frames, 0)
    few, many = (choose_rows(small_frames, rows, 0, LabelledShare(f, by)) for f in (0.2, 0.6))
    assert few.any()
    assert (many | ~few).all()
    assert not np.array_equal(few, choose_rows(small_frames, rows, 1, LabelledShare(0.2, by)))


def test_scores_by_sex_and_age_are_those_of_these_patients(
    groups: list[list[Checkpoint]], small_frames: Frames
) -> None:
    (one,) = score_groups([groups[0]], small_frames, settings=QUICK, resamples=20)
    rows, found = one.predictions, one.evaluation
    assert sum(group["frames"] for group in found.by_sex.values()) == len(rows)
    number = {name: i for i, name in enumerate(small_frames.recording_ids)}
    sex = small_frames.sex[[number[name] for name in rows.recording_ids]]
    women = rows.where(sex[rows.recording] == 2)
    assert found.by_sex["female"]["patients"] == len(np.unique(women.patient))
    assert set(found.by_age) <= {"0–17", "18–39", "40–59", "60–79", "80+"}
    assert sum(group["frames"] for group in found.by_age.values()) == len(rows)
    unknown = Frames(
        **{
            **small_frames.__dict__,
            "sex": np.zeros_like(small_frames.sex),
            "age": np.full_like(small_frames.age, np.nan),
        }
    )
    blind = evaluate_frames(groups[0], unknown, settings=QUICK, resamples=0)
    assert (blind.by_sex, blind.by_age) == ({}, {})


def test_the_untrained_are_always_scored_beside_a_method(
    groups: list[list[Checkpoint]], small_frames: Frames
) -> None:
    scored = score_against_untrained([groups[0]], small_frames, settings=QUICK, resamples=50)
    first, *others = [one.evaluation for one in scored]
    assert [other.method for other in others] == ["random", "random-bn"]
    stronger = max(others, key=lambda other: other.auc_mean)
    assert (first.random_method, first.random_auc_mean) == (stronger.method, stronger.auc_mean)
    assert first.random_difference == pytest.approx(first.auc_mean - stronger.auc_mean)
    assert isinstance(first.beats_random, bool)
    assert first.better_than is None
    assert others[0].beats_random is None


def test_an_untrained_encoder_given_by_the_user_is_not_made_again_and_beats_nobody(
    groups: list[list[Checkpoint]], small_frames: Frames
) -> None:
    scored = score_against_untrained(groups[:2], small_frames, settings=QUICK, resamples=50)
    assert [one.evaluation.method for one in scored] == ["cmsc", "random-bn", "random"]
    assert scored[1].evaluation.beats_random is None
    assert scored[0].evaluation.better_than is not None


def test_untrained_encoders_on_the_fly_are_those_of_pretrain(
    groups: list[list[Checkpoint]], small_frames: Frames
) -> None:
    made = untrained(small_frames, Plan("random-bn", (0, 1), embedding_dim=16))
    for one, other in zip(made, groups[1], strict=True):
        for name, tensor in other.buffers.items():
            assert torch.equal(one.buffers[name], tensor), name
    with pytest.raises(SettingError, match="has to be trained"):
        untrained(small_frames, Plan("cmsc"))


def test_a_class_missing_from_the_test_part_is_left_out_and_named(
    groups: list[list[Checkpoint]], small_frames: Frames
) -> None:
    target = small_frames.target.copy()
    moved = (small_frames.split == 2) & (target[:, 0] == 1)
    target[moved] = target[moved][:, [1, 0, *range(2, target.shape[1])]]
    frames = Frames(**{**small_frames.__dict__, "target": target})
    found = evaluate_frames(groups[0], frames, settings=QUICK, resamples=20).json()
    name = small_frames.labels[0]
    assert found["undefined_classes"] == [name, "SVT"]  # few patients: SVT was missing before
    for score in ("auc_per_class", "ap_per_class", "f1_per_class"):
        assert found[score][name] is None
    assert found["auc_mean"] is not None
    assert found["ap_mean"] is not None


def test_nearest_neighbours_equal_scikit_learns() -> None:
    known, asked = labelled(0, 80, False), labelled(1, 30, False)
    reference = KNeighborsClassifier(n_neighbors=5, metric="cosine")
    reference.fit(known.features[0].numpy(), known.targets.argmax(1).numpy())
    expected = reference.predict_proba(asked.features[0].numpy())
    found = votes(asked.features[0], known.features[0], known.targets, 5).numpy()
    assert np.allclose(found, expected, atol=1e-6)


def test_a_dead_embedding_knows_only_how_common_a_label_is() -> None:
    known = labelled(0, 80, True)
    found = votes(torch.zeros(1, 6), known.features[0], known.targets, 5)
    assert torch.allclose(found[0], known.targets.float().mean(dim=0))
    with pytest.raises(SettingError, match="80 rows are labelled"):
        votes(known.features[0], known.features[0], known.targets, 81)


@pytest.mark.parametrize("multilabel", [False, True])
def test_class_weights_equal_torchs(multilabel: bool) -> None:
    data = labelled(3, 60, multilabel)
    weights = class_weights(data.targets, multilabel)
    logits, truth = data.features[0, :, :3], data.targets.float()
    found = classifier_loss(logits[None], data.targets, multilabel, weights[None])[0]
    if multilabel:
        expected = torch.nn.BCEWithLogitsLoss(pos_weight=weights)(logits, truth)
        assert torch.allclose(weights * truth.sum(dim=0), 60 - truth.sum(dim=0))
    else:
        expected = torch.nn.CrossEntropyLoss(weight=weights)(logits, truth.argmax(dim=1))
        assert torch.allclose(weights * truth.sum(dim=0), torch.tensor(20.0))
    assert torch.allclose(found, expected)


def test_class_weights_reach_every_protocol_that_learns(
    groups: list[list[Checkpoint]], small_frames: Frames
) -> None:
    for protocol in ("linear", "linear-converged", "finetune"):
        plain, weighted = (
            score_groups(
                [groups[0][:1]],
                small_frames,
                protocol=protocol,
                class_weights=on,
                settings=QUICK,
                resamples=0,
            )[0]
            for on in (False, True)
        )
        assert weighted.evaluation.class_weights
        difference = plain.predictions.probabilities - weighted.predictions.probabilities
        assert np.abs(difference).max() > 1e-4, protocol
    with pytest.raises(SettingError, match="knn cannot weight classes"):
        evaluate_frames(groups[0], small_frames, protocol="knn", class_weights=True)


def test_a_protocol_that_does_not_exist_gets_a_sentence(
    groups: list[list[Checkpoint]], small_frames: Frames, tmp_path: Path
) -> None:
    with pytest.raises(SettingError, match="no protocol 'svm'"):
        evaluate_frames(groups[0], small_frames, protocol="svm")
    with pytest.raises(SettingError, match="nothing to evaluate"):
        evaluate_groups([[]], small_frames)
