from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from clocs.encoders.base import Weights
from clocs.evaluation.finetune_task import FinetuneTask, LabeledWindows, members_together
from clocs.evaluation.groups import score_groups
from clocs.evaluation.labeled import LabeledPart, MemberLabels, rows_with_label
from clocs.frames.frames import Frames
from clocs.kernels import keyed_random
from clocs.pretraining.plan import Plan
from clocs.pretraining.pretrain import pretrain_frames
from clocs.training import Settings
from clocs.training.checkpoint import Checkpoint
from clocs.training.loop import Epoch, fit
from clocs.training.signals import Signals
from evaluation_parts import classifier_logits, evaluate_frames, fingerprint

CPU = torch.device("cpu")


QUICK = Settings(epochs=2, batch_size=64, lr=1e-3)


@pytest.fixture(scope="module")
def random(small_frames: Frames, tmp_path_factory: pytest.TempPathFactory) -> list[Checkpoint]:
    plan = Plan("random-bn", (0, 1, 2), embedding_dim=16)
    return pretrain_frames(small_frames, plan, tmp_path_factory.mktemp("run") / "random")


def task(
    checkpoints: list[Checkpoint],
    frames: Frames,
    counts: list[int],
    dtype: torch.dtype = torch.float32,
    *,
    curve: bool = False,
    encoder_lr: float = 1.0,
) -> FinetuneTask:
    train, validation = (
        LabeledWindows.from_part(LabeledPart(frames, rows_with_label(frames, s)), CPU)
        for s in (0, 1)
    )
    return FinetuneTask(
        checkpoints,
        Signals.from_frames(frames, CPU, dtype),
        train,
        validation,
        MemberLabels([torch.arange(count) for count in counts], frames.multilabel, curve=curve),
        encoder_lr=encoder_lr,
    )


def test_the_encoder_learns_at_its_own_rate_and_the_head_at_the_full_one(
    random: list[Checkpoint], small_frames: Frames
) -> None:
    """After one step of Adam, whose length is the learning rate."""
    one_step = Settings(epochs=1, batch_size=10_000, lr=1e-3, keep="last")
    made = task(random[:1], small_frames, [16], torch.float64, encoder_lr=0.1)
    start = made.parameters(keyed_random.member_keys([0]))
    done = fit(made, [0], one_step, device=CPU, dtype=torch.float64)
    for name, tensor in done.weights.items():
        furthest = float((tensor - start[name]).abs().max())
        assert furthest == pytest.approx(1e-3 if name.startswith("head.") else 1e-4, rel=0.02), name


def test_fine_tuning_changes_the_encoder_and_never_the_checkpoint(
    random: list[Checkpoint], small_frames: Frames
) -> None:
    before = [fingerprint(c) for c in random]
    scored = score_groups([random], small_frames, protocol="finetune", settings=QUICK, resamples=0)
    assert [fingerprint(c) for c in random] == before
    for checkpoint, classifier in zip(random, scored[0].classifiers, strict=True):
        for name, tensor in checkpoint.weights.items():
            assert not torch.equal(classifier.weights[name], tensor), name
        for name, tensor in checkpoint.buffers.items():
            assert not torch.equal(classifier.buffers[name], tensor), name


def test_the_returned_classifier_gives_the_scored_predictions(
    random: list[Checkpoint], small_frames: Frames
) -> None:
    (one,) = score_groups(
        [random[:1]], small_frames, protocol="finetune", settings=QUICK, resamples=0
    )
    rows = rows_with_label(small_frames, 2)
    x = Signals.from_frames(small_frames, CPU).normalized(
        torch.from_numpy(rows.windows[:, 0].copy())
    )
    found = classifier_logits(one.classifiers[0], x[None])[0].double().softmax(dim=1).numpy()
    assert np.allclose(found, one.predictions.probabilities[0], atol=1e-6)


def test_fine_tuning_lowers_the_validation_loss(
    random: list[Checkpoint], small_frames: Frames
) -> None:
    longer = Settings(epochs=6, batch_size=32, lr=3e-3)
    losses: list[float] = []
    evaluate_frames(
        random[:1],
        small_frames,
        protocol="finetune",
        settings=longer,
        resamples=0,
        on_epoch=lambda e: losses.append(e.validation["loss"][0]),
    )
    assert min(losses) < 0.9 * losses[0]


