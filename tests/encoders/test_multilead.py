"""What is particular to the network of many leads; what every encoder must do is tested beside."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from clocs.encoders import residual
from clocs.encoders.make import is_multilead, make_encoder
from clocs.encoders.many_leads import MultiLead
from clocs.encoders.residual import _pairs_averaged
from clocs.errors import SettingError
from clocs.kernels import keyed_random, native

LEADS = ("I", "II", "III", "aVR", "aVL", "aVF", "V1", "V2", "V3", "V4", "V5", "V6")
KEYS = keyed_random.member_keys([5])
Tensors = dict[str, Tensor]
Ours = tuple[MultiLead, Tensors, Tensors]


class Residual(nn.Module):
    def __init__(self, c_in: int, c_out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(c_in, c_out, 5, stride, padding=2, bias=False)
        self.norm1 = nn.BatchNorm1d(c_out)
        self.conv2 = nn.Conv1d(c_out, c_out, 5, padding=2, bias=False)
        self.norm2 = nn.BatchNorm1d(c_out)
        self.shortcut = nn.Sequential()
        if stride > 1 or c_in != c_out:
            pool = nn.AvgPool1d(stride, ceil_mode=True)
            conv = nn.Conv1d(c_in, c_out, 1, bias=False)
            self.shortcut = nn.Sequential(pool, conv, nn.BatchNorm1d(c_out))

    def forward(self, h: Tensor) -> Tensor:
        inner = self.norm1(self.conv1(h)).relu()
        return torch.relu(self.norm2(self.conv2(inner)) + self.shortcut(h))


class Twin(nn.Module):
    """The same network in torch's own modules."""

    def __init__(self, leads: int, dim: int, kernel: int, stride: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(leads, 64, kernel, stride, padding=kernel // 2, bias=False)
        self.there = nn.Linear(leads, 64, bias=False)
        self.norm = nn.BatchNorm1d(64)
        widths = (64, 64, 64, 128, 128, 256, 256, dim, dim)
        self.blocks = nn.Sequential(
            *(
                Residual(widths[i], widths[i + 1], 2 if i in (2, 4, 6) else 1)
                for i in range(len(widths) - 1)
            )
        )
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        there = (~x.isnan().any(dim=2)).to(x.dtype)
        factor = (x.shape[1] / there.sum(dim=1)).sqrt()
        h = self.conv(x.nan_to_num()) * factor[:, None, None] + self.there(there)[:, :, None]
        h = self.blocks(self.norm(h).relu())
        return torch.cat([h.mean(dim=2), h.max(dim=2).values], dim=1)

    def pairs(self) -> dict[str, tuple[nn.Module, nn.Module]]:
        """Convolution and batch norm by our names."""
        found: dict[str, tuple[nn.Module, nn.Module]] = {"stem": (self.conv, self.norm)}
        for number, block in enumerate(self.blocks):
            assert isinstance(block, Residual)
            name = f"stage{number // 2 + 1}.block{number % 2 + 1}"
            found[f"{name}.first"] = block.conv1, block.norm1
            found[f"{name}.second"] = block.conv2, block.norm2
            if len(block.shortcut):
                found[f"{name}.shortcut"] = block.shortcut[1], block.shortcut[2]
        return found

    def named(self) -> Tensors:
        """Its weights by our names."""
        own = {"stem.there.weight": self.there.weight}
        for name, (conv, norm) in self.pairs().items():
            kinds = {"conv.weight": conv.weight, "norm.weight": norm.weight, "norm.bias": norm.bias}
            own |= {f"{name}.{kind}": tensor for kind, tensor in kinds.items()}  # type: ignore[misc]
        return own

    def statistics(self) -> Tensors:
        found = {}
        for name, (_, norm) in self.pairs().items():
            state = norm.state_dict()
            found[f"{name}.norm.mean"] = state["running_mean"]
            found[f"{name}.norm.variance"] = state["running_var"]
        return found


def doubled(encoder: MultiLead, seeds: list[int]) -> Ours:
    weights = encoder.parameters(keyed_random.member_keys(seeds))
    weights = {k: v.double() for k, v in weights.items()}
    for name in weights:  # away from 1 and 0, where a mistake could hide
        if ".norm." in name:
            weights[name] += torch.linspace(-0.4, 0.4, weights[name].shape[1])
    return encoder, weights, {k: v.double() for k, v in encoder.buffers(len(seeds)).items()}


def twin_of(ours: Ours, kernel: int = 15, stride: int = 2) -> Twin:
    encoder, weights, _ = ours
    twin = Twin(len(encoder.leads), encoder.embedding_dim // 2, kernel, stride)
    named = twin.named()
    assert named.keys() == weights.keys()
    for name, tensor in named.items():
        tensor.data = weights[name][0].clone()
    return twin


def some(n: int, leads: int, samples: int) -> Tensor:
    """Frames of which the second lacks a lead, and the last all but one."""
    x = torch.randn(n, leads, samples, dtype=torch.float64)
    x[1, 0] = x[-1, 1:] = torch.nan
    return x


@pytest.fixture
def ours() -> Ours:
    return doubled(MultiLead(embedding_dim=24, samples=130, dropout=0.0, leads=LEADS[:3]), [5])


def test_it_equals_torchs_modules_in_training_and_in_evaluation(ours: Ours) -> None:
    encoder, weights, buffers = ours
    twin, x = twin_of(ours), some(6, 3, 130)
    z, after = encoder.encode_training(weights, buffers, x[None], KEYS)
    assert torch.allclose(z[0], twin(x), atol=1e-10)
    statistics = twin.statistics()
    assert statistics.keys() == after.keys()
    for name, of_torch in statistics.items():
        assert torch.allclose(after[name][0], of_torch, atol=1e-10), name
    twin.eval()
    assert torch.allclose(encoder.encode(weights, after, x[None])[0], twin(x), atol=1e-10)


@pytest.mark.parametrize(("samples", "dim"), [(32, 256), (130, 330), (500, 256)])
def test_minimal_filtering_changes_rounding_alone(
    monkeypatch: pytest.MonkeyPatch, samples: int, dim: int
) -> None:
    encoder = MultiLead(embedding_dim=dim, samples=samples, leads=LEADS[:3])
    weights, buffers = encoder.parameters(torch.tensor([5])), encoder.buffers(1)
    x, filters = some(9, 3, samples)[None].float(), native.filter_width() > 0
    with torch.no_grad():
        made = encoder.encode(weights, buffers, x)
        each = [encoder.encode(weights, buffers, x[:, n : n + 1]) for n in range(9)]
        monkeypatch.setenv("CLOCS_KERNEL", "torch")
        plain = encoder.encode(weights, buffers, x)
    if samples == 500:  # of few steps, torch's own convolutions round by the size of the batch
        assert torch.equal(made, torch.cat(each, dim=1))
    assert torch.allclose(made, plain, rtol=1e-4, atol=1e-4 * float(plain.abs().max()))
    assert torch.equal(made, plain) != filters


def test_neither_threads_nor_other_frames_change_minimal_filtering() -> None:
    encoder = MultiLead(embedding_dim=256, samples=500, leads=LEADS[:3])
    weights, buffers = encoder.parameters(torch.tensor([5])), encoder.buffers(1)
    x, threads, made = some(70, 3, 500)[None].float(), torch.get_num_threads(), []
    try:
        with torch.no_grad():
            for count in (1, 2, 5):
                torch.set_num_threads(count)
                made.append(encoder.feature_map(weights, buffers, x))
            x[0, 3, 1, 7] = float("nan")  # it shows in this frame alone
            broken = encoder.feature_map(weights, buffers, x)[0]
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(made[0], made[1]) and torch.equal(made[0], made[2])
    assert broken[3].isnan().any()
    others = [frame for frame in range(70) if frame != 3]
    assert torch.equal(broken[others], made[0][0][others])


@pytest.mark.parametrize("training", [True, False])
def test_its_gradients_equal_those_of_torchs_modules(ours: Ours, training: bool) -> None:
    encoder, weights, buffers = ours
    twin, x = twin_of(ours).train(training), some(6, 3, 130)
    weights = {name: tensor.requires_grad_() for name, tensor in weights.items()}
    toward = torch.randn(6, 24, dtype=torch.float64)
    if training:
        z, _ = encoder.encode_training(weights, buffers, x[None], KEYS)
    else:
        z = encoder.encode(weights, buffers, x[None])
    gradients = torch.autograd.grad((z[0] * toward).sum(), [*weights.values()])
    (twin(x) * toward).sum().backward()
    named = twin.named()
    for name, gradient in zip(weights, gradients, strict=True):
        theirs = named[name].grad
        assert theirs is not None
        assert torch.allclose(gradient[0], theirs, atol=1e-9), name


@pytest.mark.parametrize(
    ("samples", "kernel", "stride"), [(1000, 15, 2), (1001, 31, 4), (2500, 45, 6), (5000, 75, 10)]
)
def test_of_longer_frames_the_stem_takes_longer_strides(
    samples: int, kernel: int, stride: int
) -> None:
    ours = doubled(MultiLead(embedding_dim=4, samples=samples, dropout=0.0, leads=LEADS[:2]), [5])
    encoder, weights, buffers = ours
    x = some(3, 2, samples)
    assert torch.allclose(
        encoder.encode_training(weights, buffers, x[None], KEYS)[0][0],
        twin_of(ours, kernel, stride)(x),
        atol=1e-10,
    )
    assert encoder.feature_map(weights, buffers, x[None]).shape[2] <= 63


def test_by_default_it_has_between_one_and_five_million_weights() -> None:
    encoder = make_encoder("multilead", embedding_dim=640, samples=500, dropout=0.0, leads=LEADS)
    assert encoder == MultiLead(leads=LEADS)
    weights = encoder.parameters(KEYS)
    assert sum(tensor.numel() for tensor in weights.values()) == 3_603_968
    assert is_multilead("multilead")


def test_the_stem_starts_with_hes_variance() -> None:
    weights = MultiLead(leads=LEADS).parameters(KEYS)
    for name, fan_in in (("stem", 12 * 15), ("stage3.block2.second", 256 * 5)):
        variance = weights[f"{name}.conv.weight"].var()
        assert torch.allclose(variance, torch.tensor(2 / fan_in), rtol=0.03)


@pytest.mark.parametrize("training", [True, False])
def test_a_missing_lead_is_not_a_flat_one(ours: Ours, training: bool) -> None:
    encoder, weights, buffers = ours

    def encoded(x: Tensor) -> Tensor:
        if training:
            return encoder.encode_training(weights, buffers, x[None], KEYS)[0][0]
        return encoder.encode(weights, buffers, x[None])[0]

    x = torch.randn(4, 3, 130, dtype=torch.float64)
    flat, missing = x.clone(), x.clone()
    flat[:2, 1], missing[:2, 1] = 0, torch.nan
    assert encoded(missing).isfinite().all()
    assert not torch.allclose(encoded(missing), encoded(flat))


def test_the_order_of_leads_is_the_callers() -> None:
    encoder, weights, buffers = doubled(MultiLead(samples=64, leads=LEADS[:3], dropout=0.0), [5])
    order = [2, 0, 1]
    other = MultiLead(samples=64, leads=tuple(LEADS[i] for i in order), dropout=0.0)
    turned = dict(weights)
    turned["stem.conv.weight"] = weights["stem.conv.weight"][:, :, order]
    turned["stem.there.weight"] = weights["stem.there.weight"][:, :, order]
    x = some(4, 3, 64)
    z = encoder.encode(weights, buffers, x[None])
    assert torch.allclose(other.encode(turned, buffers, x[:, order][None]), z, atol=1e-10)
    assert not torch.allclose(encoder.encode(weights, buffers, x[:, order][None]), z)


def test_one_lead_is_enough() -> None:
    encoder = make_encoder("multilead", embedding_dim=8, samples=100, leads=("II",))
    weights, buffers = encoder.parameters(KEYS), encoder.buffers(1)
    x = torch.randn(1, 4, 1, 100)
    assert encoder.encode_training(weights, buffers, x, KEYS)[0].shape == (1, 4, 8)
    assert encoder.encode(weights, buffers, x).isfinite().all()


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_a_fleet_of_two_equals_two_singles(dropout: float) -> None:
    encoder = MultiLead(embedding_dim=12, samples=130, dropout=dropout, leads=LEADS[:3])
    _, weights, buffers = doubled(encoder, [3, 8])
    keys = keyed_random.member_keys([3, 8])
    x = torch.stack([some(4, 3, 130), some(4, 3, 130)])
    z, after = encoder.encode_training(weights, buffers, x, keys)
    features = encoder.feature_map(weights, after, x)
    for member, seed in enumerate([3, 8]):
        _, own, start = doubled(encoder, [seed])
        one = x[member : member + 1]
        alone, moved = encoder.encode_training(own, start, one, keys[member : member + 1])
        assert torch.allclose(alone[0], z[member], atol=1e-12)
        assert all(torch.allclose(moved[k][0], after[k][member], atol=1e-12) for k in moved)
        assert torch.allclose(encoder.feature_map(own, moved, one)[0], features[member], atol=1e-12)


def test_the_embedding_is_mean_and_greatest_value_of_the_feature_map(ours: Ours) -> None:
    encoder, weights, buffers = ours
    x = some(4, 3, 130)[None]
    features = encoder.feature_map(weights, buffers, x)
    assert features.shape == (1, 4, 9, 12)  # 130 / 2 / 2 / 2 / 2, each rounded up
    pooled = torch.cat([features.mean(dim=2), features.amax(dim=2)], dim=2)
    assert torch.allclose(pooled, encoder.encode(weights, buffers, x), atol=1e-12)


def test_weights_of_heads_and_other_buffers_may_stand_beside_its_own(ours: Ours) -> None:
    encoder, weights, buffers = ours
    x = some(4, 3, 130)[None]
    more = {"head.weight": torch.ones(1, 12, 2)}
    z, after = encoder.encode_training(weights | more, buffers | more, x, KEYS)
    assert torch.equal(z, encoder.encode_training(weights, buffers, x, KEYS)[0])
    assert after.keys() == buffers.keys()


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"samples": 31}, "31 samples is too short .*'multilead'; use frames of at least 32"),
        ({"embedding_dim": 5000}, "`embedding_dim` .* from 2 to 4096, not 5000"),
        ({"leads": ("I", "I")}, "each once, not I, I"),
        ({"leads": ()}, "each once, not none"),
    ],
)
def test_what_it_cannot_be_is_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SettingError, match=sentence):
        MultiLead(**{"leads": LEADS} | settings)


