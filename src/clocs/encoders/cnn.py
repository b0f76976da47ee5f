"""The paper's encoder (appendix C.1), for a fleet.

Three blocks of convolution (kernel 7, stride 3, no bias before batch norm), batch norm, ReLU,
max-pool 2 and dropout, then a linear layer and ReLU; the block itself is in `conv_block.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor, nn

from clocs import keyed_random
from clocs.encoders.base import Encoder, EncoderRow, Weights
from clocs.encoders.conv_block import conv_block, conv_block_eval
from clocs.encoders.layers import batch_norm, put
from clocs.encoders.linear import linear_relu
from clocs.errors import SettingError
from clocs.kernels import collectives
from clocs.kernels.block_torch import KERNEL, POOL, STRIDE, convolved
from clocs.kernels.triton_support import can_use_triton

CHANNELS = (1, 4, 16, 32)


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
        h = x.unsqueeze(-1)
        layers = torch.arange(1, len(CHANNELS), device=keys.device)
        layer_keys = keyed_random.fold(keys, layers[:, None])  # (layers, members)
        seen, unbiased = [], []
        for i in range(1, len(CHANNELS)):
            steps = collectives.rows_of_all(h.shape[1]) * convolved(h.shape[2])
            h, mean, variance = conv_block(h, *_layer(weights, i), layer_keys[i - 1], self.dropout)
            seen.append((mean, variance))
            unbiased.append(steps / max(steps - 1, 1))
        moved = _moved(buffers, seen, unbiased, momentum) if momentum else dict(buffers)
        return self._head(weights, h), moved

    def to_module(self, weights: Weights, buffers: Weights) -> nn.Module:
        layers: list[nn.Module] = []
        for i, (c_in, c_out) in enumerate(pairwise(CHANNELS), start=1):
            kernel, *scale_and_shift = (tensor[0] for tensor in _layer(weights, i))
            conv = nn.Conv1d(c_in, c_out, KERNEL, stride=STRIDE, bias=False)
            put(conv, weight=kernel.view(KERNEL, c_in, c_out).permute(2, 1, 0))
            statistics = (buffers[f"norm{i}.{kind}"][0] for kind in ("mean", "variance"))
            norm = batch_norm(*scale_and_shift, *statistics)
            layers += [conv, norm, nn.ReLU(), nn.MaxPool1d(POOL), nn.Dropout(self.dropout)]
        linear = nn.Linear(CHANNELS[-1] * self.pooled_length, self.embedding_dim)
        by_step = weights["linear.weight"][0].view(self.pooled_length, CHANNELS[-1], -1)
        put(linear, weight=by_step.permute(2, 1, 0).flatten(1), bias=weights["linear.bias"][0])
        return nn.Sequential(*layers, nn.Flatten(), linear, nn.ReLU())

    def _head(self, weights: Weights, h: Tensor) -> Tensor:
        return linear_relu(h.flatten(2), weights["linear.weight"], weights["linear.bias"])


ENCODER = EncoderRow("cnn", CNN)


def _layer(weights: Weights, i: int) -> tuple[Tensor, Tensor, Tensor]:
    return weights[f"conv{i}.weight"], weights[f"norm{i}.weight"], weights[f"norm{i}.bias"]


def _moved(
    buffers: Weights, seen: list[tuple[Tensor, Tensor]], unbiased: list[float], momentum: float
) -> Weights:
    """The buffers after a batch with these means and variances per layer."""
    names = [(f"norm{i}.mean", f"norm{i}.variance") for i in range(1, len(CHANNELS))]
    before = [(buffers[mean], buffers[variance]) for mean, variance in names]
    mean, statistic = seen[0][0], before[0][0]
    if can_use_triton(mean, mean.dtype) and mean.dtype == statistic.dtype == torch.float32:
        from clocs.kernels.statistics_triton import moved_statistics

        after = moved_statistics(before, seen, unbiased, momentum)
    else:
        after = [
            (torch.lerp(mean, now, momentum), torch.lerp(variance, square * factor, momentum))
            for (mean, variance), (now, square), factor in zip(before, seen, unbiased, strict=True)
        ]
    return {
        name: tensor
        for pair, tensors in zip(names, after, strict=True)
        for name, tensor in zip(pair, tensors, strict=True)
    }


def _pooled(length: int) -> int:
    for _ in CHANNELS[1:]:
        length = convolved(length) // POOL
    return length
