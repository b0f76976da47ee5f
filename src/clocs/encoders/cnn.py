"""The paper's encoder (appendix C.1), for many members at once.

Three blocks of convolution (kernel 7, stride 3, no bias before batch norm), batch norm, ReLU,
max-pool 2 and dropout, then a linear layer and ReLU. The fastest implementation of the block that
can run is used: Triton on a GPU, compiled C on a CPU, else torch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from clocs.encoders.base import Encoder, EncoderRow, Weights, batch_norm, put
from clocs.errors import SettingError
from clocs.kernels import keyed_random, native, ranks
from clocs.kernels.gpu import can_use_triton
from clocs.kernels.native import EPSILON, KERNEL, POOL, STRIDE, convolved

CHANNELS = (1, 4, 16, 32)
_Block = Callable[..., tuple[Tensor, Tensor, Tensor]]


@dataclass(frozen=True)
class CNN(Encoder):
    """The paper's CNN: 45 thousand weights at 2,500 samples and E = 128."""

    name: str = "cnn"

    shares_batches: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.pooled_length < 1:
            shortest = next(n for n in range(self.samples, 10_000) if _pooled(n) > 0)
            raise SettingError(
                f"a frame of {self.samples} samples is too short for the encoder 'cnn'; "
                f"use frames of at least {shortest}"
            )

    @property
    def pooled_length(self) -> int:
        """Samples that are left after the three blocks: 10 for a frame of 2,500."""
        return _pooled(self.samples)

    def parameters(self, keys: Tensor) -> Weights:
        """Uniform in ±1/√fan-in, as torch initializes its layers; keys: (members,)."""
        weights = {}
        for i, (c_in, c_out) in enumerate(pairwise(CHANNELS), start=1):
            name, fan_in = f"conv{i}.weight", c_in * KERNEL
            weights[name] = keyed_random.symmetric(keys, name, (fan_in, c_out), fan_in)
        for i, channels in enumerate(CHANNELS[1:], start=1):
            weights[f"norm{i}.weight"] = torch.ones(len(keys), channels)
            weights[f"norm{i}.bias"] = torch.zeros(len(keys), channels)
        flat, dim = CHANNELS[-1] * self.pooled_length, self.embedding_dim
        weights["linear.weight"] = keyed_random.symmetric(keys, "linear.weight", (flat, dim), flat)
        weights["linear.bias"] = keyed_random.symmetric(keys, "linear.bias", (dim,), flat)
        return weights

    def buffers(self, members: int) -> Weights:
        buffers = {}
        for i, channels in enumerate(CHANNELS[1:], start=1):
            buffers[f"norm{i}.mean"] = torch.zeros(members, channels)
            buffers[f"norm{i}.variance"] = torch.ones(members, channels)
        return buffers

    def encode(self, weights: Weights, buffers: Weights, x: Tensor) -> Tensor:
        return self._head(weights, self.feature_map(weights, buffers, x))

    def feature_map(self, weights: Weights, buffers: Weights, x: Tensor) -> Tensor:
        h = x.unsqueeze(-1)
        for i in range(1, len(CHANNELS)):
            mean, variance = buffers[f"norm{i}.mean"], buffers[f"norm{i}.variance"]
            h = conv_block_eval(h, *_layer(weights, i), mean, variance)
        return h

    def encode_training(
        self, weights: Weights, buffers: Weights, x: Tensor, keys: Tensor, momentum: float = 0.1
    ) -> tuple[Tensor, Weights]:
        h, seen = x.unsqueeze(-1), Weights()
        for i in range(1, len(CHANNELS)):
            key = keyed_random.fold(keys, i)
            h, *moments = conv_block(h, *_layer(weights, i), key, self.dropout)
            seen |= zip((f"norm{i}.mean", f"norm{i}.variance"), moments, strict=True)
        z = self._head(weights, h)
        if not momentum:
            return z, dict(buffers)
        before = torch.cat([buffers[name] for name in seen], dim=1)
        moved = torch.lerp(before, torch.cat(list(seen.values()), dim=1), momentum)
        parts = moved.split([tensor.shape[1] for tensor in seen.values()], dim=1)
        return z, dict(zip(seen, parts, strict=True))

    def to_module(self, weights: Weights, buffers: Weights) -> nn.Module:
        parts: list[nn.Module] = []
        for i, (c_in, c_out) in enumerate(pairwise(CHANNELS), start=1):
            kernel, *scale_and_shift = (tensor[0] for tensor in _layer(weights, i))
            conv = nn.Conv1d(c_in, c_out, KERNEL, stride=STRIDE, bias=False)
            put(conv, weight=kernel.view(KERNEL, c_in, c_out).permute(2, 1, 0))
            statistics = (buffers[f"norm{i}.{kind}"][0] for kind in ("mean", "variance"))
            norm = batch_norm(*scale_and_shift, *statistics)
            parts += [conv, norm, nn.ReLU(), nn.MaxPool1d(POOL), nn.Dropout(self.dropout)]
        linear = nn.Linear(CHANNELS[-1] * self.pooled_length, self.embedding_dim)
        by_step = weights["linear.weight"][0].view(self.pooled_length, CHANNELS[-1], -1)
        put(linear, weight=by_step.permute(2, 1, 0).flatten(1), bias=weights["linear.bias"][0])
        return nn.Sequential(*parts, nn.Flatten(), linear, nn.ReLU())

    def _head(self, weights: Weights, h: Tensor) -> Tensor:
        return linear_relu(h.flatten(2), weights["linear.weight"], weights["linear.bias"])