def test_a_fleet_equals_its_singles_with_different_numbers_of_labels(
    random: list[Checkpoint], small_frames: Frames
) -> None:
    settings = Settings(epochs=2, batch_size=32)
    counts = [100, 70, 40]
    double = torch.float64

    def trained(members: list[int]) -> dict[str, torch.Tensor]:
        made = task(
            [random[m] for m in members], small_frames, [counts[m] for m in members], double
        )
        return fit(made, members, settings, device=CPU, dtype=double).weights

    together = trained([0, 1, 2])
    for member in range(3):
        for name, tensor in trained([member]).items():
            assert torch.allclose(together[name][member], tensor[0], atol=1e-12), name


def test_members_with_less_than_a_batch_train_only_with_their_equals() -> None:
    assert members_together([300, 256, 400], 256) == [[0, 1, 2]]
    assert members_together([300, 100, 90, 100], 256) == [[0], [1, 3], [2]]


def test_few_labels_by_patient_give_the_same_alone_and_together(
    random: list[Checkpoint], small_frames: Frames
) -> None:
    """Recordings without a batch's worth of rows: padding would reach batch norm."""
    how: dict[str, Any] = {"protocol": "finetune", "labels": 3, "settings": QUICK, "resamples": 0}
    together = evaluate_frames(random, small_frames, **how)
    assert max(together.labeled) < QUICK.batch_size
    for member, checkpoint in enumerate(random):
        alone = evaluate_frames([checkpoint], small_frames, **how)
        assert alone.auc[0] == pytest.approx(together.auc[member], abs=1e-6)


def test_validation_in_pieces_is_the_loss_of_the_whole(
    random: list[Checkpoint], small_frames: Frames, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = task(random, small_frames, [64] * 3)
    keys = torch.arange(3)
    weights, buffers = made.parameters(keys), made.buffers(3)
    whole = made.validate(weights, buffers, keys)["loss"]
    monkeypatch.setattr("clocs.evaluation.finetune_task._AT_ONCE", {"cpu": 30})
    assert torch.allclose(made.validate(weights, buffers, keys)["loss"], whole, atol=1e-6)


def test_a_step_and_a_validation_never_wait_for_the_host(
    random: list[Checkpoint], small_frames: Frames, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else they could not be captured as a CUDA graph: fake tensors refuse to be read."""
    monkeypatch.setenv("CLOCS_KERNEL", "torch")  # the CPU's own kernels do read them
    made = task(random, small_frames, [64] * 3)
    keys = torch.arange(3)
    weights, buffers = made.parameters(keys), made.buffers(3)
    rows = torch.arange(32).expand(3, -1)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        w: Weights = {name: mode.from_tensor(tensor) for name, tensor in weights.items()}
        b: Weights = {name: mode.from_tensor(tensor) for name, tensor in buffers.items()}
        key = mode.from_tensor(keys)
        loss, _ = made.train_loss(w, b, mode.from_tensor(rows), key)
        assert made.validate(w, b, key)["loss"].shape == loss.shape == (3,)
        with pytest.raises(DataDependentOutputException):
            float(loss[0])


def test_the_curve_holds_the_validation_auc_of_every_epoch(
    random: list[Checkpoint], small_frames: Frames
) -> None:
    epochs: list[Epoch] = []
    (one,) = score_groups(
        [random[:2]],
        small_frames,
        protocol="finetune",
        settings=QUICK,
        resamples=0,
        curve=True,
        on_epoch=epochs.append,
    )
    curve = one.evaluation.curve
    assert curve is not None
    assert [len(values) for values in curve] == [2, 2]
    assert curve[1][0] == epochs[0].validation["auc"][1]


def test_an_encoder_for_other_frame_lengths_is_refused(
    random: list[Checkpoint], small_frames: Frames, tmp_path: Path
) -> None:
    signals = Signals(torch.zeros(10_000, dtype=torch.int16), 1000)
    part = LabeledWindows(torch.arange(4), torch.ones(4), torch.ones(4, 2, dtype=torch.uint8))
    with pytest.raises(Exception, match="frames of 400 samples, not 1000"):
        FinetuneTask(random, signals, part, part, MemberLabels([torch.arange(4)] * 3))
