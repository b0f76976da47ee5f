"""A small 1-D ResNet (He et al. 2016) for a fleet.

A stem (convolution 15 at stride 4, max-pool 2), three stages of two residual blocks with 16, 32 and
64 channels, each stage but the first halving the length; the mean over what is left, a linear layer
and ReLU. Every convolution has no bias and is followed by batch norm; dropout is between the
two convolutions of a block (Zagoruyko & Komodakis 2016).

Activations are (members, n, length, channels), so that a convolution is one batched matrix product
for all members.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from clocs.encoders.base import Encoder, EncoderRow, Weights
from clocs.encoders.layers import NormedConv, put
from clocs.errors import SettingError
from clocs.kernels import collectives, keyed_random

STAGES = (16, 32, 64)  # channels
BLOCKS = 2  # per stage
STEM_KERNEL, STEM_STRIDE, POOL, KERNEL = 15, 4, 2, 3
EPSILON = 1e-5


@dataclass(frozen=True)
class _Conv:
    """A convolution that is followed by batch norm."""

    name: str
    c_in: int
    c_out: int
    kernel: int
    stride: int = 1


@dataclass(frozen=True)
class _Block:
    first: _Conv
    second: _Conv
    shortcut: _Conv | None  # where the shape changes; else the input itself is added


def _blocks() -> tuple[_Block, ...]:
    blocks, c_in = [], STAGES[0]
    for stage, channels in enumerate(STAGES, start=1):
        for number in range(1, BLOCKS + 1):
            name = f"stage{stage}.block{number}"
            stride = 2 if stage > 1 and number == 1 else 1
            changed = stride > 1 or c_in != channels
            blocks.append(
                _Block(
                    _Conv(f"{name}.first", c_in, channels, KERNEL, stride),
                    _Conv(f"{name}.second", channels, channels, KERNEL),
                    _Conv(f"{name}.shortcut", c_in, channels, 1, stride) if changed else None,
                )
            )
            c_in = channels
    return tuple(blocks)


_STEM = _Conv("stem", 1, STAGES[0], STEM_KERNEL, STEM_STRIDE)
_BLOCKS = _blocks()
_CONVS = (_STEM, *(c for b in _BLOCKS for c in (b.first, b.second, b.shortcut) if c is not None))
SHORTEST = STEM_STRIDE * POOL * 2 ** (len(STAGES) - 1)  # samples that become one step at the end

Norm = Callable[[_Conv, Tensor], Tensor]
Drop = Callable[[int, Tensor], Tensor]


@dataclass(frozen=True)
class ResNet(Encoder):
    """A ResNet of 15 convolutions: 69 thousand weights at E = 128, whatever the frame."""

    name: str = "resnet"

    shares_batches: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.samples < SHORTEST:
            raise SettingError(
                f"a frame of {self.samples} samples is too short for the encoder 'resnet'; "
                f"use frames of at least {SHORTEST}"
            )

    def parameters(self, keys: Tensor) -> Weights:
        """Uniform in ±1/√fan-in, as torch initializes its layers; keys: (members,)."""
        weights = {}
        for conv in _CONVS:
            name, fan_in = f"{conv.name}.conv.weight", conv.kernel * conv.c_in
            weights[name] = keyed_random.symmetric(keys, name, (fan_in, conv.c_out), fan_in)
            weights[f"{conv.name}.norm.weight"] = torch.ones(len(keys), conv.c_out)
            weights[f"{conv.name}.norm.bias"] = torch.zeros(len(keys), conv.c_out)
        flat, dim = STAGES[-1], self.embedding_dim
        weights["linear.weight"] = keyed_random.symmetric(keys, "linear.weight", (flat, dim), flat)
        weights["linear.bias"] = keyed_random.symmetric(keys, "linear.bias", (dim,), flat)
        return weights

    def buffers(self, members: int) -> Weights:
        buffers = {}
        for conv in _CONVS:
            buffers[f"{conv.name}.norm.mean"] = torch.zeros(members, conv.c_out)
            buffers[f"{conv.name}.norm.variance"] = torch.ones(members, conv.c_out)
        return buffers

    def encode(self, weights: Weights, buffers: Weights, x: Tensor) -> Tensor:
        return _pooled(weights, self.feature_map(weights, buffers, x))

    def feature_map(self, weights: Weights, buffers: Weights, x: Tensor) -> Tensor:
        def norm(conv: _Conv, y: Tensor) -> Tensor:
            name = f"{conv.name}.norm"
            return _scaled(y, weights, name, buffers[f"{name}.mean"], buffers[f"{name}.variance"])

        return _forward(weights, x, norm, lambda block, h: h)

    def encode_training(
        self, weights: Weights, buffers: Weights, x: Tensor, keys: Tensor, momentum: float = 0.1
    ) -> tuple[Tensor, Weights]:
        updated = {}

        def norm(conv: _Conv, y: Tensor) -> Tensor:
            name, steps = f"{conv.name}.norm", collectives.rows_of_all(y.shape[1]) * y.shape[2]
            if collectives.is_shared():
                mean, variance, _ = collectives.moments(y, [1, 2])
            else:
                variance, mean = torch.var_mean(y, dim=(1, 2), correction=0)
            seen = {"mean": mean, "variance": variance * (steps / max(steps - 1, 1))}
            for statistic, now in seen.items():
                before = buffers[f"{name}.{statistic}"]
                updated[f"{name}.{statistic}"] = torch.lerp(before, now.detach(), momentum)
            return _scaled(y, weights, name, mean, variance)

        def drop(block: int, h: Tensor) -> Tensor:
            key = keyed_random.fold(keys, block)
            return keyed_random.dropout(h, self.dropout, key) if self.dropout else h

        return _pooled(weights, _forward(weights, x, norm, drop)), updated

    def to_module(self, weights: Weights, buffers: Weights) -> nn.Module:
        return _Layers(self, weights, buffers)


class _Layers(nn.Module):
    """The network of one member in torch's own layers, channels before time."""

    def __init__(self, encoder: ResNet, weights: Weights, buffers: Weights) -> None:
        super().__init__()
        self.convs = nn.ModuleDict()
        for conv in _CONVS:
            kernel = weights[f"{conv.name}.conv.weight"][0].view(conv.kernel, conv.c_in, conv.c_out)
            own = NormedConv.of(conv.name, weights, buffers, kernel.permute(2, 1, 0), conv.stride)
            self.convs[_key(conv)] = own
        self.pool = nn.MaxPool1d(POOL)
        self.dropout = nn.Dropout(encoder.dropout)
        self.linear = nn.Linear(STAGES[-1], encoder.embedding_dim)
        put(self.linear, weight=weights["linear.weight"][0].T, bias=weights["linear.bias"][0])

    def forward(self, x: Tensor) -> Tensor:
        """x: (n, 1, samples) -> (n, embedding_dim)."""
        h: Tensor = self.pool(self._convolved(_STEM, x).relu())
        for block in _BLOCKS:
            inner = self.dropout(self._convolved(block.first, h).relu())
            around = h if block.shortcut is None else self._convolved(block.shortcut, h)
            h = (self._convolved(block.second, inner) + around).relu()
        z: Tensor = self.linear(h.mean(dim=2)).relu()
        return z

    def _convolved(self, conv: _Conv, h: Tensor) -> Tensor:
        made: Tensor = self.convs[_key(conv)](h)
        return made


