"""Short trainings on a GPU: against the CPU, against themselves, and captured against eager."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from clocs.frames.frames import Frames
from clocs.kernels import keyed_random
from clocs.pretraining.plan import Plan
from clocs.pretraining.task import PretrainingTask
from clocs.recording import FrameSpec
from clocs.training import Settings
from clocs.training.loop import Engine, Trained, fit
from clocs.training.replicas import Layout, Replicas

METHODS = ("cmsc", "cmlc", "cmsmlc", "simclr", "byol", "mtssl", "supervised")
SEEDS = [0, 1, 2]
ALL_OPTIONS: dict[str, Any] = {
    "optimizer": "adamw",
    "weight_decay": 0.1,
    "schedule": "cosine",
    "warm_up": 0.3,
    "average": 0.9,
}
pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def frames() -> Frames:
    """Random walks of 130 patients, two segments in four leads each; made without a store."""
    draw = np.random.default_rng(0)
    patients, leads, segments, samples = 130, 4, 2, 2500
    steps = draw.integers(-20, 21, size=patients * leads * segments * samples, dtype=np.int16)
    recording = np.repeat(np.arange(patients), segments)
    segment = np.tile(np.arange(segments), patients)
    starts = recording[:, None] * leads * segments * samples + segment[:, None] * samples
    target = np.zeros((len(recording), 4), np.uint8)
    target[np.arange(len(recording)), recording % 4] = 1
    return Frames(
        dataset="walks",
        content="",
        spec=FrameSpec(5.0, samples),
        leads=("II", "V2", "aVL", "aVR"),
        labels=("a", "b", "c", "d"),
        multilabel=False,
        batch_size=64,
        split_seed=0,
        unit="mV",
        patient_ids=tuple(map(str, range(patients))),
        recording_ids=tuple(map(str, range(patients))),
        digests=np.arange(patients, dtype=np.uint64),
        age=np.full(patients, np.nan, np.float32),
        sex=np.zeros(patients, np.int8),
        signals=np.cumsum(steps, dtype=np.int64).astype(np.int16),
        starts=starts + np.arange(leads) * segments * samples,
        scale=np.full((len(recording), leads), 1e-3, np.float32),
        recording=recording.astype(np.int32),
        patient=recording.astype(np.int32),
        segment=segment.astype(np.int32),
        split=(recording % 10 == 9).astype(np.int8),
        target=target,
    )


def trained(frames: Frames, method: str, device: str, **options: Any) -> Trained:
    settings = Settings(batch_size=64, epochs=3, lr=1e-3, **options)
    plan = Plan(method, tuple(SEEDS), settings=settings)
    task = PretrainingTask(frames, plan, device=torch.device(device))
    return fit(task, SEEDS, plan.settings, device=torch.device(device))


def furthest(a: Trained, b: Trained) -> float:
    """The largest difference between two weights or statistics."""
    pairs = ((a.weights, b.weights), (a.buffers, b.buffers))
    return max(float((x[k].cpu() - y[k].cpu()).abs().max()) for x, y in pairs for k in x)


@pytest.mark.parametrize("method", METHODS)
def test_a_training_is_the_same_bit_for_bit_when_repeated(frames: Frames, method: str) -> None:
    assert furthest(trained(frames, method, "cuda"), trained(frames, method, "cuda")) == 0


@pytest.mark.parametrize("options", [{}, ALL_OPTIONS], ids=["adam", "all options"])
@pytest.mark.parametrize("method", METHODS)
def test_a_gpu_learns_what_a_cpu_learns(
    frames: Frames, method: str, options: dict[str, Any]
) -> None:
    """Adam makes steps of one size, so a weight with a tiny gradient may go either way.

    Therefore all weights together are compared, with how far they have come.
    """
    there, here = (trained(frames, method, device, **options) for device in ("cuda", "cpu"))
    plan = Plan(method, tuple(SEEDS), settings=Settings(batch_size=64))
    start = PretrainingTask(frames, plan, device=torch.device("cpu")).parameters(
        keyed_random.member_keys(SEEDS)
    )
    apart = sum(float((there.weights[k].cpu() - here.weights[k]).square().sum()) for k in start)
    moved = sum(float((here.weights[k] - start[k]).square().sum()) for k in start)
    assert apart < 0.05**2 * moved, (apart / moved) ** 0.5
    assert there.validation_loss == pytest.approx(here.validation_loss, rel=5e-2)


@pytest.mark.parametrize("options", [{}, ALL_OPTIONS], ids=["adam", "all options"])
@pytest.mark.parametrize("method", METHODS)
def test_captured_steps_equal_eager_ones(
    frames: Frames, method: str, options: dict[str, Any]
) -> None:
    def after_an_epoch(captured: bool) -> Replicas:
        device = torch.device("cuda")
        settings = Settings(epochs=2, batch_size=16, lr=1e-3, **options)
        plan = Plan(method, tuple(SEEDS), settings=settings)
        task = PretrainingTask(frames, plan, device=device)
        keys = keyed_random.member_keys(SEEDS, device)
        parameters = {k: v.to(device) for k, v in task.parameters(keys).items()}
        buffers = {k: v.to(device) for k, v in task.buffers(len(SEEDS)).items()}
        layouts = Layout.from_tensors(parameters), Layout.from_tensors(buffers)
        fleet = Replicas.start(
            layouts[0].pack(parameters), layouts[1].pack(buffers), averaged="average" in options
        )
        engine = Engine(task, fleet, layouts, keys, plan.settings)
        if not captured:
            engine._step = engine._one_step
        engine.train_epoch(lambda step, steps: None)
        return fleet

    replayed, eager = after_an_epoch(True), after_an_epoch(False)
    assert int(replayed.steps[0]) > 1
    for name, tensor in eager.state.items():
        assert torch.equal(replayed.state[name], tensor), name


def batch_of_many_leads(frames: Frames, device: str) -> Tensor:
    options = {"crops": "random"}
    plan = Plan("cmsmlc", (0, 1), "multilead", 32, options=options, perturb="gaussian")
    task = PretrainingTask(frames, plan, device=torch.device(device))
    rows = torch.arange(40, device=device).view(2, 20)
    keys = keyed_random.member_keys([0, 1], device)
    return task.batches.batch(task.train, rows, keys).x.cpu()


def test_batches_of_many_leads_are_the_same_on_both_devices(frames: Frames) -> None:
    there, here = (batch_of_many_leads(frames, device) for device in ("cuda", "cpu"))
    assert torch.equal(there.isnan(), here.isnan())  # the same subsets of leads
    assert torch.allclose(there, here, atol=1e-3, equal_nan=True)  # the same crops and noise
