"""What is particular to the ResNet; what every encoder must do is in `test_every_encoder.py`."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from clocs.encoders.make import make_encoder
from clocs.encoders.residual import ResNet
from clocs.errors import SettingError
from clocs.kernels import keyed_random

Tensors = dict[str, Tensor]


class Normed(nn.Sequential):
    """A convolution and its batch norm, with one member's weights."""

    def __init__(self, weights: Tensors, name: str, kernel: int, stride: int = 1) -> None:
        rows, c_out = weights[f"{name}.conv.weight"].shape[1:]
        c_in = rows // kernel
        conv = nn.Conv1d(c_in, c_out, kernel, stride, padding=kernel // 2, bias=False)
        norm = nn.BatchNorm1d(c_out)
        own = weights[f"{name}.conv.weight"][0].view(kernel, c_in, c_out)
        conv.weight.data = own.permute(2, 1, 0).clone()
        norm.weight.data = weights[f"{name}.norm.weight"][0].clone()
        norm.bias.data = weights[f"{name}.norm.bias"][0].clone()
        super().__init__(conv, norm)


class Block(nn.Module):
    def __init__(self, weights: Tensors, name: str, stride: int) -> None:
        super().__init__()
        self.first = Normed(weights, f"{name}.first", 3, stride)
        self.second = Normed(weights, f"{name}.second", 3)
        around = f"{name}.shortcut"
        changed = f"{around}.conv.weight" in weights
        self.shortcut = Normed(weights, around, 1, stride) if changed else nn.Identity()

    def forward(self, h: Tensor) -> Tensor:
        inner = torch.relu(self.first(h))
        return torch.relu(self.second(inner) + self.shortcut(h))


class Twin(nn.Module):
    """The same network in torch's own modules, channels first."""

    def __init__(self, encoder: ResNet, weights: Tensors) -> None:
        super().__init__()
        self.stem = Normed(weights, "stem", 15, stride=4)
        self.pool = nn.MaxPool1d(2)
        names = [f"stage{stage}.block{block}" for stage in (1, 2, 3) for block in (1, 2)]
        self.blocks = nn.ModuleDict(
            {
                name.replace(".", "_"): Block(weights, name, 2 if name in halving else 1)
                for name in names
                for halving in [("stage2.block1", "stage3.block1")]
            }
        )
        self.linear = nn.Linear(64, encoder.embedding_dim)
        self.linear.weight.data = weights["linear.weight"][0].T.clone()
        self.linear.bias.data = weights["linear.bias"][0].clone()
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        h = self.pool(torch.relu(self.stem(x[:, None])))
        for block in self.blocks.values():
            h = block(h)
        return torch.relu(self.linear(h.mean(dim=2)))

    def normed(self) -> dict[str, Normed]:
        """Convolution and batch norm by our names."""
        found = {"stem": self.stem}
        for key, block in self.blocks.items():
            assert isinstance(block, Block)
            parts = {"first": block.first, "second": block.second, "shortcut": block.shortcut}
            for part, module in parts.items():
                if isinstance(module, Normed):
                    found[f"{key.replace('_', '.')}.{part}"] = module
        return found


@pytest.fixture
def ours() -> tuple[ResNet, Tensors, Tensors]:
    encoder = ResNet(embedding_dim=12, samples=333, dropout=0.0)
    weights = {k: v.double() for k, v in encoder.parameters(keyed_random.member_keys([5])).items()}
    for name in weights:  # away from 1 and 0, where a mistake could hide
        if ".norm." in name:
            weights[name] += torch.linspace(-0.4, 0.4, weights[name].shape[1])
    buffers = {k: v.double() for k, v in encoder.buffers(1).items()}
    return encoder, weights, buffers


def test_it_equals_torchs_modules_in_training_and_in_evaluation(
    ours: tuple[ResNet, Tensors, Tensors],
) -> None:
    encoder, weights, buffers = ours
    twin = Twin(encoder, weights)
    x = torch.rand(6, 333, dtype=torch.float64)
    z, after = encoder.encode_training(weights, buffers, x[None], keyed_random.member_keys([5]))
    assert torch.allclose(z[0], twin(x), atol=1e-10)
    statistics = {name: module[1].state_dict() for name, module in twin.normed().items()}
    assert len(statistics) * 2 == len(after)
    for name, of_torch in statistics.items():
        assert torch.allclose(after[f"{name}.norm.mean"][0], of_torch["running_mean"], atol=1e-10)
        variance = after[f"{name}.norm.variance"][0]
        assert torch.allclose(variance, of_torch["running_var"], atol=1e-10)
    twin.eval()
    assert torch.allclose(encoder.encode(weights, after, x[None])[0], twin(x), atol=1e-10)


@pytest.mark.parametrize("training", [True, False])
def test_its_gradients_equal_those_of_torchs_modules(
    ours: tuple[ResNet, Tensors, Tensors], training: bool
) -> None:
    encoder, weights, buffers = ours
    twin = Twin(encoder, weights).train(training)
    weights = {name: tensor.requires_grad_() for name, tensor in weights.items()}
    x = torch.rand(6, 333, dtype=torch.float64)
    toward = torch.randn(6, 12, dtype=torch.float64)
    if training:
        z, _ = encoder.encode_training(weights, buffers, x[None], keyed_random.member_keys([5]))
    else:
        z = encoder.encode(weights, buffers, x[None])
    gradients = dict(
        zip(weights, torch.autograd.grad((z[0] * toward).sum(), [*weights.values()]), strict=True)
    )
    (twin(x) * toward).sum().backward()
    for name, module in twin.normed().items():
        conv, norm = module
        assert isinstance(conv.weight, Tensor)
        assert conv.weight.grad is not None
        kernel = conv.weight.grad.permute(2, 1, 0).flatten(0, 1)
        assert torch.allclose(gradients[f"{name}.conv.weight"][0], kernel, atol=1e-9), name
        for part in ("weight", "bias"):
            theirs = getattr(norm, part).grad
            assert torch.allclose(gradients[f"{name}.norm.{part}"][0], theirs, atol=1e-9), name
    assert twin.linear.weight.grad is not None
    assert torch.allclose(gradients["linear.weight"][0].T, twin.linear.weight.grad, atol=1e-9)


def test_its_size_does_not_depend_on_the_frame() -> None:
    for samples in (32, 2500, 5000):
        weights = ResNet(samples=samples).parameters(keyed_random.member_keys([0]))
        assert sum(tensor.numel() for tensor in weights.values()) == 69_072


def test_no_convolution_has_a_bias() -> None:
    names = ResNet().parameters(keyed_random.member_keys([0])).keys()
    assert not [name for name in names if name.endswith("conv.bias")]
    assert sum(name.endswith("conv.weight") for name in names) == 15


def test_a_frame_too_short_says_how_long_it_must_be() -> None:
    with pytest.raises(SettingError, match=r"4 samples is too short .*'resnet'") as caught:
        make_encoder("resnet", embedding_dim=8, samples=4)
    shortest = int(str(caught.value).rpartition(" ")[2])
    assert make_encoder("resnet", embedding_dim=8, samples=shortest).samples == shortest
    with pytest.raises(SettingError, match=f"at least {shortest}"):
        make_encoder("resnet", embedding_dim=8, samples=shortest - 1)
