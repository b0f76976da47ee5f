"""Every encoder is evaluated on the inputs that it learned on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from clocs.encoders.base import Weights
from clocs.encoders.cnn import CNN
from clocs.evaluation.groups import score_groups
from clocs.frames.frames import Frames
from clocs.patients.encode import Windows, encoded
from clocs.pretraining.methods import METHODS
from clocs.pretraining.plan import Plan
from clocs.pretraining.pretrain import pretrain_frames
from clocs.training import Settings
from clocs.training.embed import AT_ONCE

QUICK = Settings(epochs=1, batch_size=64)
TRAINED = [name for name, row in METHODS.items() if row.sees_data]


@contextmanager
def middles_of_inputs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Tensor]]:
    """(members,) the mean (min + max) / 2 of the frames in each input of an encoder meanwhile."""
    seen: list[Tensor] = []
    with monkeypatch.context() as patch:
        for name in ("encode", "encode_training"):
            patch.setattr(CNN, name, _noting(getattr(CNN, name), seen))
        yield seen


def _noting(call: Callable[..., Any], seen: list[Tensor]) -> Callable[..., Any]:
    def noting(
        encoder: CNN, weights: Weights, buffers: Weights, x: Tensor, *more: Any, **named: Any
    ) -> Any:
        seen.append((x.amin(-1) + x.amax(-1)).float().mean(1) / 2)
        return call(encoder, weights, buffers, x, *more, **named)

    return noting


@pytest.mark.parametrize("method", TRAINED)
def test_the_input_of_evaluation_is_that_of_pretraining(
    method: str, small_frames: Frames, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = Plan(method, (0,), embedding_dim=16, settings=QUICK)
    with middles_of_inputs(monkeypatch) as pretraining:
        checkpoints = pretrain_frames(small_frames, plan, tmp_path / "run")
    learned_on = float(torch.cat(pretraining).mean())
    for protocol in ("linear", "finetune", "knn"):
        with middles_of_inputs(monkeypatch) as evaluation:
            score_groups(
                [checkpoints],
                small_frames,
                protocol=protocol,
                settings=QUICK,
                resamples=2,
            )
        for middle in torch.cat(evaluation):
            assert float(middle) == pytest.approx(learned_on, abs=0.1), protocol
    with middles_of_inputs(monkeypatch) as embedding:
        samples = small_frames.spec.samples
        windows = small_frames.signals[: AT_ONCE * samples].reshape(-1, samples)
        ones = np.ones((len(windows), 1), np.bool_)
        seen = Windows(np.asarray(windows)[:, None], ones, ones.astype(np.float32))
        list(encoded(checkpoints[0], [seen]))
    assert float(torch.cat(embedding).mean()) == pytest.approx(learned_on, abs=0.1)
