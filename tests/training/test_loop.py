from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from clocs.encoders.base import Weights
from clocs.errors import CheckpointError, SettingError
from clocs.frames.frames import Frames
from clocs.kernels import keyed_random
from clocs.pretraining.plan import Plan
from clocs.pretraining.task import PretrainingTask
from clocs.training import Keep, Settings, loop
from clocs.training.loop import Epoch, Task, Trained, fit
from clocs.training.replicas import Optimizer, Replicas
from clocs.training.signals import min_max

CPU = torch.device("cpu")
KEEP: tuple[Keep, ...] = ("best", "last")


def contrast(
    frames: Frames, members: int, method: str = "cmsc", dtype: torch.dtype = torch.float32
) -> PretrainingTask:
    plan = Plan(method, tuple(range(members)), embedding_dim=16, settings=Settings(batch_size=32))
    return PretrainingTask(frames, plan, device=CPU, dtype=dtype)


def train(
    frames: Frames,
    seeds: list[int],
    epochs: int,
    dtype: torch.dtype = torch.float32,
    **more: object,
) -> Trained:
    return fit(
        contrast(frames, len(seeds), dtype=dtype),
        seeds,
        Settings(epochs=epochs, batch_size=32, lr=1e-3),
        device=CPU,
        dtype=dtype,
        **more,  # type: ignore[arg-type]
    )


class Hill(Task):
    """A task with a known validation loss: |w − goal| after gradient steps on it."""

    def __init__(self, goals: list[float], broken_at: float = float("inf")) -> None:
        self.goals, self.broken_at = torch.tensor(goals), broken_at
        self.counts = torch.full((len(goals),), 4)

    def parameters(self, keys: Tensor) -> Weights:
        return {"w": torch.zeros(len(keys), 1)}

    def buffers(self, members: int) -> Weights:
        return {"seen": torch.zeros(members, 1)}

    def train_loss(
        self, weights: Weights, buffers: Weights, rows: Tensor, keys: Tensor
    ) -> tuple[Tensor, Weights]:
        loss = (weights["w"][:, 0] - self.goals).abs()
        loss = torch.where(weights["w"][:, 0] > self.broken_at, torch.nan, loss)
        return loss, {"seen": buffers["seen"] + 1}

    def validate(self, weights: Weights, buffers: Weights, keys: Tensor) -> dict[str, Tensor]:
        return {"loss": (weights["w"][:, 0] - self.goals).abs()}


def test_a_fleet_equals_its_singles_in_float64(few_frames: Frames) -> None:
    fleet = train(few_frames, [4, 9, 1], epochs=2, dtype=torch.float64)
    for member, seed in enumerate([4, 9, 1]):
        alone = train(few_frames, [seed], epochs=2, dtype=torch.float64)
        assert alone.validation_loss[0] == pytest.approx(fleet.validation_loss[member], rel=1e-9)
        for name, tensor in alone.weights.items():
            assert torch.allclose(tensor[0], fleet.weights[name][member], atol=1e-10), name


def test_two_runs_with_one_seed_give_identical_weights(few_frames: Frames) -> None:
    first, second = (train(few_frames, [7], epochs=2) for _ in range(2))
    for name, tensor in first.weights.items():
        assert torch.equal(tensor, second.weights[name])
    other = train(few_frames, [8], epochs=2)
    assert not torch.equal(first.weights["conv1.weight"], other.weights["conv1.weight"])


def test_an_interrupted_run_resumes_to_identical_weights(
    few_frames: Frames, tmp_path: Path
) -> None:
    class StopError(Exception):
        pass

    def stop(epoch: Epoch) -> None:
        if epoch.number == 3:
            raise StopError

    state = tmp_path / "state.safetensors"
    with pytest.raises(StopError):
        train(few_frames, [0, 1], epochs=5, state=state, save_every=0, on_epoch=stop)
    numbers: list[int] = []
    resumed = train(
        few_frames, [0, 1], epochs=5, state=state, on_epoch=lambda e: numbers.append(e.number)
    )
    assert numbers == [3, 4, 5]
    whole = train(few_frames, [0, 1], epochs=5)
    for name, tensor in whole.weights.items():
        assert torch.equal(tensor, resumed.weights[name])
    assert whole.validation_loss == resumed.validation_loss


