"""Fine-tuning with signals that the device does not hold: the same, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from clocs.errors import SettingError
from clocs.evaluation.groups import GroupResult, score_groups
from clocs.evaluation.labeled import LabeledPart
from clocs.experiments.data import simulated_frames
from clocs.frames.frames import Frames
from clocs.pretraining.plan import Plan
from clocs.pretraining.pretrain import untrained
from clocs.recording import FrameSpec
from clocs.training import Settings
from clocs.training.checkpoint import Checkpoint
from research.noise import noisy_test
from tiny_leads import many_lead_checkpoints, tiny_leads

QUICK = Settings(epochs=2, batch_size=32, lr=1e-3)
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.fixture(scope="module")
def frames() -> Frames:
    """Made without a store, which a machine with a GPU may not be able to read."""
    return simulated_frames("chapman", seed=3, patients=40).with_leads(("II", "V2", "aVL", "aVR"))


@pytest.fixture(scope="module")
def one_lead(frames: Frames) -> list[Checkpoint]:
    return untrained(frames, Plan("random-bn", (0, 1), embedding_dim=8))


@pytest.fixture(scope="module")
def few_leads(frames: Frames) -> Frames:
    """The first 500 samples of each frame."""
    short = FrameSpec(500 / frames.spec.rate, 500)
    return replace(frames, spec=short).with_leads(("II", "V2", "aVL"))


@pytest.fixture(scope="module")
def many_leads(few_leads: Frames) -> Iterator[list[Checkpoint]]:
    with tiny_leads():
        yield many_lead_checkpoints(few_leads)


def trained(group: list[Checkpoint], frames: Frames, **how: Any) -> GroupResult:
    how.setdefault("settings", QUICK)
    return score_groups([group], frames, protocol="finetune", resamples=0, **how)[0]


def noisy(part: LabeledPart) -> LabeledPart:
    return noisy_test(part, "muscle", 6.0)


def assert_same(one: GroupResult, other: GroupResult) -> None:
    for a, b in zip(
        (one.predictions, *one.further), (other.predictions, *other.further), strict=True
    ):
        assert np.array_equal(a.probabilities, b.probabilities)
    for first, second in zip(one.classifiers, other.classifiers, strict=True):
        for name, tensor in (first.weights | first.buffers).items():
            assert torch.equal(tensor, (second.weights | second.buffers)[name]), name


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "how",
    [
        {},
        {"per": "recording", "crops": True, "curve": True, "stop_by": "auc"},
        {"labels": 7, "further": [noisy]},  # members of different numbers of rows
    ],
    ids=["rows", "crops", "few"],
)
def test_streamed_signals_give_the_same_weights_and_predictions(
    one_lead: list[Checkpoint], frames: Frames, how: dict[str, Any], device: str
) -> None:
    whole, streamed = (
        trained(one_lead, frames, stream=stream, device=device, **how) for stream in (False, True)
    )
    assert_same(whole, streamed)


@pytest.mark.parametrize("device", DEVICES)
def test_many_leads_are_streamed_through_random_subsets_and_crops(
    many_leads: list[Checkpoint],
    few_leads: Frames,
    device: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # by itself, cuDNN may add the gradients of a convolution's weights in any order
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    how: dict[str, Any] = {"crops": True, "lead_subsets": 0.5, "gaussian": 0.1, "device": device}
    assert_same(
        trained(many_leads, few_leads, stream=False, **how),
        trained(many_leads, few_leads, stream=True, **how),
    )


def test_a_piece_of_validation_is_smaller_than_what_streams(
    one_lead: list[Checkpoint], frames: Frames, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of two members stops early: the other goes on alone with larger pieces."""
    monkeypatch.setattr("clocs.evaluation.finetune_task._AT_ONCE", {"cpu": 30})
    how: dict[str, Any] = {"settings": Settings(epochs=6, batch_size=16, lr=0.03, patience=1)}
    assert_same(
        trained(one_lead, frames, stream=False, **how),
        trained(one_lead, frames, stream=True, **how),
    )


def test_feature_maps_that_do_not_fit_are_refused(
    few_leads: Frames, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = many_lead_checkpoints(few_leads, (0,), encoder="multilead")
    monkeypatch.setattr("clocs.training.embed.free_memory", lambda device: 1000)
    with pytest.raises(SettingError, match=r"feature maps of .* linear-converged"):
        score_groups([group], few_leads, protocol="attentive", settings=QUICK, resamples=0)
