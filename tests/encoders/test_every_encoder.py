"""What every encoder must do: those of ENCODERS, and a plain torch module put there by a user."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import clocs
from clocs.encoders.base import Encoder, Weights
from clocs.encoders.make import ENCODERS, is_multilead, make_encoder
from clocs.errors import CheckpointError, SettingError
from clocs.frames.frames import Frames
from clocs.frames.make import make_frames
from clocs.kernels import keyed_random
from clocs.pretraining.plan import Plan
from clocs.pretraining.pretrain import pretrain_frames
from clocs.pretraining.task import PretrainingTask
from clocs.recording import FrameSpec
from clocs.store.store import Store
from clocs.training import Settings
from clocs.training.card import read_card
from clocs.training.checkpoint import Checkpoint, load_checkpoint
from clocs.training.loop import Epoch, Trained, fit
from tiny_leads import fewer_stages

CPU = torch.device("cpu")
HERE = Path(__file__).parent

NAMES = [*ENCODERS, "tiny"]
LEADS = ("II", "V2", "aVL")  # that an encoder of many leads sees here

every = pytest.mark.parametrize("name", NAMES)
every_of_one_lead = pytest.mark.parametrize("name", [n for n in NAMES if not is_multilead(n)])


class Tiny(torch.nn.Module):
    """As docs/extending.md shows it."""

    def __init__(self, *, embedding_dim: int, samples: int, dropout: float) -> None:
        super().__init__()
        self.convolution = torch.nn.Conv1d(1, 8, kernel_size=15, stride=8)
        self.norm = torch.nn.BatchNorm1d(8)
        self.dropout = torch.nn.Dropout(dropout)
        self.linear = torch.nn.Linear(8 * ((samples - 15) // 8 + 1), embedding_dim)

    def forward(self, x: Tensor) -> Tensor:
        """x: (batch, leads, samples) -> (batch, embedding_dim)."""
        h = self.dropout(self.norm(self.convolution(x)).relu())
        z: Tensor = self.linear(h.flatten(1)).relu()
        return z


@pytest.fixture(autouse=True)
def a_module_of_a_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENCODERS, "tiny", Tiny)


@pytest.fixture(scope="module")
def frames(small_store: Store) -> Frames:
    """Coarse frames: what is claimed here does not depend on their length."""
    return make_frames(small_store, spec=FrameSpec(5.0, 400))


@pytest.fixture(scope="module")
def few(few_store: Store) -> Frames:
    """Of few patients and two leads, for trainings that are compared bit by bit."""
    frames = make_frames(few_store, spec=FrameSpec(5.0, 400))
    return frames.with_leads(frames.leads[:2])


@pytest.fixture(scope="module")
def coarser(small_store: Store) -> Frames:
    """For encoders of many leads, which are large."""
    return make_frames(small_store, spec=FrameSpec(5.0, 80))


def make(name: str, **settings: Any) -> Encoder:
    return make_encoder(name, **settings, leads=LEADS if is_multilead(name) else ())


def random_frames(encoder: Encoder, members: int, n: int, **kind: Any) -> Tensor:
    """(members, n, samples), or (members, n, leads, samples) for an encoder of many leads."""
    axes = (len(encoder.leads),) if encoder.leads else ()
    return torch.rand(members, n, *axes, encoder.samples, **kind)


def start(encoder: Encoder, seeds: list[int]) -> tuple[Weights, Weights]:
    return encoder.parameters(keyed_random.member_keys(seeds)), encoder.buffers(len(seeds))


@every
def test_an_encoder_of_this_package_has_a_test_of_its_own(name: str) -> None:
    assert name == "tiny" or (HERE / f"test_{name.replace('-', '_')}.py").is_file()


@every
def test_it_is_made_with_the_given_arguments(name: str) -> None:
    encoder = make(name, embedding_dim=70, samples=600, dropout=0.2)
    assert (encoder.name, encoder.embedding_dim, encoder.samples) == (name, 70, 600)
    assert encoder == make(name, embedding_dim=70, samples=600, dropout=0.2)
    with pytest.raises(SettingError, match="`embedding_dim` must be at least 1, not 0"):
        make(name, embedding_dim=0, samples=600)


@pytest.mark.parametrize("samples", [400, 601, 2500])
@every
def test_only_a_branch_gives_negative_numbers(name: str, samples: int) -> None:
    encoder = make(name, embedding_dim=74, samples=samples)
    weights, buffers = start(encoder, [0, 1])
    x = random_frames(encoder, 2, 3)
    z, updated = encoder.encode_training(weights, buffers, x, keyed_random.member_keys([0, 1]))
    for embedding in (z, encoder.encode(weights, buffers, x)):
        assert embedding.shape == (2, 3, 74)
        assert (embedding[..., : 74 - getattr(encoder, "branch", 0)] >= 0).all()
        assert (embedding > 0).any()
    assert updated.keys() == buffers.keys()
    assert all(updated[k].shape == buffers[k].shape for k in buffers)
    assert weights.keys().isdisjoint(buffers)


@every
def test_a_frame_too_short_is_refused(name: str) -> None:
    with pytest.raises(SettingError, match=rf"'{name}'.* 4 samples|4 samples .*'{name}'"):
        make(name, embedding_dim=72, samples=4)


@every
def test_members_are_initialized_by_their_own_seed_alone(name: str) -> None:
    encoder = make(name, embedding_dim=72, samples=400)
    both, alone = start(encoder, [3, 8])[0], start(encoder, [8])[0]
    for tensor in alone:
        assert torch.equal(both[tensor][1:], alone[tensor])
    drawn = [both[k] for k in both if k.endswith(("linear.weight", "conv.weight"))]
    assert drawn
    assert not any(torch.equal(weight[0], weight[1]) for weight in drawn)


@every
def test_evaluation_of_a_frame_does_not_depend_on_the_others(name: str) -> None:
    encoder = make(name, embedding_dim=72, samples=400)
    weights, buffers = ({k: v.double() for k, v in t.items()} for t in start(encoder, [0]))
    x = random_frames(encoder, 1, 5, dtype=torch.float64)
    together = encoder.encode(weights, buffers, x)
    alone = encoder.encode(weights, buffers, x[:, 2:3])
    assert torch.allclose(together[:, 2:3], alone, atol=1e-12)


@every
def test_dropout_is_a_function_of_its_keys(name: str) -> None:
    encoder = make(name, embedding_dim=72, samples=400, dropout=0.4)
    weights, buffers = start(encoder, [0])
    x, keys = random_frames(encoder, 1, 4), keyed_random.member_keys([0])
    first, again, other = (
        encoder.encode_training(weights, buffers, x, key)[0] for key in (keys, keys, keys + 1)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@every
def test_activations_may_be_less_precise_than_weights(name: str) -> None:
    encoder = make(name, embedding_dim=72, samples=400)
    weights, buffers = start(encoder, [0])
    x, keys = random_frames(encoder, 1, 16), keyed_random.member_keys([0])
    z, after = encoder.encode_training(weights, buffers, x, keys)
    rough, rougher = encoder.encode_training(weights, buffers, x.bfloat16(), keys)
    assert rough.dtype == torch.float32
    assert all(tensor.dtype == torch.float32 for tensor in rougher.values())
    assert not torch.equal(rough, z)
    assert torch.allclose(rough, z, atol=0.05, rtol=0.05)
    evaluated = encoder.encode(weights, after, x.bfloat16())
    assert torch.allclose(evaluated, encoder.encode(weights, after, x), atol=0.05, rtol=0.05)


@every
def test_statistics_move_by_their_momentum(name: str) -> None:
    encoder = make(name, embedding_dim=72, samples=400, dropout=0.0)
    weights, buffers = start(encoder, [0])
    x, keys = random_frames(encoder, 1, 4), keyed_random.member_keys([0])
    whole, tenth, none = (
        encoder.encode_training(weights, buffers, x, keys, momentum=m)[1] for m in (1.0, 0.1, 0.0)
    )
    for statistic, before in buffers.items():
        assert torch.equal(none[statistic], before)
        expected = 0.9 * before + 0.1 * whole[statistic]
        assert torch.allclose(tenth[statistic], expected, atol=1e-6)


@pytest.mark.parametrize("method", ["cmsc", "byol"])
@every_of_one_lead
def test_a_fleet_equals_its_singles_in_float64(name: str, method: str, few: Frames) -> None:
    def trained(seeds: list[int]) -> Trained:
        settings = Settings(epochs=1, batch_size=8, lr=1e-3)
        plan = Plan(method, tuple(seeds), encoder=name, embedding_dim=72, settings=settings)
        task = PretrainingTask(few, plan, device=CPU, dtype=torch.float64)
        return fit(task, seeds, settings, device=CPU, dtype=torch.float64)

    fleet = trained([4, 9])
    for member, seed in enumerate([4, 9]):
        alone = trained([seed])
        assert alone.status == ["all epochs"]
        for tensor, value in (alone.weights | alone.buffers).items():
            together = (fleet.weights | fleet.buffers)[tensor][member]
            assert torch.allclose(value[0], together, atol=1e-9), tensor


@every
def test_random_bn_differs_from_random_in_its_statistics_alone(
    name: str, frames: Frames, tmp_path: Path
) -> None:
    plans = [Plan(method, encoder=name, embedding_dim=68) for method in ("random", "random-bn")]
    plain, seen = (pretrain_frames(frames, plan, tmp_path / plan.method)[0] for plan in plans)
    assert all(torch.equal(plain.weights[k], seen.weights[k]) for k in plain.weights)
    assert all(not torch.equal(plain.buffers[k], seen.buffers[k]) for k in plain.buffers)


@every
def test_weights_of_another_encoder_are_refused(name: str, frames: Frames, tmp_path: Path) -> None:
    other = "resnet" if name == "cnn" else "cnn"
    pretrain_frames(frames, Plan("random", encoder=name, embedding_dim=68), tmp_path / "run")
    card = read_card(tmp_path / "run" / "seed-0.json")
    card = replace(card, encoder=card.encoder | {"name": other})
    (tmp_path / "run" / "seed-0.json").write_bytes(card.json())
    refused = "does not hold the weights|cannot be the encoder|no known encoder"
    with pytest.raises(CheckpointError, match=refused):
        load_checkpoint(tmp_path / "run")


@pytest.fixture(scope="module")
def some_store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """As few patients as have several labels among those for the test."""
    out = tmp_path_factory.mktemp("some") / "store"
    return clocs.prepare("synthetic", out=out, patients=20, seed=3)


@pytest.fixture
def small_networks() -> Iterator[None]:
    """What is claimed of a whole run does not depend on how deep networks of many leads are."""
    with fewer_stages(32):
        yield


@pytest.mark.usefixtures("small_networks")
@every
def test_from_a_store_to_a_search_through_the_public_api(
    name: str, some_store: Store, tmp_path: Path
) -> None:
    class StopError(Exception):
        pass

    def stop(epoch: Epoch) -> None:
        if epoch.number == 2:
            raise StopError

    def pretrain(out: str, **more: Any) -> Checkpoint:
        settings = Settings(epochs=2, batch_size=32, lr=1e-3)
        more |= {"seconds": 5, "rate": 16 if is_multilead(name) else 80}  # few samples
        return clocs.pretrain(
            some_store, method="cmsc", out=tmp_path / out, encoder=name, embedding_dim=72,
            settings=settings, **more,
        )[0]  # fmt: skip

    whole = pretrain("whole")
    with pytest.raises(StopError):
        pretrain("run", save_every=0, on_epoch=stop)
    resumed = pretrain("run", resume=True)
    assert all(torch.equal(whole.weights[k], resumed.weights[k]) for k in whole.weights)
    assert all(torch.equal(whole.buffers[k], resumed.buffers[k]) for k in whole.buffers)
    loaded = load_checkpoint(tmp_path / "run")
    assert loaded.fingerprint == whole.fingerprint
    assert loaded.card.encoder["name"] == loaded.encoder.name == name
    for protocol in ("linear", "finetune"):
        scores = clocs.evaluate(
            loaded, some_store, protocol=protocol, settings=Settings(epochs=1), resamples=10
        )
        assert all(0 <= auc <= 1 for auc in scores.auc)
    vectors = clocs.embed(loaded, some_store)
    assert np.isfinite(vectors.vectors).all()


@every
def test_a_checkpoint_of_an_encoder_that_is_not_known_says_so(
    name: str, frames: Frames, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretrain_frames(frames, Plan("random", encoder=name, embedding_dim=68), tmp_path / "run")
    monkeypatch.delitem(ENCODERS, name)
    with pytest.raises(CheckpointError, match=f"encoder '{name}', which is not known here"):
        load_checkpoint(tmp_path / "run")
