from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from clocs.errors import LeakError, SettingError
from clocs.evaluation.groups import evaluate_frames
from clocs.evaluation.linear_head import LinearHead
from clocs.evaluation.logistic import fit_logistic
from clocs.evaluation.protocol_data import LabelledEmbeddings
from clocs.frames.frames import Frames
from clocs.frames.make import make_frames
from clocs.frames.views import instances, single
from clocs.pretraining.plan import Plan
from clocs.pretraining.pretrain_frames import pretrain_frames
from clocs.store.store import Store
from clocs.training.checkpoint import Checkpoint
from clocs.training.embed import embed_instances
from clocs.training.loop import Settings, fit
from evaluation_parts import fingerprint, labelled

QUICK = Settings(epochs=3, batch_size=64)


@pytest.fixture(scope="module")
def trained(small_frames: Frames, tmp_path_factory: pytest.TempPathFactory) -> list[Checkpoint]:
    plan = Plan("cmsc", (0, 1), embedding_dim=32, settings=Settings(epochs=2, batch_size=64))
    return pretrain_frames(small_frames, plan, tmp_path_factory.mktemp("run") / "cmsc")


def test_frozen_encoder_is_bit_identical_after_linear_evaluation(
    trained: list[Checkpoint], small_frames: Frames
) -> None:
    before = [fingerprint(c) for c in trained]
    rows = instances(small_frames, of="lead", views=single())
    embedded = embed_instances(trained, small_frames, rows)
    evaluate_frames(trained, small_frames, settings=QUICK, resamples=10)
    evaluate_frames(trained, small_frames, protocol="linear-converged", resamples=10)
    evaluate_frames(trained, small_frames, protocol="knn", resamples=10)
    assert [fingerprint(c) for c in trained] == before
    assert torch.equal(embed_instances(trained, small_frames, rows), embedded)


def test_a_result_says_everything_that_programs_need(
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
    trained: list[Checkpoint], small_store: Store
) -> None:
    other_split = make_frames(small_store, split_seed=5)
    with pytest.raises(LeakError, match="`split_seed` of 0"):
        evaluate_frames(trained, other_split, settings=QUICK)


def test_equal_ids_in_another_dataset_are_no_leak_but_equal_content_is(
    trained: list[Checkpoint], small_store: Store
) -> None:
    other = make_frames(small_store, split_seed=5)
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


def test_a_random_encoder_has_seen_nobody(
    small_frames: Frames, small_store: Store, tmp_path: Path
) -> None:
    random = pretrain_frames(small_frames, Plan("random", (0,)), tmp_path / "random")
    assert len(random[0].patients) == 0
    result = evaluate_frames(
        random, make_frames(small_store, split_seed=5), settings=QUICK, resamples=0
    )
    assert result.pretrain is None
    assert result.json()["auc_std"] is None


def test_labelled_fractions_count_frames_or_patients(
    trained: list[Checkpoint], small_frames: Frames
) -> None:
    total = 4 * int((small_frames.split == 0).sum())
    by_frame = evaluate_frames(trained, small_frames, fraction=0.25, settings=QUICK, resamples=0)
    assert by_frame.labelled == [round(total * 0.25)] * 2
    by_patient = evaluate_frames(
        trained, small_frames, fraction=0.5, by="patient", settings=QUICK, resamples=0
    )
    patients = len(small_frames.patients_of(0))
    assert by_patient.labelled == [round(patients / 2) * 16] * 2  # 2 recordings, 2 frames, 4 leads


@pytest.mark.parametrize("fraction", [0.0, -1.0, 1.5])
def test_a_fraction_without_meaning_is_refused(
    trained: list[Checkpoint], small_frames: Frames, fraction: float
) -> None:
    with pytest.raises(SettingError, match="fraction"):
        evaluate_frames(trained, small_frames, fraction=fraction, settings=QUICK)


def test_the_converged_solver_agrees_with_scikit_learn() -> None:
    train, validation, test = (labelled(s, n, False) for s, n in ((0, 400), (1, 200), (2, 100)))
    fitted = fit_logistic(
        train.features[0],
        train.targets,
        validation.features[0],
        validation.targets,
        multilabel=False,
    )
    scaler = StandardScaler().fit(train.features[0].numpy())
    reference = LogisticRegression(C=1 / (fitted.l2 * 400), tol=1e-10, max_iter=5000)
    reference.fit(scaler.transform(train.features[0].numpy()), train.targets.argmax(1).numpy())
    expected = reference.predict_proba(scaler.transform(test.features[0].numpy()))
    found = fitted.logits(test.features[0]).softmax(1).numpy()
    assert np.allclose(found, expected, atol=2e-3)


@pytest.mark.parametrize("multilabel", [False, True])
def test_the_linear_layer_learns(multilabel: bool) -> None:
    train, validation = labelled(0, 500, multilabel), labelled(1, 200, multilabel)
    head = LinearHead(train, validation, [torch.arange(500)])
    losses: list[float] = []
    fit(
        head,
        [0],
        Settings(epochs=30, batch_size=50, lr=1e-2),
        device=torch.device("cpu"),
        on_epoch=lambda e: losses.append(e.validation["loss"][0]),
    )
    assert losses[-1] < 0.75 * losses[0]


def test_a_member_with_few_labels_equals_its_single() -> None:
    train, validation = labelled(0, 100, False), labelled(1, 50, False)
    both = LabelledEmbeddings(train.features.repeat(2, 1, 1), train.targets, False)
    both_validation = LabelledEmbeddings(
        validation.features.repeat(2, 1, 1), validation.targets, False
    )
    few, many = torch.arange(7), torch.arange(90)
    settings = Settings(epochs=4, batch_size=32, lr=1e-2)
    together = fit(
        LinearHead(both, both_validation, [few, many]), [3, 4], settings, device=torch.device("cpu")
    )
    alone = fit(LinearHead(train, validation, [few]), [3], settings, device=torch.device("cpu"))
    assert torch.allclose(together.weights["weight"][0], alone.weights["weight"][0], atol=1e-6)
