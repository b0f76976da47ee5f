"""Losses with a choice of leads, segments and positives, as the factorial combines them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from clocs.errors import SettingError
from clocs.experiments.grid import factor_cell, factor_subsets
from clocs.frames.frames import Frames
from clocs.kernels import keyed_random
from clocs.pretraining.batches import Batch
from clocs.pretraining.losses import nt_xent
from clocs.pretraining.methods.baselines import byol_loss
from clocs.pretraining.plan import Plan
from clocs.pretraining.task import PretrainingTask
from clocs.training import Settings

LOSSES = ("cmsc", "simclr", "byol")
WHOSE = torch.tensor([[0, 1, 0, 2, 1, 0], [3, 3, 3, 4, 5, 6]])


def batch_of(frames: Frames, method: str, **more: Any) -> tuple[PretrainingTask, Batch]:
    plan = Plan(method, settings=Settings(batch_size=8), **more)
    task = PretrainingTask(frames, plan, device=torch.device("cpu"))
    keys = keyed_random.member_keys([3])
    return task, task.batches.batch(task.train, torch.arange(8)[None], keys)


def vectors(seed: int) -> Tensor:
    return torch.randn(
        2, 2, 6, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
    )


def cosine(a: Tensor, b: Tensor) -> float:
    return float(a @ b / a.norm() / b.norm())


def test_simclr_with_same_patient_positives_adds_the_mean_over_their_views() -> None:
    z, tau = vectors(1), 0.3
    found = nt_xent(z, tau, WHOSE) - nt_xent(z, tau)
    for member, patients in enumerate(WHOSE.tolist()):
        rows = [(v, i) for v in range(2) for i in range(6)]
        terms = []
        for v, i in rows:
            others = [
                cosine(z[member, v, i], z[member, w, k]) / tau for w, k in rows if (w, k) != (v, i)
            ]
            total = torch.tensor(others).exp().sum().log()
            terms += [
                float(total) - cosine(z[member, v, i], z[member, w, k]) / tau
                for w, k in rows
                if k != i and patients[k] == patients[i]
            ]
        assert float(found[member]) == pytest.approx(sum(terms) / len(terms), rel=1e-5)


def test_byol_with_same_patient_positives_adds_the_mean_distance_to_their_targets() -> None:
    predicted, target = vectors(2), vectors(3)
    found = byol_loss(predicted, target, patients=WHOSE) - byol_loss(predicted, target)
    for member, patients in enumerate(WHOSE.tolist()):
        pairs = [
            (i, k) for i in range(6) for k in range(6) if i != k and patients[i] == patients[k]
        ]
        apart = [
            2 - 2 * cosine(predicted[member, v, i], target[member, 1 - v, k])
            for v in range(2)
            for i, k in pairs
        ]
        assert float(found[member]) == pytest.approx(sum(apart) / len(pairs), rel=1e-6)


@pytest.mark.parametrize("method", LOSSES)
@pytest.mark.parametrize("segments", [1, 2])
def test_an_encoder_of_one_lead_sees_a_random_lead_of_the_frame_in_each_view(
    small_frames: Frames, method: str, segments: int
) -> None:
    options = {"segments": segments, "most_leads": 1}
    task, batch = batch_of(small_frames, method, options=options, perturb="scaling(factor=1)")
    assert batch.views == 2 and batch.x.shape == (1, 16, small_frames.spec.samples)
    plain, _ = batch_of(small_frames, method, options={"segments": segments}, perturb="flip_x")
    assert len(task.train.windows) == len(plain.train.windows)  # as many instances and steps
    views = batch.by_view(batch.x)[0]
    seen = []
    for view in range(2):
        window = 0 if segments == 1 else view
        for row in range(8):
            every = task.signals.normalized(task.train.windows[row, window])
            apart = (every - views[view, row]).abs().amax(dim=-1)
            seen.append(int(apart.argmin()))
            assert float(apart.min()) < 1e-5
    assert len(set(seen)) == every.shape[0]  # each lead is drawn at some time
    assert seen[:8] != seen[8:]  # and the two views of an instance are drawn apart


def test_every_cell_of_the_factorial_learns(small_frames: Frames) -> None:
    for loss in LOSSES:
        for chosen in factor_subsets():
            encoder = factor_cell(loss, "physionet2020", chosen).pretraining
            task, batch = batch_of(small_frames, loss, perturb=encoder.perturb, **encoder.plan)
            keys = keyed_random.member_keys([3])
            weights = {k: v.requires_grad_() for k, v in task.parameters(keys).items()}
            value, _ = task.train_loss(weights, task.buffers(1), batch.rows, keys)
            value.sum().backward()
            assert batch.views == 2 and value.isfinite().all()
            assert any(w.grad is not None and w.grad.abs().sum() > 0 for w in weights.values())


def test_equal_views_and_choices_that_an_encoder_cannot_follow_are_refused() -> None:
    with pytest.raises(SettingError, match="two copies of one segment are equal; give `perturb`"):
        Plan("cmsc", options={"segments": 1}).views_on("synthetic")
    with pytest.raises(SettingError, match="byol compares two views; give at most 2 `segments`"):
        Plan("byol", options={"segments": 3}).views_on("synthetic")
    with pytest.raises(SettingError, match="cnn sees one lead at a time"):
        Plan("simclr", options={"most_leads": 2}).views_on("synthetic")
