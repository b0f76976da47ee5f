from __future__ import annotations

import pytest
import torch

from clocs.errors import SettingError
from clocs.evaluation.evaluate import score_against_untrained
from clocs.frames.frames import Frames
from clocs.pretraining.plan import Plan
from clocs.pretraining.pretrain import untrained
from clocs.training import Settings
from clocs.training.checkpoint import Checkpoint

QUICK = Settings(epochs=3, batch_size=64, lr=1e-3)


def test_untrained_encoders_are_scored_beside_every_method(
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
    (alone,) = score_against_untrained(
        [groups[0]], small_frames, settings=QUICK, resamples=50, baselines=False
    )
    assert alone.evaluation.auc == first.auc
    assert alone.evaluation.ci95 == first.ci95
    assert alone.evaluation.beats_random is None


def test_an_untrained_encoder_given_by_the_user_is_not_made_again(
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