def test_the_last_weights_are_kept_without_early_stopping_where_asked_for() -> None:
    """The goal is passed at epoch 3; each epoch is one step of length 1."""
    best, last = (fit(Hill([2.6]), [0], Settings(8, 2, 4, 1.0, keep), device=CPU) for keep in KEEP)
    assert (best.status, best.best_epoch) == (["stopped early"], [3])
    assert (last.status, last.best_epoch, last.epochs) == (["all epochs"], [8], 8)
    final = float(last.weights["w"][0, 0])
    assert final != float(best.weights["w"][0, 0])
    assert last.validation_loss[0] == pytest.approx(abs(final - 2.6), rel=1e-4)
    with pytest.raises(SettingError, match="`keep` is best or last, not first"):
        Settings(keep="first")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "method", ["supervised", "mtssl", "byol", "simclr", "cmsc", "cmlc", "cmsmlc"]
)
def test_every_method_trains_as_a_fleet_that_equals_its_singles(
    few_frames: Frames, method: str
) -> None:
    """Float64 weights after two epochs; perturbations, heads and BYOL's target included."""
    frames = few_frames.with_leads(few_frames.leads[:2])

    def weights(seeds: list[int]) -> Trained:
        task = contrast(frames, len(seeds), method, torch.float64)
        settings = Settings(epochs=2, batch_size=16, lr=1e-3)
        return fit(task, seeds, settings, device=CPU, dtype=torch.float64)

    both = weights([5, 2])
    for member, seed in enumerate([5, 2]):
        alone = weights([seed])
        assert np.isfinite(alone.validation_loss[0])
        for name, tensor in (alone.weights | alone.buffers).items():
            together = (both.weights | both.buffers)[name][member]
            assert torch.allclose(tensor[0], together, atol=1e-9), name


@pytest.mark.parametrize("method", ["supervised", "mtssl", "simclr", "cmlc", "cmsmlc"])
def test_every_method_lowers_its_loss(few_frames: Frames, method: str) -> None:
    seen: list[float] = []
    fit(
        contrast(few_frames, 1, method),
        [0],
        Settings(epochs=6, batch_size=32, lr=1e-3),
        device=CPU,
        on_epoch=lambda e: seen.append(e.train_loss[0]),
    )
    assert seen[-1] < seen[0]


def test_byols_target_is_a_moving_average_of_the_online_network(few_frames: Frames) -> None:
    task = contrast(few_frames, 1, "byol", torch.float64)
    done = fit(
        task, [0], Settings(epochs=1, batch_size=10_000, lr=1e-2), device=CPU, dtype=torch.float64
    )
    start = task.encoder.parameters(keyed_random.member_keys([0]))["linear.weight"].double()
    expected = 0.9 * start + 0.1 * done.weights["linear.weight"]
    assert torch.allclose(done.buffers["target.linear.weight"], expected, atol=1e-12)
    assert not torch.equal(done.weights["linear.weight"], start)


def test_training_lowers_the_loss(small_frames: Frames) -> None:
    losses: list[float] = []
    train(small_frames, [0], epochs=8, on_epoch=lambda e: losses.append(e.train_loss[0]))
    assert losses[-1] < losses[0] - 0.2


def test_a_member_stops_after_its_own_patience_and_changes_no_more() -> None:
    epochs: list[Epoch] = []
    done = fit(
        Hill([0.005, 10.0]),
        [0, 1],
        Settings(epochs=60, patience=5, batch_size=4, lr=1e-3),
        device=CPU,
        on_epoch=epochs.append,
    )
    assert sum(epoch.live[0] for epoch in epochs) == 5 + 5  # up to its best, and its patience
    assert done.status == ["stopped early", "all epochs"]
    assert done.best_epoch[0] == 5
    assert done.best_epoch[1] == 60
    assert float(done.weights["w"][0, 0]) == pytest.approx(0.005, abs=2e-4)
    assert float(done.buffers["seen"][0, 0]) == 5  # the statistics of the best epoch, not the last


def test_a_loss_that_is_not_finite_ends_its_member_alone() -> None:
    done = fit(
        Hill([10.0, -10.0], broken_at=0.0095),
        [0, 1],
        Settings(epochs=30, batch_size=4, lr=1e-3),
        device=CPU,
    )
    assert done.status == ["not finite", "all epochs"]
    assert float(done.weights["w"][0, 0]) == pytest.approx(0.010, abs=1e-4)
    assert float(done.weights["w"][1, 0]) == pytest.approx(-0.030, abs=1e-4)


@pytest.mark.parametrize("kernel", ["torch", "native"])
def test_a_fleet_that_diverged_stops_within_its_epoch(
    monkeypatch: pytest.MonkeyPatch, kernel: str
) -> None:
    monkeypatch.setattr(loop, "LOOK_EVERY", 0.0)
    monkeypatch.setenv("CLOCS_KERNEL", kernel)
    task = Hill([10.0, 10.0], broken_at=0.0095)
    task.counts = torch.full((2,), 400)  # 100 steps, in the tenth of which the loss is NaN
    steps: list[int] = []
    done = fit(
        task,
        [0, 1],
        Settings(epochs=30, batch_size=4, lr=1e-3),
        device=CPU,
        on_step=lambda step, steps_in_epoch: steps.append(step),
    )
    assert done.status == ["not finite", "not finite"]
    assert steps == list(range(1, 12))
    assert done.epochs == 1


