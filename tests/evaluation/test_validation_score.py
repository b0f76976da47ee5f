from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from clocs import Checkpoint, Frames
from clocs.errors import SettingError
from clocs.evaluation.evaluate import score_frames
from clocs.evaluation.groups import score_groups
from clocs.pretraining.plan import Plan
from clocs.pretraining.pretrain import untrained


@pytest.fixture(scope="module")
def seeds(small_frames: Frames) -> list[Checkpoint]:
    return untrained(small_frames, Plan(method="random-bn", seeds=(0, 1)))


def test_the_auc_is_that_of_an_evaluation_on_the_same_validation_patients(
    seeds: list[Checkpoint], small_frames: Frames
) -> None:
    found = score_frames(seeds, small_frames)
    (whole,) = score_groups(
        [seeds], small_frames, protocol="linear-converged", per="recording", resamples=0
    )
    assert found.per_seed == whole.evaluation.auc_validation
    assert found.ci95 is not None
    assert found.ci95[0] <= found.mean <= found.ci95[1]


def test_whatever_test_patients_have_the_score_is_the_same(
    seeds: list[Checkpoint], small_frames: Frames
) -> None:
    test = small_frames.split == 2
    signals, target = small_frames.signals.copy(), small_frames.target.copy()
    for start in small_frames.starts[test].ravel():
        signals[start : start + small_frames.spec.samples] = 0
    target[test] = np.roll(target[test], 1, axis=1)
    other = replace(small_frames, signals=signals, target=target)
    assert score_frames(seeds, other) == score_frames(seeds, small_frames)


def test_validation_patients_of_one_class_have_no_auc(
    seeds: list[Checkpoint], small_frames: Frames
) -> None:
    target = small_frames.target.copy()
    target[small_frames.split == 1] = np.eye(target.shape[1], dtype=np.uint8)[0]
    with pytest.raises(SettingError, match="all of one class"):
        score_frames(seeds, replace(small_frames, target=target))
