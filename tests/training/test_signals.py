from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from clocs.frames.frames import ABSENT, Frames
from clocs.frames.views import Views, instances
from clocs.pretraining.plan import Plan
from clocs.pretraining.pretrain import pretrain_frames
from clocs.training import Settings
from clocs.training.checkpoint import load_checkpoint
from clocs.training.embed import embed_instances
from clocs.training.signals import Signals

CPU = torch.device("cpu")


@pytest.mark.parametrize("method", ["cmsc", "simclr", "mtssl", "byol"])
def test_streamed_signals_give_the_same_weights_as_resident_ones(
    small_frames: Frames, tmp_path: Path, method: str
) -> None:
    plan = Plan(
        method, seeds=(0, 3), embedding_dim=16, settings=Settings(epochs=2, batch_size=32, lr=1e-3)
    )
    for stream in (False, True):
        pretrain_frames(small_frames, plan, tmp_path / str(stream), stream=stream)
    for seed in (0, 3):
        name = f"seed-{seed}.safetensors"
        assert (tmp_path / "True" / name).read_bytes() == (tmp_path / "False" / name).read_bytes()


def test_signals_mapped_from_a_file_train_as_those_in_memory(
    small_frames: Frames, tmp_path: Path
) -> None:
    mapped = np.memmap(tmp_path / "signals", np.int16, "w+", shape=small_frames.signals.shape)
    mapped[:] = small_frames.signals
    plan = Plan("cmsc", embedding_dim=16, settings=Settings(epochs=1, batch_size=32))
    for name, frames in (("memory", small_frames), ("file", replace(small_frames, signals=mapped))):
        pretrain_frames(frames, plan, tmp_path / name, stream=name == "file")
    a, b = (load_checkpoint(tmp_path / name).weights for name in ("memory", "file"))
    assert all(torch.equal(a[key], b[key]) for key in a)


def test_batches_of_any_size_come_in_order_through_one_place(small_frames: Frames) -> None:
    resident = Signals.from_frames(small_frames, CPU)
    streamed = Signals.from_frames(small_frames, CPU, windows=7, stream=True)
    every = torch.from_numpy(small_frames.starts[:, 0])
    sizes = [7, 3, 7, 1, 5]

    def batches() -> Iterator[Tensor]:
        yield from every[: sum(sizes)].split(sizes)

    seen = [streamed.normalized(where) for where in streamed.staged(batches())]
    assert len(streamed.flat) == 7 * small_frames.spec.samples
    assert torch.equal(torch.cat(seen), resident.normalized(every[: sum(sizes)]))


def test_embeddings_of_streamed_signals_are_the_same(
    small_frames: Frames, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (checkpoint,) = pretrain_frames(small_frames, Plan("random"), tmp_path / "random")
    rows = instances(small_frames, of="lead", views=Views())
    whole = embed_instances([checkpoint], small_frames, rows)
    real = Signals.from_frames
    monkeypatch.setattr(Signals, "from_frames", lambda *a, **k: real(*a, **(k | {"stream": True})))
    assert torch.equal(embed_instances([checkpoint], small_frames, rows), whole)


def test_a_window_that_is_absent_has_no_voltages_whatever_its_scale() -> None:
    signals = Signals(torch.arange(10, dtype=torch.int16), 4, torch.float32)
    made = signals.raw(torch.tensor([2, ABSENT]), torch.tensor([0.5, 0.5]))
    assert made[0].tolist() == [1.0, 1.5, 2.0, 2.5]
    assert bool(made[1].isnan().all())
