"""Members that have finished are left out, and nothing else changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from clocs import Frames
from clocs.pretraining.plan import Plan
from clocs.pretraining.pretrain import pretrain_frames
from clocs.pretraining.task import PretrainingTask
from clocs.training import Settings, loop
from clocs.training.loop import Epoch, Trained, fit
from evaluation_parts import evaluate_groups

CPU = torch.device("cpu")
SHORT = Settings(epochs=12, patience=1, batch_size=16, lr=1e-2)
ALL_OPTIONS = Settings(
    epochs=12,
    patience=1,
    batch_size=16,
    lr=1e-2,
    optimizer="adamw",
    schedule="cosine",
    warm_up=0.1,
    average=0.5,
)


def trained(
    frames: Frames, plan: Plan, monkeypatch: pytest.MonkeyPatch, fewer: float, **options: Any
) -> tuple[Trained, list[Epoch], list[int]]:
    """What a training gives, its epochs, and how many worked in each training engine."""
    sizes: list[int] = []
    make = loop.Engine.__init__

    def counted(self: Any, task: Any, fleet: Any, *others: Any) -> None:
        sizes.append(len(fleet.live))
        make(self, task, fleet, *others)

    epochs: list[Epoch] = []
    with monkeypatch.context() as patched:
        patched.setattr(loop, "FEWER", fewer)
        patched.setattr(loop.Engine, "__init__", counted)
        task = PretrainingTask(frames, plan, device=CPU)
        done = fit(
            task,
            list(plan.seeds),
            plan.settings,
            device=CPU,
            on_epoch=epochs.append,
            **options,
        )
    return done, epochs, sizes


def same(a: Trained, b: Trained) -> bool:
    tensors = [(own[k], other[k]) for own, other in ((a.weights, b.weights),) for k in own]
    facts = (a.validation_loss, a.best_epoch, a.status) == (
        b.validation_loss,
        b.best_epoch,
        b.status,
    )
    return facts and all(torch.equal(x, y) for x, y in tensors)


@pytest.mark.parametrize(
    ("method", "perturb", "settings"),
    [
        ("cmsc", None, SHORT),
        ("simclr", "gaussian>flip_x", SHORT),
        ("byol", None, SHORT),
        ("cmsc", None, ALL_OPTIONS),
    ],
)
def test_a_training_without_its_finished_members_is_the_same(
    few_frames: Frames,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    perturb: str | None,
    settings: Settings,
) -> None:
    frames = few_frames.with_leads(few_frames.leads[:2])
    plan = Plan(method, (0, 1, 2, 3), perturb=perturb, settings=settings)
    all_along, before, sizes = trained(frames, plan, monkeypatch, 0)
    assert sizes == [len(plan.seeds)]
    fewer, after, sizes = trained(frames, plan, monkeypatch, 0.99)
    assert len(sizes) > 1
    assert sizes == sorted(sizes, reverse=True)
    assert same(all_along, fewer)
    for a, b in zip(before, after, strict=True):
        assert (a.number, a.live, a.instances) == (b.number, b.live, b.instances)
        assert a.train_loss == b.train_loss
        assert a.validation["loss"] == b.validation["loss"]


def test_a_state_saved_without_finished_members_is_resumed(
    few_frames: Frames, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plan = Plan("cmsc", (0, 1, 2, 3), settings=SHORT)
    whole, epochs, _ = trained(few_frames, plan, monkeypatch, 0.99)

    class StoppedError(Exception):
        pass

    def stop(epoch: Epoch) -> None:
        if 0 < sum(epoch.live) < 4:
            raise StoppedError

    assert any(0 < sum(epoch.live) < 4 for epoch in epochs)
    monkeypatch.setattr(loop, "FEWER", 0.99)
    state = tmp_path / "state.safetensors"
    task = PretrainingTask(few_frames, plan, device=CPU)
    with pytest.raises(StoppedError):
        fit(task, [0, 1, 2, 3], SHORT, device=CPU, state=state, save_every=0, on_epoch=stop)
    assert same(whole, fit(task, [0, 1, 2, 3], SHORT, device=CPU, state=state))


@pytest.mark.parametrize("protocol", ["linear", "finetune"])
def test_scores_without_finished_members_are_the_same(
    small_frames: Frames, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, protocol: str
) -> None:
    plan = Plan("random-bn", (0, 1, 2, 3), settings=SHORT)
    group = pretrain_frames(
        small_frames, plan, tmp_path, frame_to_use=small_frames.spec, device=CPU
    )
    found = []
    for fewer in (0, 0.99):
        monkeypatch.setattr(loop, "FEWER", fewer)
        (one,) = evaluate_groups(
            [group],
            small_frames,
            protocol=protocol,
            settings=SHORT,
            resamples=0,
            class_weights=True,
            fraction=0.7,
        )
        found.append(one)
    assert found[0].auc == found[1].auc
    assert found[0].settings["best_epoch"] == found[1].settings["best_epoch"]
