from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
import torch

import clocs
from clocs import Frames, Store
from clocs.errors import CheckpointError, LeakError, SettingError
from clocs.frames.frames import join
from clocs.frames.make import make_frames
from clocs.pretraining.plan import Plan
from clocs.pretraining.pretrain import pretrain_frames
from clocs.pretraining.task import PretrainingTask
from clocs.recording import FrameSpec
from clocs.store.prepare import prepare
from clocs.training import Settings
from clocs.training.checkpoint import check_no_leak, hashed_recordings, load_checkpoint
from fake_dataset import FakeDataset

QUICK = Settings(epochs=1, batch_size=32, lr=1e-3)
CPU = torch.device("cpu")


def task_of(frames: Frames, plan: Plan) -> PretrainingTask:
    return PretrainingTask(
        frames, replace(plan, embedding_dim=8, settings=Settings(batch_size=32)), device=CPU
    )


@pytest.fixture(scope="module")
def other_store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """The same kind of recordings under another name, and of other patients."""
    return prepare(
        FakeDataset(name="other", count=60, frame=FrameSpec(5.0)),
        out=tmp_path_factory.mktemp("other") / "store",
    )


def test_several_stores_are_learned_from_at_once_and_the_guard_knows_all_of_them(
    small_store: Store, other_store: Store, tmp_path: Path
) -> None:
    (checkpoint,) = clocs.pretrain(
        [small_store, other_store],
        method="cmsc",
        out=tmp_path / "both",
        embedding_dim=8,
        settings=QUICK,
    )
    assert checkpoint.card.dataset == "synthetic+other"
    for store in (small_store, other_store):
        frames = make_frames(store)
        check_no_leak(checkpoint, frames)  # the same split: no test patient was seen
        seen = hashed_recordings(frames, checkpoint.card.salt, (0, 1))
        assert np.isin(seen, checkpoint.recordings).all()
        with pytest.raises(LeakError, match="belong to the parts that this encoder was trained"):
            check_no_leak(checkpoint, make_frames(store, split_seed=1))


def test_joined_frames_are_the_frames_of_their_parts(
    small_store: Store, other_store: Store
) -> None:
    parts = [make_frames(store) for store in (small_store, other_store)]
    both = join(parts)
    assert len(both) == len(parts[0]) + len(parts[1])
    assert both.labels == () and not both.has_label.any()
    at = len(parts[0])
    for part, rows in ((parts[0], np.arange(5)), (parts[1], np.arange(at, at + 5))):
        own = rows - (at if part is parts[1] else 0)
        assert np.array_equal(both.windows(rows, lead=2), part.windows(own, lead=2))
        names = [both.patient_ids[p] for p in both.patient[rows]]
        assert names == [f"{part.dataset}:{part.patient_ids[p]}" for p in part.patient[own]]
        assert np.array_equal(both.split[rows], part.split[own])
        assert np.array_equal(both.age[both.recording[rows]], part.age[part.recording[own]],
                              equal_nan=True)  # fmt: skip
    twice = join([parts[0], parts[0]])
    assert twice.patient_ids == tuple(parts[0].keyed(parts[0].patient_ids))


def test_joined_signals_beyond_the_given_memory_are_mapped_from_a_nameless_file(
    small_store: Store, other_store: Store, tmp_path: Path
) -> None:
    parts = [make_frames(store) for store in (small_store, other_store)]
    size = sum(part.signals.nbytes for part in parts)
    held, mapped = (join(parts, beside=tmp_path, memory=most) for most in (size, size - 1))
    assert not isinstance(held.signals, np.memmap)
    assert isinstance(mapped.signals, np.memmap)
    assert not list(tmp_path.iterdir())
    for field in fields(Frames):
        ours, theirs = getattr(mapped, field.name), getattr(held, field.name)
        assert np.array_equal(ours, theirs, equal_nan=field.name == "age"), field.name