def step(
    encoder: MultiLead, weights: Tensors, buffers: Tensors, x: Tensor, keys: Tensor
) -> list[Tensor]:
    """Embeddings, gradients and statistics."""
    z, after = encoder.encode_training(weights, buffers, x, keys)
    gradients = torch.autograd.grad(z.square().mean(), [*weights.values()])
    return [z.detach(), *gradients, *after.values()]


def test_a_step_is_one_graph_that_computes_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Traced as for compiling, but not compiled."""
    encoder = MultiLead(embedding_dim=8, samples=64, dropout=0.3, leads=LEADS[:2])
    _, weights, buffers = doubled(encoder, [5])
    weights = {name: tensor.requires_grad_() for name, tensor in weights.items()}
    x = some(3, 2, 64)[None]
    plain = step(encoder, weights, buffers, x, KEYS)
    forward = residual._forward(encoder, compiled=False)
    traced = torch.compile(forward, fullgraph=True, dynamic=False, backend="eager")
    monkeypatch.setattr(residual, "_forward", lambda *_, **__: traced)
    for found, expected in zip(step(encoder, weights, buffers, x, KEYS), plain, strict=True):
        assert torch.equal(found, expected)


@pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")
@pytest.mark.filterwarnings("ignore")
def test_the_compiled_gradient_of_a_shortcut_of_odd_length_is_right(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # or a pool of processes would be started for it, each of which imports torch, and many programs
    # compiled to learn what the processor can do
    plain = {"compile_threads": 1, "cpp.vec_isa_ok": False, "cpp_cache_precompile_headers": False}
    for name, value in plain.items():
        monkeypatch.setattr(f"torch._inductor.config.{name}", value)
    h = torch.randn(2, 3, 1, 7, requires_grad=True)
    toward = torch.randn(2, 3, 1, 4)

    def gradient(pooled: Tensor) -> Tensor:
        return torch.autograd.grad(pooled, h, toward)[0]

    expected = gradient(functional.avg_pool2d(h, (1, 2), ceil_mode=True))
    assert torch.equal(gradient(_pairs_averaged(h)), expected)
    compiled = torch.compile(_pairs_averaged, dynamic=False)
    assert torch.equal(gradient(compiled(h)), expected)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("members", [1, 2])
def test_a_compiled_and_captured_step_equals_a_plain_one(
    precision: torch.dtype, members: int, monkeypatch: pytest.MonkeyPatch, recwarn: Any
) -> None:
    """Neither is exact: what they differ by is compared with how far the plain one is off.

    A gradient of this network depends on which values are above zero and which are the greatest,
    so that rounding changes it more than its digits: by 0.5 % in float32. Convolutions of TF32,
    which torch uses unless told otherwise, change it by 10 %; they are left out.
    """
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    encoder = MultiLead(embedding_dim=32, samples=500, dropout=0.1, leads=LEADS)
    keys = keyed_random.member_keys(list(range(members)))
    x = torch.randn(members, 64, 12, 500)
    x[:, ::2, 3:] = torch.nan

    def on(device: str, dtype: torch.dtype) -> tuple[Tensors, Tensors]:
        own = encoder.parameters(keys), encoder.buffers(members)
        weights, buffers = ({k: v.to(device, dtype) for k, v in one.items()} for one in own)
        return {k: v.requires_grad_() for k, v in weights.items()}, buffers

    exact = step(encoder, *on("cpu", torch.float64), x.double(), keys)
    weights, buffers = on("cuda", torch.float32)
    x, keys = x.to("cuda", precision), keys.cuda()
    monkeypatch.setenv("CLOCS_COMPILE", "0")
    plain = step(encoder, weights, buffers, x, keys)
    monkeypatch.delenv("CLOCS_COMPILE")
    side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step(encoder, weights, buffers, x, keys)
    torch.cuda.current_stream().wait_stream(side)
    with torch.cuda.graph(graph, stream=side):
        captured = step(encoder, weights, buffers, x, keys)
    graph.replay()
    assert not [one for one in recwarn if "torch.compile failed" in str(one.message)]
    for found, eager, true in zip(captured, plain, exact, strict=True):
        assert found.dtype == torch.float32
        off, rounding = (float((one.cpu() - true).norm()) for one in (found, eager))
        assert off <= 2 * rounding + 2e-2 * float(true.norm()) + 1e-6
