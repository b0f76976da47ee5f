"""Folds: whoever was not learned from is tested on once, nobody else ever."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import clocs
from clocs import Checkpoint, Store
from clocs.errors import LeakError, SettingError
from clocs.evaluation import metrics
from clocs.evaluation.cross_validation import divided
from clocs.frames.make import make_frames
from clocs.frames.splits import assign
from clocs.recording import FrameSpec, Recording
from clocs.store.prepare import prepare
from clocs.training import Settings
from clocs.training.checkpoint import seen_patients
from fake_dataset import FakeDataset

FRAME = FrameSpec(2.5, 512)
ONE_EPOCH = Settings(epochs=1, patience=1, batch_size=16)
evaluate = partial(clocs.evaluate, protocol="linear-converged", resamples=0, device="cpu")


def with_folds(number: int, recording: Recording) -> Recording:
    labels = () if number % 9 == 0 else recording.labels
    return replace(recording, episodes=(), labels=labels, fold=str(number // 2 % 6 + 1))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    made = FakeDataset(count=240, samples=2600, change=with_folds, frame=FRAME, segment_frame=FRAME)
    return prepare(made, out=tmp_path_factory.mktemp("store") / "store")


@pytest.fixture(scope="module")
def trained(store: Store, tmp_path_factory: pytest.TempPathFactory) -> list[Checkpoint]:
    return clocs.pretrain(
        store,
        method="simclr",
        split="hash",
        seeds=2,
        out=tmp_path_factory.mktemp("out"),
        settings=ONE_EPOCH,
        device="cpu",
        embedding_dim=8,
    )


def test_unseen_patients_are_tested_on_once_and_seen_ones_never(
    store: Store, trained: list[Checkpoint]
) -> None:
    frames = make_frames(store)
    seen = seen_patients(trained[0], frames)
    np.testing.assert_array_equal(seen, assign(frames.patient_ids, "fake") != 2)
    folds = list(divided([trained], frames, 4).values())
    tested = np.zeros(len(seen), int)
    for number, fold in enumerate(folds):
        part = np.zeros(len(seen), np.int8)
        part[fold.patient] = fold.split
        assert (part[seen] == 0).all()
        tested += part == 2
        follower = folds[(number + 1) % 4]
        np.testing.assert_array_equal(fold.split == 1, follower.split == 2)
    np.testing.assert_array_equal(tested, (~seen).astype(int))


def test_a_patient_stays_in_its_fold_whoever_else_is_labeled(
    store: Store, trained: list[Checkpoint]
) -> None:
    frames = make_frames(store)
    fewer = replace(frames, target=np.where(frames.recording[:, None] < 150, frames.target, 0))
    first, second = (divided([trained], one, 3) for one in (frames, fewer))
    for name, own in first.items():
        np.testing.assert_array_equal(own.split, second[name].split)


def test_scores_are_pooled_over_all_tested_patients_with_one_interval(
    store: Store, trained: list[Checkpoint]
) -> None:
    found = clocs.evaluate_many(
        [trained], store, folds=3, resamples=200, protocol="linear-converged", device="cpu"
    )
    mine, untrained = found[0].evaluation, [one.evaluation for one in found[1:]]
    frames = make_frames(store)
    unseen = ~seen_patients(trained[0], frames)[frames.patient] & frames.has_label
    assert mine.test_patients == len(np.unique(frames.patient[unseen]))
    assert mine.test_frames == int(frames.present[unseen].sum())
    assert mine.folds is not None and [one["fold"] for one in mine.folds] == ["1", "2", "3"]
    assert sum(one["patients"] for one in mine.folds) == mine.test_patients
    p = found[0].predictions
    by_hand = [metrics.macro(metrics.auc_per_class(s, p.targets)) for s in p.probabilities]
    assert mine.auc == by_hand
    assert mine.ci95 is not None and mine.ci95[0] <= mine.auc_mean <= mine.ci95[1]
    assert [one.method for one in untrained] == ["random", "random-bn"]
    assert mine.random_p is not None
    assert mine.split == "3 folds"
    assert 0 <= mine.f1_mean <= 1
    target = dict(zip(store.table["id"], store.table["labels"].to_list(), strict=True))
    names = np.array(p.recording_ids)[p.recording]
    assert all(
        [p.labels[c] for c in np.flatnonzero(row)] == target[name]
        for name, row in zip(names, p.targets, strict=True)
    )
    assert len(set(p.patient_ids)) == len(p.patient_ids)


def test_official_folds_are_tested_in_turn(store: Store, tmp_path: Path) -> None:
    random = clocs.pretrain(
        store, method="random", out=tmp_path / "random", device="cpu", embedding_dim=8
    )
    found = evaluate(random, store, folds="official")
    assert found.folds is not None
    assert [one["fold"] for one in found.folds] == ["1", "2", "3", "4", "5", "6"]
    by_folds = clocs.pretrain(
        store,
        method="simclr",
        test_folds=["1", "2", "3"],
        validation_folds=["4"],
        out=tmp_path / "folds",
        settings=ONE_EPOCH,
        device="cpu",
        embedding_dim=8,
    )
    found = evaluate(by_folds, store, folds="official")
    assert found.folds is not None and [one["fold"] for one in found.folds] == ["1", "2", "3"]


def test_folds_that_cannot_be_are_refused_with_a_sentence(
    store: Store, trained: list[Checkpoint]
) -> None:
    with pytest.raises(SettingError, match="give at least 3, or 'official'"):
        evaluate(trained, store, folds=2)
    with pytest.raises(SettingError, match=r"too few for 500 `folds`.*give fewer"):
        evaluate(trained, store, folds=500)
    with pytest.raises(SettingError, match="leave out `split`"):
        evaluate(trained, store, folds=3, split="hash")
    frames = make_frames(store)
    with pytest.raises(SettingError, match="has no official folds"):
        divided([trained], replace(frames, fold=(), folds={}), "official")
    unlabeled = replace(frames, target=np.zeros_like(frames.target))
    with pytest.raises(LeakError, match="trained on every labeled patient"):
        divided([trained], unlabeled, 3)