def test_training_goes_on_from_a_checkpoint_and_remembers_whom_that_had_seen(
    small_frames: Frames, other_store: Store, tmp_path: Path
) -> None:
    frames = make_frames(other_store, spec=small_frames.spec)
    plan = Plan("cmsc", seeds=(0, 1), embedding_dim=8, settings=QUICK)
    first = pretrain_frames(small_frames, plan, tmp_path / "first")
    saved = [load_checkpoint(tmp_path / "first" / f"seed-{seed}.safetensors") for seed in (0, 1)]
    still = replace(plan, settings=Settings(epochs=1, batch_size=32, lr=1e-12))
    second = pretrain_frames(frames, still, tmp_path / "second", init=saved)
    for before, after in zip(first, second, strict=True):
        for name, tensor in before.weights.items():
            assert torch.allclose(tensor, after.weights[name], atol=1e-9), name
        assert np.isin(before.recordings, after.recordings).all()
        assert len(after.recordings) > len(before.recordings)
        assert [one.dataset for one in after.card.trained_on] == ["synthetic", "other"]
        assert after.card.dataset == "synthetic+other"
        assert after.card.training["init"]["seed"] == after.card.seed
    check_no_leak(second[0], small_frames)
    for seen in (small_frames, frames):
        with pytest.raises(LeakError):
            check_no_leak(second[0], seen.with_split_seed(1))
    wider = replace(plan, embedding_dim=16)
    with pytest.raises(SettingError, match="E = 8, not 'cnn' of 400 samples and E = 16"):
        pretrain_frames(frames, wider, tmp_path / "third", init=saved)
    with pytest.raises(SettingError, match="no checkpoint of seed 2"):
        pretrain_frames(frames, replace(plan, seeds=(2,)), tmp_path / "fourth", init=saved)


def test_other_channels_can_stand_for_leads(tmp_path: Path) -> None:
    store = prepare(FakeDataset(lead_names=("II", "PLETH")), out=tmp_path / "store")
    (checkpoint,) = clocs.pretrain(
        store,
        method="cmlc",
        out=tmp_path / "run",
        leads=["II", "PLETH"],
        embedding_dim=8,
        settings=QUICK,
    )
    assert checkpoint.card.leads == ("II", "PLETH")


def test_bfloat16_activations_train_to_nearly_the_same_encoder(
    small_frames: Frames, tmp_path: Path
) -> None:
    plan = Plan("cmsc", embedding_dim=8, settings=Settings(epochs=3, batch_size=32, lr=1e-3))
    (exact,) = pretrain_frames(small_frames, plan, tmp_path / "exact")
    (half,) = pretrain_frames(small_frames, replace(plan, precision="bfloat16"), tmp_path / "half")
    assert half.card.training["precision"] == "bfloat16"
    assert all(tensor.dtype == torch.float32 for tensor in half.weights.values())
    losses = [c.card.metrics["validation_loss"] for c in (exact, half)]
    assert losses[0] != losses[1] and losses[0] == pytest.approx(losses[1], rel=0.02)


def test_the_card_names_the_optimizer_and_another_one_is_another_training(
    small_frames: Frames, tmp_path: Path
) -> None:
    adam = Plan("cmsc", embedding_dim=8, settings=QUICK)
    how = {"optimizer": "adamw", "schedule": "cosine", "warm_up": 0.1, "average": 0.9}
    adamw = replace(adam, settings=Settings(**QUICK.to_dict() | how))
    (plain,) = pretrain_frames(small_frames, adam, tmp_path / "adam")
    (changed,) = pretrain_frames(small_frames, adamw, tmp_path / "adamw")
    assert (how | {"weight_decay": 0.01}).items() <= changed.card.training.items()
    assert not {*how, "weight_decay"} & plain.card.training.keys()
    assert pretrain_frames(small_frames, adamw, tmp_path / "adamw", resume=True)
    with pytest.raises(CheckpointError, match=r"with other settings \(settings\)"):
        pretrain_frames(small_frames, adam, tmp_path / "adamw", resume=True)
    with pytest.raises(CheckpointError, match=r"with other settings \(settings\)"):
        pretrain_frames(small_frames, adamw, tmp_path / "adam", resume=True)
