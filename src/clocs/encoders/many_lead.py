"""What networks of many leads share: the stem, batch norm, missing leads, members, compiling.

A missing lead is zero in the stem, where the others are scaled up by √(leads / leads that are
there); a learned weight per lead and channel, added where the lead is there, tells which ones are.
The embedding is the mean over time of the feature map and its greatest value: what lasts, and what
happens once.

The stem's stride and kernel grow with frames of more than 1,000 samples, so that at most 500 steps
leave it and the cost stays bounded.

Weights are in torch's order, (members, c_out, c_in, kernel), and members are encoded one after
another. Activations are (n, channels, 1, steps), the channels of a step next to one another in
memory.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from clocs.encoders.base import Encoder, Weights
from clocs.encoders.many_lead_layers import ManyLeadLayers
from clocs.encoders.many_lead_network import THERE, Conv, Network
from clocs.errors import SettingError
from clocs.kernels import collectives, keyed_random
from clocs.kernels.gpu import Compiled, is_compiled_for

WIDTHS = (64, 128, 256)  # channels of the stages; of the last one, half of `embedding_dim`
STEM_KERNEL, STEM_STRIDE = 15, 2
LONGEST = 1000  # samples of a frame that the stem sees at its smallest stride
SHORTEST = 2 * STEM_STRIDE * 2 ** len(WIDTHS)  # samples that become two steps at the end
WIDEST = 4096
AT_ONCE = 128  # frames evaluated at a time on a CPU, whose caches hold no more
EPSILON = 1e-5
WHOLE = 8  # channels that matrix units take at once
HE = 6**0.5  # × ±1/√fan-in: the variance that He et al. (2015) start with


@dataclass(frozen=True)
class ManyLeadEncoder(Encoder):
    """An encoder of many leads, but for its network."""

    embedding_dim: int = 640
    samples: int = 500
    dropout: float = 0.0  # where leads are missing at random, it is not needed

    many_leads: ClassVar[bool] = True
    shares_batches: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.samples < SHORTEST:
            raise SettingError(
                f"a frame of {self.samples} samples is too short for the encoder {self.name!r}; "
                f"use frames of at least {SHORTEST}"
            )
        if not 2 <= self.embedding_dim <= WIDEST or self.embedding_dim % 2:
            raise SettingError(
                f"`embedding_dim` of the encoder {self.name!r} is twice the width of its last "
                f"stage: an even number from 2 to {WIDEST}, not {self.embedding_dim}"
            )
        if not self.leads or len(set(self.leads)) < len(self.leads):
            raise SettingError(
                f"the encoder {self.name!r} needs the names of its leads, each once, not "
                f"{', '.join(self.leads) or 'none'}"
            )

    @property
    @abstractmethod
    def network(self) -> Network:
        """The same object whenever it is the same network."""

    def parameters(self, keys: Tensor) -> Weights:
        """He's variance for convolutions, all uniform; keys: (members,)."""
        weights, leads = {}, len(self.leads)
        for conv in self.network.every:
            name, (c_out, c_in, kernel) = f"{conv.name}.conv.weight", conv.shape
            weights[name] = keyed_random.symmetric(keys, name, conv.shape, kernel * c_in) * HE
            weights[f"{conv.name}.norm.weight"] = torch.full((len(keys), c_out), conv.scale)
            weights[f"{conv.name}.norm.bias"] = torch.zeros(len(keys), c_out)
        weights[THERE] = keyed_random.symmetric(keys, THERE, (WIDTHS[0], leads), leads)
        return weights

    def buffers(self, members: int) -> Weights:
        buffers = {}
        for conv in self.network.every:
            buffers[f"{conv.name}.norm.mean"] = torch.zeros(members, conv.c_out)
            buffers[f"{conv.name}.norm.variance"] = torch.ones(members, conv.c_out)
        return buffers

    def encode(self, weights: Weights, buffers: Weights, x: Tensor) -> Tensor:
        return self._evaluated(weights, buffers, x, lambda h: _pooled(h, dim=1))

    def feature_map(self, weights: Weights, buffers: Weights, x: Tensor) -> Tensor:
        """(members, n, steps, embedding_dim / 2), none negative, as precise as the weights."""
        return self._evaluated(weights, buffers, x, lambda h: h)

    def _evaluated(
        self, weights: Weights, buffers: Weights, x: Tensor, pooled: Callable[[Tensor], Tensor]
    ) -> Tensor:
        network, dtype, made = self.network, weights[THERE].dtype, []
        for member, own in enumerate(x):
            tensors = _member(weights, network.weights(), member)
            folded = _folded(network, tensors | _member(buffers, network.statistics(), member))
            parts = own.split(AT_ONCE) if own.device.type == "cpu" else [own]
            maps = (_feature_map(network, folded, part).to(dtype) for part in parts)
            made.append(torch.cat([pooled(h.squeeze(2).transpose(1, 2)) for h in maps]))
        return _stack(made)

    def encode_training(
        self, weights: Weights, buffers: Weights, x: Tensor, keys: Tensor, momentum: float = 0.1
    ) -> tuple[Tensor, Weights]:
        network, names = self.network, self.network.statistics()
        shared = collectives.is_shared()  # asked here: the compiler cannot
        forward = _forward(
            network, self.dropout, compiled=is_compiled_for(x) and not shared, shared=shared
        )
        sizes = _dropped_sizes(network, x.shape[1], x.shape[3]) if self.dropout else ()
        z, seen = [], []
        for member, own in enumerate(x):
            tensors, key = _member(weights, network.weights(), member), keys[member : member + 1]
            draws = [
                keyed_random.lanes(keyed_random.fold(key, block), size)
                for block, size in enumerate(sizes, start=1)
            ]
            embedding, statistics = forward(tensors, own, draws)
            z.append(embedding)
            seen.append(statistics)
        now = [_stack([statistics[name] for statistics in seen]) for name in names]
        moved = torch._foreach_lerp([buffers[name] for name in names], now, momentum)
        return _stack(z), dict(zip(names, moved, strict=True))

    def to_module(self, weights: Weights, buffers: Weights) -> nn.Module:
        return ManyLeadLayers(self.network, self.dropout, weights, buffers)


