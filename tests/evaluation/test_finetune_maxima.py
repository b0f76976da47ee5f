"""Fine-tuning where a recording has the greatest of its frames' maxima."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from clocs import Checkpoint, Frames, Store
from clocs.evaluation.finetune_task import FinetuneTask
from clocs.evaluation.groups import GroupResult, score_groups
from clocs.evaluation.labeled import LabeledPart, RecordingVectors, rows_with_label
from clocs.frames.make import make_frames
from clocs.pretraining.plan import Plan
from clocs.pretraining.pretrain import untrained
from clocs.recording import FrameSpec
from clocs.training import Settings
from tiny_leads import fewer_stages


@pytest.fixture(scope="module")
def frames(small_store: Store) -> Frames:
    return make_frames(small_store, spec=FrameSpec(2.5, 250))


def finetuned(encoders: list[Checkpoint], frames: Frames, lr: float) -> GroupResult:
    settings = Settings(epochs=1, batch_size=16, lr=lr)
    return score_groups(
        [encoders], frames, protocol="finetune", per="recording", settings=settings, resamples=0
    )[0]


def test_the_layer_is_solved_on_the_vectors_of_recordings_by_the_trained_encoder(
    frames: Frames,
) -> None:
    with fewer_stages(8):
        encoders = untrained(frames, Plan("random", (0, 1), encoder="voltage", embedding_dim=80))
        made = finetuned(encoders, frames, 1e-2)
        tuned = [
            replace(one, weights={k: w for k, w in one.weights.items() if "head." not in k})
            for one in made.classifiers
        ]
        name = "stage1.block1.first.conv.weight"
        assert not torch.equal(tuned[0].weights[name], encoders[0].weights[name])
        assert all(one.card.maxima == (8, 16) for one in tuned)
        solved = score_groups([tuned], frames, protocol="linear-converged", resamples=0)[0]
        assert np.allclose(made.evaluation.auc_validation, solved.evaluation.auc_validation)
        test = LabeledPart(frames, rows_with_label(frames, 2, leads_at_once=True), "recording")
        vectors = RecordingVectors(tuned, "cpu").of(test)
    for member, one in enumerate(made.classifiers):
        layer = one.weights["head.weight"][0].double(), one.weights["head.bias"][0].double()
        logits = vectors[member] @ layer[0] + layer[1]
        expected = logits.sigmoid() if frames.multilabel else logits.softmax(dim=-1)
        assert np.allclose(made.predictions.probabilities[member], expected.numpy(), atol=1e-5)


def test_training_starts_from_the_layer_that_is_solved_on_the_encoder_as_it_was(
    frames: Frames, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts: list[dict[str, Tensor]] = []
    parameters = FinetuneTask.parameters

    def recorded(task: FinetuneTask, keys: Tensor) -> dict[str, Tensor]:
        starts.append(parameters(task, keys))
        return starts[-1]

    monkeypatch.setattr(FinetuneTask, "parameters", recorded)
    with fewer_stages(8):
        (encoder,) = untrained(frames, Plan("random", encoder="voltage", embedding_dim=80))
        by_means = replace(encoder, card=replace(encoder.card, maxima=()))
        solved = score_groups([[by_means]], frames, protocol="linear-converged", resamples=0)[0]
        for start in (encoder, by_means):
            finetuned([start], frames, 1e-3)
    expected = solved.classifiers[0].weights
    for name in ("head.weight", "head.bias"):
        assert torch.allclose(starts[0][name], expected[name].view(starts[0][name].shape))
        assert not torch.allclose(starts[-1][name], expected[name].view(starts[-1][name].shape))
