"""AdamW, schedules and the average of weights: against torch and plain loops."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from clocs.encoders.base import Weights
from clocs.errors import CheckpointError, SettingError
from clocs.frames.frames import Frames
from clocs.pretraining.plan import Plan
from clocs.pretraining.task import PretrainingTask
from clocs.training import Settings
from clocs.training.loop import Epoch, Task, Trained, fit
from clocs.training.replicas import Layout, Optimizer, Replicas, schedule

CPU = torch.device("cpu")
ALL: dict[str, Any] = {
    "optimizer": "adamw",
    "weight_decay": 0.1,
    "schedule": "cosine",
    "warm_up": 0.2,
    "average": 0.9,
}
SHAPES = {"linear.weight": (3, 4), "linear.bias": (4,), "head.weight": (4, 2)}


def shares(name: Any, warm_up: float, total: float) -> list[float]:
    """Of the highest learning rate, at each step of a training."""
    done = torch.arange(int(total))[:, None]
    return schedule(name, done, torch.tensor(warm_up), torch.tensor(total))[:, 0].tolist()


def test_a_cosine_falls_from_the_highest_learning_rate_to_almost_zero() -> None:
    """By hand: (1 + cos(π n / 4)) / 2."""
    assert shares("cosine", 0, 4) == pytest.approx([1, 0.85355339, 0.5, 0.14644661])


def test_warm_up_rises_in_equal_parts() -> None:
    assert shares("constant", 4, 6) == pytest.approx([0.25, 0.5, 0.75, 1, 1, 1])
    assert shares("cosine", 2, 6) == pytest.approx([0.5, 1, 1, 0.85355339, 0.5, 0.14644661])


def test_each_member_has_the_schedule_of_its_own_number_of_steps() -> None:
    settings = Settings(epochs=2, lr=0.5, schedule="cosine", warm_up=0.25)
    steps = torch.tensor([2, 4])  # an epoch: 4 and 8 in all, of which 1 and 2 are warm-up
    optimizer = Optimizer.from_settings(settings, SHAPES, steps, lambda name: 1.0, torch.float64)
    rate = optimizer.rate(torch.tensor([2, 2]), torch.float64)
    assert isinstance(rate, Tensor)
    expected = [0.25 + 0.25 * math.cos(math.pi / 3), 0.5]
    assert rate[:, 0].tolist() == pytest.approx(expected)


@pytest.mark.parametrize("encoder_lr", [1.0, 0.1])
def test_steps_are_those_of_torchs_adamw(encoder_lr: float) -> None:
    """Two members of 20 weights each, decay on matrices alone, a smaller step below the head."""
    torch.manual_seed(0)
    layout = Layout(SHAPES)
    settings = Settings(epochs=5, lr=1e-2, optimizer="adamw", weight_decay=0.2, schedule="cosine")
    theta = torch.randn(2, sum(layout.sizes), dtype=torch.float64)
    everyone = torch.ones(2, dtype=torch.bool)
    optimizer = Optimizer.from_settings(
        settings,
        SHAPES,
        torch.tensor([4, 4]),
        lambda name: 1.0 if name.startswith("head.") else encoder_lr,
        torch.float64,
    )
    references, groups = [], []
    for row in theta:
        tensors = {k: nn.Parameter(v[0].clone()) for k, v in layout.unpack(row[None]).items()}
        how = [
            {
                "params": [tensor],
                "lr": 1e-2 * (1.0 if name.startswith("head.") else encoder_lr),
                "weight_decay": 0.0 if name.endswith(".bias") else 0.2,
            }
            for name, tensor in tensors.items()
        ]
        references.append(torch.optim.AdamW(how))
        groups.append(tensors)
    schedulers = [torch.optim.lr_scheduler.CosineAnnealingLR(one, 20) for one in references]
    fleet = Replicas.start(theta.clone(), torch.zeros(2, 0, dtype=torch.float64))
    for _ in range(20):
        gradient = torch.randn_like(theta)
        for member, tensors in enumerate(groups):
            for name, slope in layout.unpack(gradient).items():
                tensors[name].grad = slope[member].clone()
            references[member].step()
            schedulers[member].step()
        fleet.step(gradient, fleet.buffers, torch.zeros(2), optimizer, everyone)
    for member, tensors in enumerate(groups):
        for name, tensor in layout.unpack(fleet.theta).items():
            assert torch.allclose(tensor[member], tensors[name].detach(), atol=1e-12), name
    assert not torch.allclose(fleet.theta, theta, atol=1e-3)


def test_a_member_that_does_not_move_stays_as_it_is_to_the_bit() -> None:
    settings = Settings(**ALL)
    optimizer = Optimizer.from_settings(
        settings, {"w": (2, 3)}, torch.ones(3), lambda _: 1.0, torch.float32
    )
    fleet = Replicas.start(torch.randn(3, 6), torch.randn(3, 2), averaged=True)
    before = fleet.of([0, 1, 2])
    gradient, loss = torch.randn(3, 6), torch.tensor([0.0, 0.0, torch.nan])
    on = torch.tensor([True, False, True])
    moved = fleet.step(gradient, torch.randn(3, 2), loss, optimizer, on)
    fleet.take_average(optimizer, moved)
    assert moved[:, 0].tolist() == [True, False, False]
    for name in ("theta", "buffers", "moment1", "moment2", "average", "average_buffers", "steps"):
        now, then = getattr(fleet, name), getattr(before, name)
        assert torch.equal(now[1:], then[1:]), name
        assert not torch.equal(now[0], then[0]), name


def test_a_step_with_all_options_waits_for_nothing() -> None:
    """Else it could not be captured as a CUDA graph: fake tensors refuse to be read."""
    with FakeTensorMode():
        steps = torch.ones(2, dtype=torch.int64)
        optimizer = Optimizer.from_settings(
            Settings(**ALL), SHAPES, steps, lambda name: 0.5, torch.float32
        )
        fleet = Replicas.start(torch.zeros(2, 24), torch.zeros(2, 3), averaged=True)
        gradient, statistics = torch.zeros(2, 24), torch.zeros(2, 3)
        moved = fleet.step(gradient, statistics, torch.zeros(2), optimizer, steps > 0)
        fleet.take_average(optimizer, moved)
        with pytest.raises(DataDependentOutputException):
            float(fleet.kept[0][0, 0])


class Valley(Task):
    """Weights that fall toward a goal, and a statistic that counts steps."""

    counts = torch.tensor([8, 8])

    def __init__(self) -> None:
        self.goal = torch.tensor([[1.0, -2.0], [3.0, 0.5]], dtype=torch.float64)
        self.validated: list[Tensor] = []

    def parameters(self, keys: Tensor) -> Weights:
        return {"w": torch.zeros(len(keys), 2, dtype=torch.float64)}

    def buffers(self, members: int) -> Weights:
        return {"seen": torch.zeros(members, 1, dtype=torch.float64)}

    def train_loss(
        self, weights: Weights, buffers: Weights, rows: Tensor, keys: Tensor
    ) -> tuple[Tensor, Weights]:
        loss = (weights["w"] - self.goal).square().sum(dim=1)
        return loss, {"seen": buffers["seen"] + 1}

    def validate(self, weights: Weights, buffers: Weights, keys: Tensor) -> dict[str, Tensor]:
        self.validated.append(torch.cat([weights["w"], buffers["seen"]], dim=1).clone())
        return {"loss": (weights["w"] - self.goal).square().sum(dim=1)}


def test_the_average_of_weights_and_statistics_is_that_of_a_plain_loop() -> None:
    task = Valley()
    settings = Settings(epochs=5, batch_size=2, lr=0.05, keep="last", average=0.6)
    done = fit(task, [0, 1], settings, device=CPU, dtype=torch.float64)

    w = nn.Parameter(torch.zeros(2, 2, dtype=torch.float64))
    adam = torch.optim.Adam([w], lr=0.05)
    average, seen = torch.zeros_like(w), 0.0
    expected = []
    for step in range(1, 21):
        w.grad = 2 * (w.detach() - task.goal)
        adam.step()
        decay = min(0.6, (1 + step) / (10 + step))
        average = decay * average + (1 - decay) * w.detach()
        seen = decay * seen + (1 - decay) * step
        if step % 4 == 0:
            expected.append(torch.cat([average, torch.full((2, 1), seen)], dim=1))
    for found, wanted in zip(task.validated, expected, strict=True):
        assert torch.allclose(found, wanted, atol=1e-12)
    assert torch.allclose(done.weights["w"], average, atol=1e-12)  # what is kept
    assert float(done.buffers["seen"][0, 0]) == pytest.approx(seen)


def train(
    frames: Frames, seeds: list[int], dtype: torch.dtype = torch.float32, **more: Any
) -> Trained:
    settings = Settings(epochs=3, batch_size=64, lr=1e-3, **ALL)
    plan = Plan("byol", tuple(seeds), embedding_dim=8, settings=settings)
    task = PretrainingTask(frames, plan, device=CPU, dtype=dtype)
    return fit(task, seeds, settings, device=CPU, dtype=dtype, **more)


def test_a_fleet_with_all_options_equals_its_singles(few_frames: Frames) -> None:
    both = train(few_frames, [5, 2], torch.float64)
    for member, seed in enumerate([5, 2]):
        alone = train(few_frames, [seed], torch.float64)
        for name, tensor in (alone.weights | alone.buffers).items():
            together = (both.weights | both.buffers)[name][member]
            assert torch.allclose(tensor[0], together, atol=1e-9), name


def test_a_run_with_all_options_resumes_to_identical_weights(
    few_frames: Frames, tmp_path: Path
) -> None:
    class StopError(Exception):
        pass

    def stop(epoch: Epoch) -> None:
        if epoch.number == 2:
            raise StopError

    state = tmp_path / "state.safetensors"
    with pytest.raises(StopError):
        train(few_frames, [0, 1], state=state, save_every=0, on_epoch=stop)
    saved = Replicas.load(state, CPU)
    assert saved.average is not None
    assert not torch.equal(saved.average, saved.theta)
    resumed, whole = train(few_frames, [0, 1], state=state), train(few_frames, [0, 1])
    for name, tensor in (whole.weights | whole.buffers).items():
        assert torch.equal(tensor, (resumed.weights | resumed.buffers)[name]), name
    assert whole.validation_loss == resumed.validation_loss
    with pytest.raises(CheckpointError, match="of another training; delete it"):
        fit(Valley(), [0, 1], Settings(), device=CPU, dtype=torch.float64, state=state)


def test_a_state_with_an_average_is_not_that_of_a_training_without(tmp_path: Path) -> None:
    def saved_after(settings: Settings) -> None:
        fit(
            Valley(), [0, 1], settings, device=CPU, dtype=torch.float64,
            state=tmp_path / "state.safetensors", save_every=0,
        )  # fmt: skip

    saved_after(Settings(epochs=1, batch_size=2, average=0.9))
    with pytest.raises(CheckpointError, match="of another training; delete it"):
        saved_after(Settings(epochs=2, batch_size=2))


def test_finished_members_are_left_out_with_their_averages() -> None:
    fleet = Replicas.start(torch.randn(3, 4), torch.randn(3, 2), averaged=True)
    part = fleet.of([2, 0])
    assert part.average is not None and fleet.average is not None
    assert torch.equal(part.average, fleet.theta[[2, 0]])
    part.average += 1
    fleet.put([2, 0], part)
    assert torch.equal(fleet.average[2], fleet.theta[2] + 1)
    assert torch.equal(fleet.average[1], fleet.theta[1])


def test_settings_at_their_defaults_are_not_said() -> None:
    """Cards and settings files of plain trainings are as they were."""
    assert Settings().to_dict() == {"epochs": 400, "patience": 15, "batch_size": 256, "lr": 1e-4}
    assert Settings(keep="last").to_dict()["keep"] == "last"
    chosen = Settings(**ALL)
    assert ALL.items() <= chosen.to_dict().items()
    assert Settings(**json.loads(json.dumps(chosen.to_dict()))) == chosen
    assert Settings(optimizer="adamw").to_dict()["weight_decay"] == 0.01  # torch's default


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"optimizer": "sgd"}, "`optimizer` is adam or adamw, not sgd"),
        ({"schedule": "linear"}, "`schedule` is constant or cosine, not linear"),
        ({"weight_decay": 0.1}, "`weight_decay` needs `optimizer=adamw`"),
        ({"optimizer": "adamw", "weight_decay": -1.0}, "`weight_decay` must be a number from 0"),
        ({"warm_up": 1.0}, "`warm_up` is a share of all steps, at least 0 and below 1, not 1.0"),
        ({"warm_up": math.nan}, "`warm_up` is a share"),
        ({"average": 1.0}, "`average` must be above 0 and below 1, not 1.0"),
    ],
)
def test_options_without_meaning_are_refused_in_a_sentence(given: Any, words: str) -> None:
    with pytest.raises(SettingError, match=words):
        Settings(**given)
