"""Any torch module as an encoder: it is the module itself, member by member."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from clocs.encoders.make import ENCODERS, make_encoder
from clocs.errors import SettingError
from clocs.frames.frames import Frames
from clocs.kernels import keyed_random
from clocs.pretraining.plan import Plan
from clocs.pretraining.pretrain import pretrain_frames
from clocs.training import Settings
from evaluation_parts import evaluate_frames

KEYS = keyed_random.member_keys([0, 1])


class Net(nn.Module):
    def __init__(self, *, embedding_dim: int, samples: int, dropout: float) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(1, 4, kernel_size=7, stride=4)
        self.norm = nn.BatchNorm1d(4)
        self.frozen = nn.Parameter(torch.ones(4, 1), requires_grad=False)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(4, embedding_dim)  # as the classifier on top of it is called

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.convolution(x)).relu() * self.frozen
        z: Tensor = self.head(self.dropout(h).mean(dim=2))
        return z


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENCODERS, "net", Net)


def alone(key: int, **settings: Any) -> Net:
    with torch.random.fork_rng():
        torch.manual_seed(key)
        return Net(**settings)


def test_a_member_is_the_module_itself_in_both_modes() -> None:
    encoder = make_encoder("net", embedding_dim=5, samples=90, dropout=0.0)
    weights, buffers = encoder.parameters(KEYS), encoder.buffers(2)
    x = torch.rand(2, 6, 90)
    z, after = encoder.encode_training(weights, buffers, x, KEYS, momentum=0.3)
    for member, key in enumerate(KEYS.tolist()):
        module = alone(key, embedding_dim=5, samples=90, dropout=0.0)
        module.norm.momentum = 0.3
        assert torch.equal(z[member], module.train()(x[member][:, None]))
        assert torch.equal(after["module.norm.running_var"][member], module.norm.running_var)  # type: ignore[arg-type]
        evaluated = encoder.encode(weights, after, x)[member]
        assert torch.equal(evaluated, module.eval()(x[member][:, None]))
    assert not buffers["module.norm.running_mean"].any()  # not changed in place


def test_gradients_are_those_of_the_module() -> None:
    encoder = make_encoder("net", embedding_dim=5, samples=90, dropout=0.0)
    weights = {k: v.requires_grad_() for k, v in encoder.parameters(KEYS[:1]).items()}
    x = torch.rand(1, 6, 90)
    z, _ = encoder.encode_training(weights, encoder.buffers(1), x, KEYS[:1])
    z.square().sum().backward()
    module = alone(int(KEYS[0]), embedding_dim=5, samples=90, dropout=0.0)
    module.train()(x[0][:, None]).square().sum().backward()
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            assert torch.equal(weights[f"module.{name}"].grad[0], parameter.grad)  # type: ignore[arg-type, index]


def test_torchs_own_generator_is_left_as_it_was() -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    encoder = make_encoder("net", embedding_dim=5, samples=90, dropout=0.5)
    weights, buffers = encoder.parameters(KEYS), encoder.buffers(2)
    encoder.encode_training(weights, buffers, torch.rand(2, 6, 90), KEYS)
    torch.manual_seed(3)
    assert torch.equal(before, torch.get_rng_state())


def test_frozen_parameters_stay_and_a_layer_called_head_is_learned(
    small_frames: Frames, tmp_path: Path
) -> None:
    settings = Settings(epochs=1, batch_size=32, lr=1e-2)
    for method in ("supervised", "byol"):
        plan = Plan(method, encoder="net", embedding_dim=4, settings=settings)
        (made,) = pretrain_frames(small_frames, plan, tmp_path / method)
        assert torch.equal(made.buffers["module.frozen"], torch.ones(1, 4, 1))
        before = made.encoder.parameters(keyed_random.member_keys([0]))["module.head.weight"]
        assert before.shape == made.weights["module.head.weight"].shape
        assert not torch.equal(before, made.weights["module.head.weight"])


def test_a_module_of_another_output_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENCODERS, "net", lambda **_: nn.Flatten())
    with pytest.raises(SettingError, match=r"\(2, 1, 90\) into \(2, 90\), not \(2, 5\)"):
        make_encoder("net", embedding_dim=5, samples=90)


def test_a_module_that_needs_data_to_be_made_works(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stubborn(Net):
        def __init__(self, **settings: Any) -> None:
            super().__init__(**settings)
            self.factor = float(torch.ones(3).sum().item())

    monkeypatch.setitem(ENCODERS, "net", Stubborn)
    encoder = make_encoder("net", embedding_dim=5, samples=90)
    x = torch.rand(2, 3, 90)
    assert encoder.encode(encoder.parameters(KEYS), encoder.buffers(2), x).shape == (2, 3, 5)


class Plain(nn.Module):
    """Nothing but weights: no batch norm, nothing frozen."""

    def __init__(self, *, embedding_dim: int, samples: int, dropout: float) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(1, 4, kernel_size=7, stride=4)
        self.linear = nn.Linear(4, embedding_dim)

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.linear(self.convolution(x).relu().mean(dim=2))
        return z


def test_a_module_without_buffers_is_trained_and_fine_tuned(
    small_frames: Frames, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ENCODERS, "net", Plain)
    settings = Settings(epochs=1, batch_size=32, average=0.5)
    plan = Plan("cmsc", (0, 1), encoder="net", embedding_dim=4, settings=settings)
    made = pretrain_frames(small_frames, plan, tmp_path / "run")
    found = evaluate_frames(
        made, small_frames, protocol="finetune", settings=settings, resamples=0, check_leaks=False
    )
    assert made[0].buffers == {} and 0 <= found.auc_mean <= 1
