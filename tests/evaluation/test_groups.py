"""Scores of groups of checkpoints: protocols, shares of labels, leaks, and what a result holds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from clocs.errors import LeakError, SettingError, distinct
from clocs.evaluation import metrics
from clocs.evaluation.groups import score_groups
from clocs.evaluation.labeled import LabeledPart, LabeledShare, choose_rows, rows_with_label
from clocs.evaluation.protocols import PROTOCOLS
from clocs.frames.frames import Frames
from clocs.frames.views import Views, instances
from clocs.pretraining.plan import Plan
from clocs.pretraining.pretrain import pretrain_frames
from clocs.training import Settings
from clocs.training.checkpoint import Checkpoint
from clocs.training.embed import embed_instances
from evaluation_parts import evaluate_frames, evaluate_groups, fingerprint

QUICK = Settings(epochs=3, batch_size=64, lr=1e-3)


@pytest.fixture(scope="module")
def trained(small_frames: Frames, tmp_path_factory: pytest.TempPathFactory) -> list[Checkpoint]:
    plan = Plan("cmsc", (0, 1), embedding_dim=32, settings=Settings(epochs=2, batch_size=64))
    return pretrain_frames(small_frames, plan, tmp_path_factory.mktemp("run") / "cmsc")


def multilabel(frames: Frames) -> Frames:
    """The same with a second label for some."""
    target = frames.target.copy()
    target[frames.recording % 3 == 0, 0] = 1
    return Frames(**{**frames.__dict__, "target": target, "multilabel": True})


@pytest.mark.parametrize("protocol", list(PROTOCOLS))
@pytest.mark.parametrize("many", [False, True])
def test_groups_evaluated_together_score_as_they_would_alone(
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
        assert found.labeled == alone.labeled
        assert (found.method, found.embedding_dim) == (alone.method, alone.embedding_dim)


def test_a_number_of_labels_counts_recordings(
    groups: list[list[Checkpoint]], small_frames: Frames
) -> None:
    found = evaluate_frames(groups[0], small_frames, labels=5, settings=QUICK, resamples=0)
    assert found.labeled == [5 * 2 * 4] * 2  # recordings × frames × leads
    assert (found.labels_count, found.by) == (5, "recording")
    available = len(np.unique(small_frames.recording[small_frames.split == 0]))
    assert found.fraction == pytest.approx(5 / available)
    with pytest.raises(SettingError, match=f"from 1 to {available}"):
        evaluate_frames(groups[0], small_frames, labels=available + 1, settings=QUICK)


def test_a_number_of_labels_can_count_patients_and_fewer_are_among_more(
    groups: list[list[Checkpoint]], small_frames: Frames
) -> None:
    seen = []
    for labels in (3, 6):
        found = evaluate_frames(
            groups[0], small_frames, labels=labels, by="patient", settings=QUICK, resamples=0
        )
        assert (found.labels_count, found.by) == (labels, "patient")
        part = LabeledPart(small_frames, rows_with_label(small_frames, 0))
        share = LabeledShare.of_number(labels, "patient", "share", part)
        patient = small_frames.patient[part.frame]
        seen.append(set(patient[choose_rows(part, 1, share)]))
        assert len(seen[-1]) == labels
        assert found.labeled[1] == np.isin(patient, list(seen[-1])).sum()
    assert seen[0] < seen[1]
    with pytest.raises(SettingError, match="labeled patients; give a number"):
        evaluate_frames(groups[0], small_frames, labels=999, by="patient", settings=QUICK)


@pytest.mark.parametrize("protocol", list(PROTOCOLS))
@pytest.mark.parametrize("per", ["row", "recording"])
def test_with_few_labels_no_other_label_of_the_validation_part_is_used(
    groups: list[list[Checkpoint]], small_frames: Frames, protocol: str, per: Any
) -> None:
    how: dict[str, Any] = {"protocol": protocol, "fraction": 0.3, "by": "patient", "per": per}
    how |= {"settings": QUICK, "resamples": 0} | ({"k": 3} if protocol == "knn" else {})
    part = LabeledPart(small_frames, rows_with_label(small_frames, 1))
    seeds = [one.card.seed for one in groups[0]]
    known = [choose_rows(part, seed, LabeledShare(0.3, "patient")) for seed in seeds]
    wrong = np.setdiff1d(part.frame, part.frame[known[0]])  # of which the other seed knows some
    target = small_frames.target.copy()
    target[wrong] = np.roll(target[wrong], 1, axis=1)
    mislabeled = Frames(**{**small_frames.__dict__, "target": target})
    found, same = (evaluate_frames(groups[0], f, **how) for f in (small_frames, mislabeled))
    for name in ("auc", "auc_logits", "f1", "auc_validation"):
        assert found.json()[name][0] == same.json()[name][0], name
    patients = [len(np.unique(small_frames.patient[part.frame[own]])) for own in known]
    everybody = len(np.unique(small_frames.patient[part.frame]))
    assert patients == [max(1, round(0.3 * everybody))] * len(seeds)
    if per == "row":
        assert found.labeled_validation == [int(own.sum()) for own in known]
    every = [
        evaluate_frames(groups[0], f, **how, validation_labels="all")
        for f in (small_frames, mislabeled)
    ]
    assert every[0].labeled_validation == [len(part) // (8 if per == "recording" else 1)] * 2
    assert every[0].auc_validation != every[1].auc_validation
    assert (found.validation_labels, every[0].validation_labels) == ("share", "all")


def test_with_all_labels_both_shares_of_the_validation_part_are_one(
    groups: list[list[Checkpoint]], small_frames: Frames
) -> None:
    share, every = (
        evaluate_frames(
            groups[0], small_frames, settings=QUICK, resamples=0, validation_labels=value
        )
        for value in ("share", "all")
    )
    assert share.auc == every.auc
    assert share.labeled_validation == every.labeled_validation
    with pytest.raises(SettingError, match="'share' or 'all', not 'few'"):
        evaluate_frames(groups[0], small_frames, settings=QUICK, validation_labels="few")


def test_settings_can_be_chosen_by_the_auc_of_validation_patients(
    groups: list[list[Checkpoint]], small_frames: Frames
) -> None:
    swapped = small_frames.split.copy()
    swapped[small_frames.split == 1], swapped[small_frames.split == 2] = 2, 1
    other = Frames(**{**small_frames.__dict__, "split": swapped})
    untrained = [groups[1][0], groups[1][1]]
    how: dict[str, Any] = {"protocol": "knn", "k": 5, "resamples": 0}
    found = evaluate_frames(_without_data(untrained), small_frames, **how)
    tested = evaluate_frames(_without_data(untrained), other, **how)
    assert found.auc_validation == pytest.approx(tested.auc)
    assert found.auc_validation_mean == pytest.approx(np.mean(tested.auc))


def _without_data(group: list[Checkpoint]) -> list[Checkpoint]:
    """The same encoders with cards that name no patients, so that any part may test them."""
    cards = [replace(c.card, dataset=None, trained_on=()) for c in group]
    return [
        replace(c, card=card, recordings=c.recordings[:0])
        for c, card in zip(group, cards, strict=True)
    ]


def test_average_precision_per_recording_is_that_of_mean_probabilities(
    groups: list[list[Checkpoint]], small_frames: Frames
) -> None:
    (one,) = score_groups([groups[0]], small_frames, settings=QUICK, resamples=0)
    p = one.predictions
    for seed, scores in enumerate(p.probabilities):
        mean = np.stack([scores[p.recording == r].mean(0) for r in range(len(p.recording_ids))])
        true = np.stack([p.targets[p.recording == r][0] for r in range(len(p.recording_ids))])
        found = metrics.macro(metrics.average_precision(mean, true))
        assert one.evaluation.ap_recording[seed] == pytest.approx(found)


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


def test_an_unknown_protocol_is_refused(
    groups: list[list[Checkpoint]], small_frames: Frames, tmp_path: Path
) -> None:
    with pytest.raises(SettingError, match="no protocol 'svm'"):
        evaluate_frames(groups[0], small_frames, protocol="svm")
    with pytest.raises(SettingError, match="nothing to evaluate"):
        evaluate_groups([[]], small_frames)


def test_frozen_encoder_is_bit_identical_after_linear_evaluation(
    trained: list[Checkpoint], small_frames: Frames
) -> None:
    before = [fingerprint(c) for c in trained]
    rows = instances(small_frames, of="lead", views=Views())
    embedded = embed_instances(trained, small_frames, rows)
    evaluate_frames(trained, small_frames, settings=QUICK, resamples=10)
    evaluate_frames(trained, small_frames, protocol="linear-converged", resamples=10)
    evaluate_frames(trained, small_frames, protocol="knn", resamples=10)
    assert [fingerprint(c) for c in trained] == before
    assert torch.equal(embed_instances(trained, small_frames, rows), embedded)


def test_a_result_has_every_field_that_programs_need(
    trained: list[Checkpoint], small_frames: Frames
) -> None:
    result = evaluate_frames(
        trained, small_frames, fraction=0.5, settings=QUICK, resamples=50
    ).json()
    assert result["protocol"] == "linear"
    assert result["method"] == "cmsc"
    assert result["pretrain"] == result["downstream"] == "synthetic"
    assert result["seeds"] == [0, 1]
    assert len(result["auc"]) == 2
    assert result["auc_mean"] == pytest.approx(np.mean(result["auc"]))
    assert result["auc_std"] == pytest.approx(np.std(result["auc"], ddof=1))
    low, high = result["ci95"]
    assert low <= result["auc_mean"] <= high
    for name in ("auc_recording_mean", "auc_logits_mean", "fraction", "by", "auc_per_class"):
        assert name in result


def test_an_encoder_that_saw_test_patients_is_refused(
    trained: list[Checkpoint], small_frames: Frames
) -> None:
    with pytest.raises(LeakError, match="`split_seed` of 0"):
        evaluate_frames(trained, small_frames.with_split_seed(5), settings=QUICK)


def test_equal_ids_in_another_dataset_are_no_leak_but_equal_content_is(
    trained: list[Checkpoint], small_frames: Frames
) -> None:
    other = small_frames.with_split_seed(5)
    renamed = Frames(**{**other.__dict__, "dataset": "elsewhere"})
    with pytest.raises(LeakError, match="same content"):
        evaluate_frames(trained, renamed, settings=QUICK)
    changed = Frames(**{**renamed.__dict__, "digests": renamed.digests + np.uint64(1)})
    assert evaluate_frames(trained, changed, settings=QUICK, resamples=0).ci95 is None


def test_copies_of_trained_recordings_are_left_out_of_the_test_part_and_counted(
    trained: list[Checkpoint], small_frames: Frames
) -> None:
    """Published datasets hold some recordings twice, as two patients."""
    test = np.unique(small_frames.recording[small_frames.split == 2])
    train = np.unique(small_frames.recording[small_frames.split == 0])
    digests = small_frames.digests.copy()
    digests[test[0]] = digests[train[0]]
    doubled = Frames(**{**small_frames.__dict__, "digests": digests})
    plain = evaluate_frames(trained, small_frames, settings=QUICK, resamples=0)
    result = evaluate_frames(trained, doubled, settings=QUICK, resamples=0)
    assert plain.left_out_copies == 0
    assert result.left_out_copies == 1
    assert result.test_frames == plain.test_frames - 2 * 4


def test_a_random_encoder_has_seen_nobody(small_frames: Frames, tmp_path: Path) -> None:
    random = pretrain_frames(small_frames, Plan("random", (0,)), tmp_path / "random")
    assert random[0].card.trained_on == () and len(random[0].recordings) == 0
    other = small_frames.with_split_seed(5)
    result = evaluate_frames(random, other, settings=QUICK, resamples=0)
    assert result.pretrain is None
    assert result.json()["auc_std"] is None


def test_labeled_fractions_count_frames_or_patients(
    trained: list[Checkpoint], small_frames: Frames
) -> None:
    total = 4 * int((small_frames.split == 0).sum())
    by_frame = evaluate_frames(trained, small_frames, fraction=0.25, settings=QUICK, resamples=0)
    assert by_frame.labeled == [round(total * 0.25)] * 2
    by_patient = evaluate_frames(
        trained, small_frames, fraction=0.5, by="patient", settings=QUICK, resamples=0
    )
    patients = len(small_frames.patients_of(0))
    assert by_patient.labeled == [round(patients / 2) * 16] * 2  # 2 recordings, 2 frames, 4 leads


@pytest.mark.parametrize("fraction", [0.0, -1.0, 1.5])
def test_a_fraction_without_meaning_is_refused(
    trained: list[Checkpoint], small_frames: Frames, fraction: float
) -> None:
    with pytest.raises(SettingError, match="fraction"):
        evaluate_frames(trained, small_frames, fraction=fraction, settings=QUICK)


def test_methods_of_one_name_are_numbered() -> None:
    assert distinct(["a", "b", "a", "a"]) == ["a", "b", "a #2", "a #3"]