@pytest.mark.parametrize("kernel", ["torch", "native"])
def test_weights_that_are_not_finite_end_a_training_whose_loss_is(
    monkeypatch: pytest.MonkeyPatch, kernel: str
) -> None:
    monkeypatch.setenv("CLOCS_KERNEL", kernel)

    class Hidden(Hill):
        """The loss does not show how large a weight has become."""

        def train_loss(
            self, weights: Weights, buffers: Weights, rows: Tensor, keys: Tensor
        ) -> tuple[Tensor, Weights]:
            return weights["w"][:, 0].tanh() + 1, buffers

        def validate(self, weights: Weights, buffers: Weights, keys: Tensor) -> dict[str, Tensor]:
            return {"loss": weights["w"][:, 0].tanh()}

    settings = Settings(epochs=3, batch_size=4, lr=float("inf"))
    done = fit(Hidden([1.0]), [0], settings, device=CPU)
    assert (done.status, done.epochs, done.diverged) == (["not finite"], 1, [True])


def test_steps_are_adams() -> None:
    torch.manual_seed(0)
    theta = torch.randn(2, 5, dtype=torch.float64)
    reference = theta.clone().requires_grad_()
    adam = torch.optim.Adam([reference], lr=1e-2)
    fleet = Replicas.start(theta, torch.zeros(2, 0, dtype=torch.float64))
    everyone = torch.ones(2, dtype=torch.bool)
    for _ in range(20):
        gradient = torch.randn(2, 5, dtype=torch.float64)
        reference.grad = gradient.clone()
        adam.step()
        fleet.step(gradient, fleet.buffers, torch.zeros(2), Optimizer(1e-2), everyone)
    assert torch.allclose(fleet.theta, reference.detach(), atol=1e-12)


def test_members_with_fewer_rows_get_padding_not_repeats() -> None:
    hill = Hill([1.0, 1.0])
    hill.counts = torch.tensor([3, 6])
    order = hill.epoch_order(keyed_random.member_keys([0, 1]))
    assert sorted(order[0].tolist()) == [-1, -1, -1, 0, 1, 2]
    assert order[0, 3:].tolist() == [-1, -1, -1]
    assert sorted(order[1].tolist()) == [0, 1, 2, 3, 4, 5]


def test_validation_uses_the_same_batches_every_time(small_frames: Frames) -> None:
    task = contrast(small_frames, 2)
    keys = keyed_random.member_keys([0, 1])
    weights, buffers = task.parameters(keys), task.buffers(2)
    first, second = (task.validate(weights, buffers, keys) for _ in range(2))
    assert torch.equal(first["loss"], second["loss"])
    assert (first["dead"] < 0.5).all()
    assert (first["same_patient_pairs"] > 0).all()


def test_normalized_frames_span_zero_to_one_and_flat_ones_are_zero() -> None:
    x = torch.randn(3, 50) * 4 + 9
    x[1] = 7.0
    y = min_max(x)
    assert torch.equal(y.amin(dim=1), torch.zeros(3))
    assert y.amax(dim=1).tolist() == [1.0, 0.0, 1.0]


def test_the_gather_gives_the_windows(small_frames: Frames) -> None:
    task = contrast(small_frames, 1)
    rows = torch.tensor([[2, 5, 11]])
    batch = task.batches.batch(task.train, rows, keyed_random.member_keys([0]))
    starts = task.train.windows[rows[0]].numpy()  # (3, 2)
    for view in range(2):
        for i in range(3):
            window = small_frames.signals[starts[i, view] :][: small_frames.spec.samples]
            expected = (window - float(window.min())) / float(np.ptp(window.astype(float)))
            assert np.allclose(batch.x[0, view * 3 + i].numpy(), expected, atol=1e-6)
    assert batch.patients.shape == (1, 3)


def test_settings_without_meaning_are_refused() -> None:
    with pytest.raises(SettingError, match="`epochs` must be at least 1"):
        Settings(epochs=0)
    with pytest.raises(SettingError, match="`lr`, the learning rate, must be above 0, not -1"):
        Settings(lr=-1.0)


def test_a_damaged_state_says_what_to_do(small_frames: Frames, tmp_path: Path) -> None:
    state = tmp_path / "state.safetensors"
    state.write_bytes(b"not a state")
    with pytest.raises(CheckpointError, match="delete it and the previous one"):
        train(small_frames, [0], epochs=1, state=state)