ENCODER = EncoderRow("resnet", ResNet)


def _key(conv: _Conv) -> str:
    return conv.name.replace(".", "_")  # dots cannot be in a module's name


def _forward(weights: Weights, x: Tensor, norm: Norm, drop: Drop) -> Tensor:
    """(members, n, steps, channels), of the precision of x, which may be below the weights'."""

    def convolved(conv: _Conv, h: Tensor) -> Tensor:
        return norm(conv, _convolve(h, weights[f"{conv.name}.conv.weight"], conv))

    h = torch.relu(convolved(_STEM, x.unsqueeze(-1))).to(x.dtype)
    half = h.shape[2] // POOL
    h = h[:, :, : half * POOL].unflatten(2, (half, POOL)).amax(dim=3)
    for number, block in enumerate(_BLOCKS, start=1):
        inner = drop(number, torch.relu(convolved(block.first, h)).to(x.dtype))
        around = h if block.shortcut is None else convolved(block.shortcut, h)
        h = torch.relu(convolved(block.second, inner) + around).to(x.dtype)
    return h


def _pooled(weights: Weights, h: Tensor) -> Tensor:
    """The mean over time, a linear layer and ReLU."""
    z = _product(h.mean(dim=2), weights["linear.weight"]) + weights["linear.bias"][:, None]
    return torch.relu(z)


def _convolve(h: Tensor, weight: Tensor, conv: _Conv) -> Tensor:
    """h: (members, n, length, c_in), zeros around it -> (members, n, ⌈length / stride⌉, c_out)."""
    members, n, length, _ = h.shape
    out = -(-length // conv.stride)
    reach = conv.kernel // 2
    h = torch.nn.functional.pad(h, (0, 0, reach, reach)) if reach else h
    last = (out - 1) * conv.stride + 1
    under = [h[:, :, tap : tap + last : conv.stride] for tap in range(conv.kernel)]
    windows = torch.cat(under, dim=-1).view(members, n * out, conv.kernel * conv.c_in)
    return _product(windows, weight).view(members, n, out, conv.c_out)


def _product(rows: Tensor, weight: Tensor) -> Tensor:
    """rows: (members, n, k) × weight: (members, k, c) -> (members, n, c), as precise as weight."""
    if rows.is_cuda:  # matrix units take the lower precision
        return torch.bmm(rows, weight.to(rows.dtype)).to(weight.dtype)
    return torch.bmm(rows.to(weight.dtype), weight)


def _scaled(y: Tensor, weights: Weights, name: str, mean: Tensor, variance: Tensor) -> Tensor:
    """Batch norm by these statistics, as one multiplication and one addition per element."""
    scale = weights[f"{name}.weight"] * (variance + EPSILON).rsqrt()
    shift = weights[f"{name}.bias"] - mean * scale
    return torch.addcmul(shift[:, None, None], y, scale[:, None, None])
