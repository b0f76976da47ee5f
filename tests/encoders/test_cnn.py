from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from clocs.encoders.cnn import CNN, conv_block
from clocs.encoders.make import make_encoder
from clocs.errors import SettingError
from clocs.kernels import keyed_random
from plain_block import plain_block


def as_torch_modules(encoder: CNN, weights: dict[str, Tensor]) -> nn.Sequential:
    """The paper's table of layers, in torch's own modules, with one member's weights."""
    layers: list[nn.Module] = []
    for i, (c_in, c_out) in enumerate(((1, 4), (4, 16), (16, 32)), start=1):
        conv, norm = nn.Conv1d(c_in, c_out, 7, stride=3, bias=False), nn.BatchNorm1d(c_out)
        kernel = weights[f"conv{i}.weight"][0].view(7, c_in, c_out)
        conv.weight.data = kernel.permute(2, 1, 0).clone()
        norm.weight.data = weights[f"norm{i}.weight"][0].clone()
        norm.bias.data = weights[f"norm{i}.bias"][0].clone()
        layers += [conv, norm, nn.ReLU(), nn.MaxPool1d(2)]
    linear = nn.Linear(32 * encoder.pooled_length, encoder.embedding_dim)
    flat = weights["linear.weight"][0].view(encoder.pooled_length, 32, -1)
    linear.weight.data = flat.permute(2, 1, 0).reshape(encoder.embedding_dim, -1).clone()
    linear.bias.data = weights["linear.bias"][0].clone()
    return nn.Sequential(*layers, nn.Flatten(), linear, nn.ReLU()).double()


@given(
    length=st.integers(10, 60),
    c_in=st.integers(1, 4),
    c_out=st.integers(1, 5),
    members=st.integers(1, 3),
    n=st.integers(1, 4),
    seed=st.integers(0, 1000),
)
@settings(max_examples=40, deadline=None)
def test_the_fused_block_and_its_gradient_equal_the_plain_one(
    length: int, c_in: int, c_out: int, members: int, n: int, seed: int
) -> None:
    torch.manual_seed(seed)
    inputs = [
        torch.randn(shape, dtype=torch.float64, requires_grad=True)
        for shape in (
            (members, n, length, c_in),
            (members, 7 * c_in, c_out),
            (members, c_out),
            (members, c_out),
        )
    ]
    keys = keyed_random.member_keys(list(range(members)))
    h, weight, gamma, beta = inputs
    fast = conv_block(h, weight, gamma, beta, keys, 0.0)
    slow = plain_block(h, weight, gamma, beta)
    steps = n * ((length - 7) // 3 + 1)
    for a, b, factor in zip(fast, slow, (1, 1, steps / max(steps - 1, 1)), strict=True):
        assert torch.allclose(a, b * factor, atol=1e-9)
    if fast[0].numel() and steps > 1:
        weight = torch.randn_like(fast[0])
        by_fast = torch.autograd.grad((fast[0] * weight).sum(), inputs)
        by_slow = torch.autograd.grad((slow[0] * weight).sum(), inputs)
        for a, b in zip(by_fast, by_slow, strict=True):
            assert torch.allclose(a, b, atol=1e-7, rtol=1e-6)


def test_it_is_the_papers_network() -> None:
    encoder = CNN(embedding_dim=128, samples=2500, dropout=0.0)
    keys = keyed_random.member_keys([5])
    weights = {k: v.double() for k, v in encoder.parameters(keys).items()}
    buffers = {k: v.double() for k, v in encoder.buffers(1).items()}
    modules = as_torch_modules(encoder, weights)
    x = torch.rand(6, 2500, dtype=torch.float64)
    z, after = encoder.encode_training(weights, buffers, x[None], keys)
    assert torch.allclose(z[0], modules(x[:, None]), atol=1e-10)
    last = modules[9].state_dict()
    assert torch.allclose(after["norm3.mean"][0], last["running_mean"], atol=1e-10)
    assert torch.allclose(after["norm3.variance"][0], last["running_var"], atol=1e-10)
    modules.eval()
    evaluated = encoder.encode(weights, after, x[None])[0]
    assert torch.allclose(evaluated, modules(x[:, None]), atol=1e-10)


def test_it_has_45_thousand_weights() -> None:
    weights = CNN().parameters(keyed_random.member_keys([0]))
    assert weights["linear.weight"].shape == (1, 320, 128)
    assert sum(tensor.numel() for tensor in weights.values()) == 45_252


def test_members_are_initialized_by_their_own_seed_alone() -> None:
    both = CNN().parameters(keyed_random.member_keys([3, 8]))
    alone = CNN().parameters(keyed_random.member_keys([8]))
    for name, tensor in alone.items():
        assert torch.equal(both[name][1:], tensor)
    assert not torch.equal(both["conv1.weight"][0], both["conv1.weight"][1])


@given(samples=st.integers(388, 6000))
@settings(max_examples=10, deadline=None)
def test_any_frame_length_works(samples: int) -> None:
    encoder = CNN(embedding_dim=3, samples=samples)
    keys = keyed_random.member_keys([0, 1])
    z = encoder.encode(encoder.parameters(keys), encoder.buffers(2), torch.rand(2, 2, samples))
    assert z.shape == (2, 2, 3)


def test_an_unknown_encoder_is_named() -> None:
    with pytest.raises(SettingError, match="no encoder 'vgg'"):
        make_encoder("vgg", embedding_dim=8, samples=2500)


def test_activations_in_bfloat16_change_embeddings_and_gradients_only_by_rounding() -> None:
    torch.manual_seed(0)
    encoder = CNN(embedding_dim=16, samples=500, dropout=0.1)
    keys = keyed_random.member_keys([1, 2])
    weights = {k: v.requires_grad_() for k, v in encoder.parameters(keys).items()}
    buffers = encoder.buffers(2)
    x = torch.rand(2, 8, 500)
    results = []
    for signal in (x, x.bfloat16()):
        z, after = encoder.encode_training(weights, buffers, signal, keys)
        assert z.dtype == torch.float32
        assert all(buffer.dtype == torch.float32 for buffer in after.values())
        results.append((z, *torch.autograd.grad(z.square().sum(), list(weights.values()))))
    for exact, rounded in zip(*results, strict=True):
        assert torch.cosine_similarity(exact.flatten(), rounded.flatten(), dim=0) > 0.98
    assert not torch.equal(results[0][0], results[1][0])


def test_a_frame_too_short_says_how_long_it_must_be() -> None:
    with pytest.raises(SettingError, match=r"4 samples is too short .*'cnn'") as caught:
        make_encoder("cnn", embedding_dim=8, samples=4)
    shortest = int(str(caught.value).rpartition(" ")[2])
    assert make_encoder("cnn", embedding_dim=8, samples=shortest).samples == shortest
    with pytest.raises(SettingError, match=f"at least {shortest}"):
        make_encoder("cnn", embedding_dim=8, samples=shortest - 1)


def test_without_momentum_the_statistics_stay_and_the_embeddings_are_the_same() -> None:
    encoder = CNN(samples=400, embedding_dim=8)
    keys = keyed_random.member_keys([0, 1])
    weights, before = encoder.parameters(keys), encoder.buffers(2)
    x = torch.randn(2, 5, 400)
    z, after = encoder.encode_training(weights, before, x, keys, momentum=0.0)
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], before[name]) for name in before)
    assert torch.equal(z, encoder.encode_training(weights, before, x, keys)[0])
