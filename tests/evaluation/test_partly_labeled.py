"""Recordings without a label are learned from without labels, and left out of evaluations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import clocs
from clocs import Store
from clocs.evaluation.labeled import rows_with_label
from clocs.frames.make import make_frames
from clocs.frames.views import Views, instances
from clocs.recording import Episode, FrameSpec, Recording
from clocs.store.prepare import prepare
from clocs.training import Settings
from fake_dataset import FakeDataset

FRAME = FrameSpec(2.5, 512)
ONE_EPOCH = Settings(epochs=1, patience=1, batch_size=16)


def partly(number: int, recording: Recording) -> Recording:
    labels = recording.labels if number % 4 < 2 else ()
    return replace(recording, labels=labels, episodes=())


def in_part(number: int, recording: Recording) -> Recording:
    """Half of the recordings have an episode over their first half; some labels are unknown."""
    episodes = (Episode(0, 2500, "A" if number % 4 else "other"),) if number % 2 else ()
    return replace(recording, episodes=episodes)


def made(
    folder: Path, change: Callable[[int, Recording], Recording], *, keep_unlabeled: bool = False
) -> Store:
    dataset = FakeDataset(
        count=60,
        change=change,
        frame=FRAME,
        segment_frame=FRAME,
        keep_unlabeled=keep_unlabeled,
    )
    return prepare(dataset, out=folder)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return made(tmp_path_factory.mktemp("partly") / "store", partly)


def test_recordings_without_a_label_are_learned_from(store: Store) -> None:
    frames = make_frames(store)
    assert 0 < frames.has_label.mean() < 1
    every = instances(frames, of="lead", views=Views(segments=2))
    assert (~frames.has_label[every.frame]).any()


def test_recordings_without_a_label_are_left_out_of_evaluation_and_counted(
    store: Store, tmp_path: Path
) -> None:
    checkpoints = clocs.pretrain(
        store, out=tmp_path, settings=ONE_EPOCH, device="cpu", embedding_dim=8
    )
    found = clocs.evaluate(checkpoints, store, settings=ONE_EPOCH, resamples=0, device="cpu")
    frames = make_frames(store)
    unlabeled = (store.table["labels"].list.len() == 0).sum()
    assert found.unlabeled_recordings == unlabeled > 0
    test = (frames.split == 2) & frames.has_label
    assert found.test_frames == int(frames.present[test].sum())


def test_frames_outside_of_episodes_are_kept_for_learning_where_the_dataset_asks(
    tmp_path: Path,
) -> None:
    left_out = make_frames(made(tmp_path / "no", in_part))
    kept = make_frames(made(tmp_path / "yes", in_part, keep_unlabeled=True))
    assert left_out.has_label.all()
    assert len(kept) > len(left_out)
    own = [name for name in kept.recording_ids if int(name[1:]) % 2]
    rows = np.isin(np.array(kept.recording_ids)[kept.recording], own)
    first_half = kept.segment < 2
    known = np.array([int(name[1:]) % 4 for name in kept.recording_ids])[kept.recording] != 0
    np.testing.assert_array_equal(kept.has_label[rows], (first_half & known)[rows])
    assert kept.has_label[~rows].all()  # those without episodes have their own labels
    for split in range(3):
        scored = rows_with_label(kept, split)
        assert kept.has_label[scored.frame].all()
        assert len(scored) == len(rows_with_label(left_out, split))