ENCODER = EncoderRow("cnn", CNN)


def conv_block(
    h: Tensor, weight: Tensor, gamma: Tensor, beta: Tensor, keys: Tensor, dropout: float
) -> tuple[Tensor, Tensor, Tensor]:
    """A block in training mode, normalized by the batch's own statistics.

    Args:
        h: (members, n, length, c_in); activations may be of a lower precision than weights.
        weight: (members, 7·c_in, c_out), the kernel's samples before its channels.
        gamma: (members, c_out), batch norm's scale.
        beta: (members, c_out), batch norm's shift.
        keys: (members,) that determine the dropout.
        dropout: Its probability.

    Returns:
        (members, n, out // 2, c_out), the batch's mean and its unbiased variance, (members, c_out).
    """
    shared = ranks.is_shared()
    count = ranks.rows_of_all(h.shape[1]) * convolved(h.shape[2])
    unbiased = count / max(count - 1, 1)
    if can_use_triton(h, h.dtype) and not shared:
        from clocs.kernels.layers_triton import TritonBlock

        triton_block: _Block = TritonBlock.apply
        return triton_block(h, weight, gamma, beta, keys, dropout, unbiased)
    if native.can_use_native_block(h, weight) and not shared:
        native_block: _Block = native.NativeBlock.apply
        out, mean, variance = native_block(h, weight, gamma, beta, keys, dropout)
        return out, mean, variance * unbiased
    # without matrix units for it, lower precision only rounds: arithmetic stays as it is
    y = _convolution(h.to(weight.dtype), weight)
    if shared:
        mean, variance, _ = ranks.moments(y, [1, 2])
    else:
        variance, mean = torch.var_mean(y, dim=(1, 2), correction=0)
    scale = gamma * (variance + EPSILON).rsqrt()
    out = _activated(y, scale, beta - mean * scale)
    out = keyed_random.dropout(out, dropout, keys) if dropout else out
    return out.to(h.dtype), mean.detach(), variance.detach() * unbiased


def conv_block_eval(
    h: Tensor, weight: Tensor, gamma: Tensor, beta: Tensor, mean: Tensor, variance: Tensor
) -> Tensor:
    """The same block normalized by given statistics, without dropout."""
    scale = gamma * (variance + EPSILON).rsqrt()
    shift = beta - mean * scale
    if can_use_triton(h, h.dtype) and h.numel():
        from clocs.kernels.layers_triton import triton_block_eval

        return triton_block_eval(h, weight, scale, shift)
    learning = torch.is_grad_enabled() and any(x.requires_grad for x in (h, weight, scale, shift))
    if not learning and native.can_use_native_block(h, weight) and h.numel():
        return native.native_block_eval(h, weight, scale, shift)
    return _activated(_convolution(h.to(weight.dtype), weight), scale, shift).to(h.dtype)


def _convolution(h: Tensor, weight: Tensor) -> Tensor:
    """(members, n, length, c_in) -> (members, n, out, c_out)."""
    windows = h.unfold(2, KERNEL, STRIDE).transpose(-1, -2).flatten(3)  # (…, 7·c_in)
    return torch.bmm(windows.flatten(1, 2), weight).view(*windows.shape[:3], weight.shape[2])


def _activated(y: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """(members, n, out, c) -> (members, n, out // 2, c): scaled, the larger of two, ReLU."""
    y = y * scale[:, None, None] + shift[:, None, None]
    larger = functional.max_pool2d(y.flatten(0, 1).unsqueeze(1), (POOL, 1))
    return torch.relu(larger).view(*y.shape[:2], *larger.shape[2:])


def block_implementation(
    device: torch.device, dtype: torch.dtype = torch.float32
) -> Literal["triton", "native", "torch"]:
    """Which code runs the paper's blocks there; 'native' is compiled C."""
    h = torch.empty(1, 1, 13, 1, dtype=dtype, device=device)
    if can_use_triton(h, dtype):
        return "triton"
    compiled = native.can_use_native_block(h, torch.empty(1, KERNEL, 4, device=device))
    return "native" if compiled else "torch"


def linear_relu(h: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """max(0, h·weight + bias), as precise as the weights.

    Args:
        h: (members, n, c_in); may be of a lower precision than weights.
        weight: (members, c_in, c_out).
        bias: (members, c_out).
    """
    if can_use_triton(h, h.dtype) and weight.dtype == torch.float32 and h.numel():
        from clocs.kernels.layers_triton import LinearReLU

        layer: Callable[..., Tensor] = LinearReLU.apply
        return layer(h, weight, bias)
    if h.is_cuda:  # matrix units take the lower precision
        z = torch.baddbmm(bias[:, None].to(h.dtype), h, weight.to(h.dtype)).to(weight.dtype)
    else:
        z = torch.baddbmm(bias[:, None], h.to(weight.dtype), weight)
    return torch.relu(z)


def _layer(weights: Weights, i: int) -> tuple[Tensor, Tensor, Tensor]:
    return weights[f"conv{i}.weight"], weights[f"norm{i}.weight"], weights[f"norm{i}.bias"]


def _pooled(length: int) -> int:
    for _ in CHANNELS[1:]:
        length = convolved(length) // POOL
    return length
