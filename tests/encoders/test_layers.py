"""Every encoder in torch's own layers: the same numbers, gradients and statistics."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pytest
import torch
from torch import Tensor, nn

from clocs.encoders.base import Encoder, Weights
from clocs.encoders.make import ENCODERS, is_multilead, make_encoder
from clocs.errors import SettingError
from clocs.kernels import keyed_random
from tiny_leads import tiny_leads

KEYS = keyed_random.member_keys([5])
LEADS = ("II", "V2", "aVL")
ENCODER_NAMES = [*ENCODERS, "tiny-leads", "plain"]
every = pytest.mark.parametrize("name", ENCODER_NAMES)


class Plain(nn.Module):
    def __init__(self, *, embedding_dim: int, samples: int, dropout: float) -> None:
        super().__init__()
        self.conv = nn.Conv1d(1, embedding_dim, 15, stride=8)
        self.norm = nn.BatchNorm1d(embedding_dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.dropout(self.norm(self.conv(x)).relu()).mean(dim=-1)
        return z


@pytest.fixture(autouse=True)
def modules_of_a_user(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(ENCODERS, "plain", Plain)
    with tiny_leads():
        yield


Tensors = tuple[tuple[str, Tensor], ...]


@cache
def start(name: str, samples: int) -> tuple[Tensors, Tensors]:
    """In double precision; batch norm is away from 1 and 0, where a mistake could hide."""
    encoder = encoder_of(name, samples)
    kinds = []
    for tensors in (encoder.parameters(KEYS), encoder.buffers(1)):
        wide = {k: v.double() for k, v in tensors.items()}
        for key in wide:
            if "norm" in key:
                wide[key] += torch.linspace(-0.4, 0.4, wide[key].shape[1])
        kinds.append(tuple(wide.items()))
    return kinds[0], kinds[1]


def encoder_of(name: str, samples: int, dropout: float = 0.0) -> Encoder:
    leads = LEADS if is_multilead(name) else ()
    return make_encoder(name, embedding_dim=74, samples=samples, dropout=dropout, leads=leads)


def made(name: str, dropout: float = 0.0, samples: int = 401) -> tuple[Encoder, Weights, Weights]:
    weights, buffers = ({k: v.clone() for k, v in tensors} for tensors in start(name, samples))
    return encoder_of(name, samples, dropout), weights, buffers


def some_frames(encoder: Encoder) -> tuple[Tensor, Tensor]:
    """The same frames for a module, (n, leads, samples), and for a fleet of one."""
    x = torch.randn(4, len(encoder.leads) or 1, encoder.samples, dtype=torch.float64)
    if encoder.leads:
        x[1, 0] = x[-1, 1:] = torch.nan
        return x, x[None]
    return x, x.transpose(0, 1)


@every
@pytest.mark.parametrize("samples", [401, 1201])
def test_layers_give_what_the_encoder_gives(name: str, samples: int) -> None:
    encoder, weights, buffers = made(name, samples=samples)
    module = encoder.to_module(weights, buffers).double().eval()
    x, of_fleet = some_frames(encoder)
    with torch.no_grad():
        expected = encoder.encode(weights, buffers, of_fleet)[0]
        assert torch.allclose(module(x), expected, atol=1e-10)


@every
def test_layers_train_as_the_encoder_does(name: str) -> None:
    encoder, weights, buffers = made(name)
    module = encoder.to_module(weights, buffers).double().train()
    x, of_fleet = some_frames(encoder)
    z, after = encoder.encode_training(weights, buffers, of_fleet, KEYS)
    assert torch.allclose(module(x), z[0], atol=1e-9)
    trained = {k: v for k, v in module.state_dict().items() if "running_" in k}
    assert len(trained) == len(after) > 0
    lengths = [sorted(float(t.norm()) for t in some.values()) for some in (trained, after)]
    assert lengths[0] == pytest.approx(lengths[1], abs=1e-9)


@every
@pytest.mark.parametrize("training", [True, False])
def test_gradients_of_weights_equal_those_of_the_encoder(name: str, training: bool) -> None:
    encoder, weights, buffers = made(name)
    module = encoder.to_module(weights, buffers).double().train(training)
    x, of_fleet = some_frames(encoder)
    x.requires_grad_()
    toward = torch.randn(4, 74, dtype=torch.float64)
    weights = {name: tensor.requires_grad_() for name, tensor in weights.items()}
    if training:
        z, _ = encoder.encode_training(weights, buffers, of_fleet.detach(), KEYS)
    else:
        z = encoder.encode(weights, buffers, of_fleet.detach())
    theirs = torch.autograd.grad((z[0] * toward).sum(), [*weights.values()])
    (module(x) * toward).sum().backward()
    ours = [p.grad for p in module.parameters()]
    assert all(gradient is not None for gradient in ours)
    lengths = [sorted(float(g.norm()) for g in some if g is not None) for some in (ours, theirs)]
    assert lengths[0] == pytest.approx(lengths[1], abs=1e-8)
    assert x.grad is not None and bool(x.grad.isfinite().all())
    assert float(x.grad.abs().sum()) > 0


@every
def test_layers_drop_out_in_training_alone(name: str) -> None:
    if name == "tiny-leads":  # which has no dropout
        return
    encoder, weights, buffers = made(name, dropout=0.5)
    module = encoder.to_module(weights, buffers).double()
    x, _ = some_frames(encoder)
    with torch.no_grad():
        assert torch.equal(module.eval()(x), module(x))
        assert not torch.equal(module.train()(x), module(x))


@every
def test_a_state_loads_into_layers_of_other_weights(name: str) -> None:
    encoder, weights, buffers = made(name)
    module = encoder.to_module(weights, buffers).eval()
    other = encoder.to_module({k: v + 0.01 for k, v in weights.items()}, buffers).eval()
    x, _ = some_frames(encoder)
    assert not torch.equal(module(x), other(x))
    other.load_state_dict(module.state_dict())
    assert torch.equal(module(x), other(x))


def test_the_modules_own_tensors_are_copies() -> None:
    encoder, weights, buffers = made("cnn")
    module = encoder.to_module(weights, buffers)
    before = {name: tensor.clone() for name, tensor in weights.items()}
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
    assert all(torch.equal(weights[name], before[name]) for name in weights)


def test_an_encoder_without_layers_says_so() -> None:
    encoder, weights, buffers = made("cnn")
    with pytest.raises(SettingError, match="'cnn' cannot be made of torch's own layers"):
        Encoder.to_module(encoder, weights, buffers)