def stem(leads: int, samples: int) -> Conv:
    times = -(-samples // LONGEST)
    return Conv("stem", leads, WIDTHS[0], (STEM_KERNEL * times) | 1, STEM_STRIDE * times)


Forward = Callable[[Weights, Tensor, list[Tensor]], tuple[Tensor, Weights]]


@cache
def _forward(network: Network, dropout: float, *, compiled: bool, shared: bool = False) -> Forward:
    def forward(weights: Weights, x: Tensor, draws: list[Tensor]) -> tuple[Tensor, Weights]:
        return _trained(network, dropout, weights, x, draws, shared=shared)

    return Compiled(forward) if compiled else forward


@cache
def _dropped_sizes(network: Network, n: int, samples: int) -> tuple[int, ...]:
    """How many numbers each block drops out of, for n frames.

    Random numbers are drawn before the forward pass, so that their 64-bit arithmetic is not
    compiled with it.
    """
    sizes: list[int] = []

    def drop(block: int, h: Tensor) -> Tensor:
        sizes.append(h.numel())
        return h

    def convolved(conv: Conv, h: Tensor) -> Tensor:
        return _convolve(h, torch.empty(conv.shape, device="meta"), conv)

    stem = network.stem
    x = torch.empty(n, stem.c_in, 1, samples, device="meta")
    network.body(convolved(stem, x), convolved, drop)
    return tuple(sizes)


def _trained(
    network: Network,
    dropout: float,
    weights: Weights,
    x: Tensor,
    draws: list[Tensor],
    *,
    shared: bool,
) -> tuple[Tensor, Weights]:
    """x: (n, leads, samples) -> (n, embedding_dim), and the statistics of this batch.

    draws: of each block, the random numbers that decide what is dropped; none without dropout.
    shared: whether several processes have rows of the batch.
    """
    statistics = {}
    dtype = weights[THERE].dtype

    def normed_together(name: str, y: Tensor) -> Tensor:
        mean, variance, count = collectives.moments(y, [0, 2, 3])
        unbiased = variance * (count / (count - 1).clamp(min=1))
        statistics[f"{name}.mean"] = mean.detach().to(dtype)
        statistics[f"{name}.variance"] = unbiased.detach().to(dtype)
        scale = weights[f"{name}.weight"] * (variance + EPSILON).rsqrt()
        shift = weights[f"{name}.bias"] - mean * scale
        return (y * scale[:, None, None] + shift[:, None, None]).to(y.dtype)

    def normed(name: str, y: Tensor) -> Tensor:
        if shared:
            return normed_together(name, y)
        mean, variance = (torch.zeros(y.shape[1], dtype=dtype, device=y.device) for _ in range(2))
        scale, shift = weights[f"{name}.weight"], weights[f"{name}.bias"]
        # momentum 1: what is written are the statistics of this batch, its variance unbiased
        h = functional.batch_norm(y, mean, variance, scale, shift, True, 1.0, EPSILON)
        statistics[f"{name}.mean"], statistics[f"{name}.variance"] = mean, variance
        return h

    def convolved(conv: Conv, h: Tensor) -> Tensor:
        return normed(f"{conv.name}.norm", _convolve(h, weights[f"{conv.name}.conv.weight"], conv))

    def drop(block: int, h: Tensor) -> Tensor:
        return keyed_random.dropped(h, dropout, draws[block]) if dropout else h

    h, there = _input(x, dtype)
    h = _convolve(h, weights["stem.conv.weight"], network.stem)
    h = h + functional.linear(there, weights[THERE]).to(h.dtype)[:, :, None, None]
    h = network.body(torch.relu(normed("stem.norm", h)), convolved, drop)
    return _pooled(h.flatten(2).to(dtype), dim=2), statistics


def _folded(network: Network, tensors: Weights) -> Weights:
    """Weights and biases of convolutions that do the work of batch norm, too."""
    folded = {}
    for conv in network.every:
        name, weight = f"{conv.name}.norm", f"{conv.name}.conv.weight"
        scale = tensors[f"{name}.weight"] * (tensors[f"{name}.variance"] + EPSILON).rsqrt()
        folded[weight] = tensors[weight] * scale[:, None, None]
        folded[f"{conv.name}.bias"] = tensors[f"{name}.bias"] - tensors[f"{name}.mean"] * scale
        if conv is network.stem:
            folded[THERE] = tensors[THERE] * scale[:, None]
    return folded


def _feature_map(network: Network, weights: Weights, x: Tensor) -> Tensor:
    """x: (n, leads, samples) -> (n, width, 1, steps), by folded weights."""

    def convolved(conv: Conv, h: Tensor) -> Tensor:
        weight, bias = weights[f"{conv.name}.conv.weight"], weights[f"{conv.name}.bias"]
        return _convolve(h, weight, conv, bias, stride_over_one_row=2)

    h, there = _input(x, weights[THERE].dtype)
    mask = functional.linear(there, weights[THERE])
    h = convolved(network.stem, h)
    h = h.add_(mask.to(h.dtype)[:, :, None, None]).relu_()
    return network.body(h, convolved, lambda block, h: h)


def _input(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """x: (n, leads, samples), nan where missing -> (n, leads, 1, samples), and (n, leads) 1 or 0.

    On a GPU, empty leads follow up to a whole number of those that its matrix units take at once.
    Activations are as precise as x on a GPU, whose matrix units gain by it, else as the weights.
    """
    there = ~x[..., 0].isnan()
    count = there.sum(dim=1, keepdim=True).clamp(min=1)
    factor = (there.shape[1] / count.to(dtype)).sqrt()
    h = torch.where(there[..., None], x * factor[..., None].to(x.dtype), 0)
    h = h.to(x.dtype if x.is_cuda else dtype).unsqueeze(2)
    if x.is_cuda:
        h = functional.pad(h, (0, 0, 0, 0, 0, -h.shape[1] % WHOLE))
    return h.contiguous(memory_format=torch.channels_last), there.to(dtype)


def _convolve(
    h: Tensor,
    weight: Tensor,
    conv: Conv,
    bias: Tensor | None = None,
    *,
    stride_over_one_row: int = 1,
) -> Tensor:
    """h: (n, c_in, 1, steps), zeros around it -> (n, c_out, 1, ⌈steps / stride⌉).

    There is one row, so that the stride over rows changes nothing but which of torch's kernels is
    used: at 1, in one thread, another for small batches than for large ones, with other rounding.
    """
    if conv.groups == 1 and h.shape[1] > weight.shape[1]:
        weight = functional.pad(weight, (0, 0, 0, h.shape[1] - weight.shape[1]))
    kernel = weight.unsqueeze(2).to(h.dtype, memory_format=torch.channels_last)
    return functional.conv2d(
        h,
        kernel,
        None if bias is None else bias.to(h.dtype),
        stride=(stride_over_one_row, conv.stride),
        padding=(0, conv.kernel // 2),
        groups=conv.groups,
    )


def _pooled(h: Tensor, dim: int) -> Tensor:
    """Mean and greatest value over time, which is that dimension, side by side."""
    return torch.cat([h.mean(dim=dim), h.amax(dim=dim)], dim=-1)


def _member(tensors: Weights, names: list[str], member: int) -> Weights:
    """One member's own of these; of a single one, views whose gradient costs nothing."""
    own = {name: tensors[name] for name in names}
    if len(own[names[0]]) == 1:
        return {name: tensor.squeeze(0) for name, tensor in own.items()}
    return {name: tensor[member] for name, tensor in own.items()}


def _stack(own: list[Tensor]) -> Tensor:
    return own[0].unsqueeze(0) if len(own) == 1 else torch.stack(own)
