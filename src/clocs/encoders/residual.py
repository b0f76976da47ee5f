"""Residual networks: `resnet`, of one lead, and what those of many leads share (`many_leads`).

`resnet` is a small 1-D ResNet (He et al. 2016): a stem (convolution 15 at stride 4, max-pool 2),
three stages of two residual blocks with 16, 32 and 64 channels; the mean over time, a linear layer
and ReLU.

In all, each stage but the first halves the length, every convolution is followed by batch norm and
has no bias, and dropout is between the two convolutions of a block (Zagoruyko & Komodakis 2016).

Members are encoded one after another. Activations are (n, channels, 1, steps), the channels of a
step next to one another in memory.

Where C can be compiled, evaluation on a CPU computes wide convolutions by minimal filtering (Lavin
& Gray 2016; kernels/filter.c). Steps and kernels are polynomials, multiplied at 8 points, of which
one is infinity: per channel, 8 products give four steps, where sums over the taps take 20. At
stride 2, pairs of steps are channels of one step, and pairs of taps one tap: 16 products give six
steps instead of 30.
"""

from __future__ import annotations

import itertools
import math
import operator
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from clocs.encoders.base import Encoder, EncoderRow, Weights, batch_norm, put
from clocs.errors import SettingError
from clocs.kernels import keyed_random, native, ranks
from clocs.kernels.gpu import Compiled, is_compiled_for

LEAD_PRESENCE = "stem.there.weight"  # per lead and channel; so called in checkpoints
SHORTEST = 32  # samples
AT_ONCE = 128  # frames evaluated at a time on a CPU, whose caches hold no more
EPSILON = 1e-5
_KEPT = 4  # networks of which folded weights are kept
WHOLE = 8  # channels that matrix units take at once
POINTS = (0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5)  # of minimal filtering, but for infinity
TAPS, SIZE = 5, 8  # of its kernels, and of its products
WIDE = 64  # channels from which on it is faster
HE = 6**0.5  # × ±1/√fan-in: the variance that He et al. (2015) start with

Convolved = Callable[..., Tensor]  # of a `Conv`, its input and what is added before batch norm
Drop = Callable[[int, Tensor], Tensor]  # with the number of the block


@dataclass(frozen=True)
class Conv:
    """A convolution that is followed by batch norm."""

    name: str
    c_in: int
    c_out: int
    kernel: int
    stride: int = 1
    taps_first: bool = False  # whether weights are (kernel · c_in, c_out), not in torch's order

    @property
    def shape(self) -> tuple[int, ...]:
        if self.taps_first:
            return self.kernel * self.c_in, self.c_out
        return self.c_out, self.c_in, self.kernel

    def in_torch_order(self, weight: Tensor) -> Tensor:
        """(c_out, c_in, kernel)."""
        if not self.taps_first:
            return weight
        return weight.view(self.kernel, self.c_in, self.c_out).permute(2, 1, 0)


@dataclass(frozen=True)
class Network:
    """The convolutions of a network, and what it does with them."""

    stem: Conv
    blocks: tuple[tuple[Conv, Conv, Conv | None], ...]  # first, second, shortcut if shapes differ
    pooled_stem: bool  # whether a max-pool follows the stem
    masked: bool  # whether leads may be missing

    @property
    def convs(self) -> list[Conv]:
        """All, in order."""
        return [self.stem, *(conv for block in self.blocks for conv in block if conv is not None)]

    def is_filtered(self, weight: Tensor) -> bool:
        """Whether evaluation computes its blocks by minimal filtering."""
        own = self.convs[1:]
        wide = min(min(one.c_in, one.c_out) for one in own) >= WIDE and not self.stem.taps_first
        fits = (weight.device.type, weight.dtype) == ("cpu", torch.float32)
        fits &= {one.kernel for one in own} <= {1, TAPS} and not torch.is_grad_enabled()
        return wide and fits and native.filter_width() > 0

    def run(self, h: Tensor, added: Tensor | None, convolved: Convolved, drop: Drop) -> Tensor:
        """h: (n, leads, 1, samples), added: (n, channels) -> (n, channels, 1, steps)."""
        return self.body(self.start(h, added, convolved), convolved, drop)

    def start(self, h: Tensor, added: Tensor | None, convolved: Convolved) -> Tensor:
        """As `run`, but only the stem."""
        h = convolved(self.stem, h, added).relu_()
        return functional.max_pool2d(h, (1, 2)) if self.pooled_stem else h

    def body(self, h: Tensor, convolved: Convolved, drop: Drop) -> Tensor:
        """From the stem to the feature map."""
        for number, (first, second, shortcut) in enumerate(self.blocks):
            around = h
            if shortcut is not None:
                if first.stride > shortcut.stride:
                    around = _pairs_averaged(h)
                around = convolved(shortcut, around)
            inner = drop(number, convolved(first, h).relu_())
            h = convolved(second, inner).add_(around).relu_()
        return h


def make_network(
    stem: Conv, widths: Sequence[int], kernel: int, *, averages: bool, masked: bool = False
) -> Network:
    """Two blocks per width; `averages`: shortcuts average over time instead of striding."""
    blocks, c_in, taps_first = [], stem.c_out, stem.taps_first
    for stage, channels in enumerate(widths, start=1):
        for number in (1, 2):
            name = f"stage{stage}.block{number}"
            stride = 2 if stage > 1 and number == 1 else 1
            around = None
            if stride > 1 or c_in != channels:
                step = 1 if averages else stride
                around = Conv(f"{name}.shortcut", c_in, channels, 1, step, taps_first)
            first = Conv(f"{name}.first", c_in, channels, kernel, stride, taps_first)
            second = Conv(f"{name}.second", channels, channels, kernel, 1, taps_first)
            blocks.append((first, second, around))
            c_in = channels
    return Network(stem, tuple(blocks), pooled_stem=not averages, masked=masked)


def drawn(keys: Tensor, name: str, shape: tuple[int, ...], fan_in: int) -> Tensor:
    """`keyed_random.symmetric`; nothing is drawn where shapes alone are asked for, without keys."""
    if not len(keys):
        return torch.empty(0, *shape, device=keys.device)
    return keyed_random.symmetric(keys, name, shape, fan_in)


@dataclass(frozen=True)
class Residual(Encoder):
    """A residual network, but for its shape, its start and what follows the feature map."""

    shares_batches: ClassVar[bool] = True
    compiles: ClassVar[bool] = False  # whether torch compiles its training on a GPU

    def __post_init__(self) -> None:
        if self.samples < SHORTEST:
            raise SettingError(
                f"a frame of {self.samples} samples is too short for the encoder {self.name!r}; "
                f"use frames of at least {SHORTEST}"
            )

    @property
    @abstractmethod
    def network(self) -> Network:
        """The same object whenever it is the same network."""

    @abstractmethod
    def pooled(self, h: Tensor, weights: Weights, x: Tensor) -> Tensor:
        """h: (n, steps, channels) of the frames x -> (n, embedding_dim)."""

    def scaled(self, x: Tensor) -> Tensor:
        """Frames as the first convolution sees them."""
        return x

    def parameters(self, keys: Tensor) -> Weights:
        """All uniform: convolutions of `multilead` with He's variance; keys: (members,)."""
        weights = {}
        for conv in self.network.convs:
            name, fan_in = f"{conv.name}.conv.weight", conv.kernel * conv.c_in
            made = drawn(keys, name, conv.shape, fan_in)
            weights[name] = made * HE if self.network.masked else made
            weights[f"{conv.name}.norm.weight"] = torch.ones(len(keys), conv.c_out)
            weights[f"{conv.name}.norm.bias"] = torch.zeros(len(keys), conv.c_out)
        return weights

    def buffers(self, members: int) -> Weights:
        buffers = {}
        for conv in self.network.convs:
            buffers[f"{conv.name}.norm.mean"] = torch.zeros(members, conv.c_out)
            buffers[f"{conv.name}.norm.variance"] = torch.ones(members, conv.c_out)
        return buffers

    def encode(self, weights: Weights, buffers: Weights, x: Tensor) -> Tensor:
        return self._evaluated(weights, buffers, x, self.pooled)

    def feature_map(self, weights: Weights, buffers: Weights, x: Tensor) -> Tensor:
        """(members, n, steps, channels), none negative, as precise as the weights."""
        return self._evaluated(weights, buffers, x, lambda h, weights, x: h)

    def _evaluated(
        self,
        weights: Weights,
        buffers: Weights,
        x: Tensor,
        pooled: Callable[[Tensor, Weights, Tensor], Tensor],
    ) -> Tensor:
        made = []
        for member, own in enumerate(x):
            tensors = _member(weights, [*weights], member)
            both = tensors | _member(buffers, [*buffers], member)
            if len(x) == 1 and not torch.is_grad_enabled():
                folded = _folded_once(self.network, [*weights.values(), *buffers.values()], both)
            else:
                folded = _folded(self.network, both)
            parts = own.split(AT_ONCE) if own.device.type == "cpu" else [own]
            maps = (_feature_map(self.network, folded, self.scaled(part)) for part in parts)
            each = zip(maps, parts, strict=True)
            made.append(torch.cat([pooled(h, tensors, part) for h, part in each]))
        return _stack(made)

    def encode_training(
        self, weights: Weights, buffers: Weights, x: Tensor, keys: Tensor, momentum: float = 0.1
    ) -> tuple[Tensor, Weights]:
        names, statistics = _names(self)
        shared = ranks.is_shared()  # asked here: the compiler cannot
        compiled = self.compiles and is_compiled_for(x) and not shared
        forward = _forward(self, compiled=compiled, shared=shared)
        sizes = _dropped_sizes(self.network, x.shape[1], x.shape[-1]) if self.dropout else []
        z, seen = [], []
        for member, own in enumerate(x):
            key = keys[member : member + 1]
            draws = [
                keyed_random.lanes(keyed_random.fold(key, block), size)
                for block, size in enumerate(sizes, start=1)
            ]
            embedding, now = forward(_member(weights, names, member), own, draws)
            z.append(embedding)
            seen.append(now)
        after = [_stack([now[name] for now in seen]) for name in statistics]
        moved = torch._foreach_lerp([buffers[name] for name in statistics], after, momentum)
        return _stack(z), dict(zip(statistics, moved, strict=True))

    def to_module(self, weights: Weights, buffers: Weights) -> Layers:
        return Layers(self, weights, buffers)


@dataclass(frozen=True)
class ResNet(Residual):
    """A ResNet of 15 convolutions: 69 thousand weights at E = 128, whatever the frame."""

    name: str = "resnet"

    @property
    def network(self) -> Network:
        return _RESNET

    def parameters(self, keys: Tensor) -> Weights:
        """Uniform in ±1/√fan-in, as torch initializes its layers; keys: (members,)."""
        flat, dim = _RESNET.blocks[-1][1].c_out, self.embedding_dim
        linear = {"linear.weight": (flat, dim), "linear.bias": (dim,)}
        return super().parameters(keys) | {
            name: drawn(keys, name, shape, flat) for name, shape in linear.items()
        }

    def pooled(self, h: Tensor, weights: Weights, x: Tensor) -> Tensor:
        linear = weights["linear.weight"], weights["linear.bias"]
        return functional.linear(h.mean(dim=1), linear[0].T, linear[1]).relu()


RESNET = EncoderRow("resnet", ResNet)
_RESNET = make_network(Conv("stem", 1, 16, 15, 4, taps_first=True), (16, 32, 64), 3, averages=False)


class Layers(nn.Module):
    """The network of one member in torch's own layers, in training and in evaluation."""

    def __init__(self, encoder: Residual, weights: Weights, buffers: Weights) -> None:
        super().__init__()
        self._encoder, self._network = encoder, encoder.network
        self.convs = nn.ModuleDict()
        for conv in self._network.convs:
            of_torch = nn.Conv1d(
                conv.c_in, conv.c_out, conv.kernel, conv.stride, conv.kernel // 2, bias=False
            )
            put(of_torch, weight=conv.in_torch_order(weights[f"{conv.name}.conv.weight"][0]))
            norm = batch_norm(
                *(weights[f"{conv.name}.norm.{kind}"][0] for kind in ("weight", "bias")),
                *(buffers[f"{conv.name}.norm.{kind}"][0] for kind in ("mean", "variance")),
            )
            self.convs[_key(conv)] = nn.ModuleDict({"conv": of_torch, "norm": norm})
        more = {k: w[0] for k, w in weights.items() if k in (LEAD_PRESENCE, "linear.weight")}
        self.lead_presence, self.linear = None, None
        if LEAD_PRESENCE in more:
            width, leads = more[LEAD_PRESENCE].shape
            self.lead_presence = nn.Linear(leads, width, bias=False)
            put(self.lead_presence, weight=more[LEAD_PRESENCE])
        else:
            self.linear = nn.Linear(*more["linear.weight"].shape)
            put(self.linear, weight=more["linear.weight"].T, bias=weights["linear.bias"][0])
        self.dropout = nn.Dropout(encoder.dropout)
        of_branch = {k: w[0] for k, w in weights.items() if k.startswith("amplitudes.")}
        self.branch = nn.ParameterDict({k.replace(".", "_"): w for k, w in of_branch.items()})

    def forward(self, x: Tensor) -> Tensor:
        """x: (n, leads, samples), nan where a lead is missing -> (n, embedding_dim)."""
        h = self._network.body(
            self.started(x), self.convolved, lambda block, h: self.dropout(h)
        ).squeeze(2)
        if self.linear is not None:
            return torch.relu(self.linear(h.mean(dim=2)))
        own = {k.replace("_", "."): w for k, w in self.branch.items()}
        return self._encoder.pooled(h.mT, own, x)

    def started(self, x: Tensor) -> Tensor:
        """x: as for `forward` -> (n, channels, 1, steps) after the stem."""
        added, x = None, self._encoder.scaled(x)
        if self.lead_presence is not None:
            missing = x.isnan()
            mask = (~missing[..., 0]).to(x.dtype)
            factor = (x.shape[1] / mask.sum(dim=1).clamp(min=1)).sqrt()
            x = x.masked_fill(missing, 0) * factor[:, None, None]
            added = self.lead_presence(mask)
        return self._network.start(x.unsqueeze(2), added, self.convolved)

    def convolved(self, conv: Conv, h: Tensor, added: Tensor | None = None) -> Tensor:
        own = self.convs[_key(conv)]
        assert isinstance(own, nn.ModuleDict)
        y = own["conv"](h.squeeze(2))
        normed: Tensor = own["norm"](y if added is None else y + added[..., None])
        return normed.unsqueeze(2)


def _key(conv: Conv) -> str:
    return conv.name.replace(".", "_")  # dots cannot be in a module's name


Forward = Callable[[Weights, Tensor, list[Tensor]], tuple[Tensor, Weights]]


@cache
def _forward(encoder: Residual, *, compiled: bool, shared: bool = False) -> Forward:
    network = encoder.network  # looked up here: the compiler cannot

    def forward(weights: Weights, x: Tensor, draws: list[Tensor]) -> tuple[Tensor, Weights]:
        return _trained(encoder, network, weights, x, draws, shared=shared)

    return Compiled(forward) if compiled else forward


@cache
def _names(encoder: Residual) -> tuple[list[str], list[str]]:
    """Of weights and of batch norm's statistics."""
    return list(encoder.parameters(torch.empty(0, dtype=torch.int64))), list(encoder.buffers(0))


def _dropped_sizes(network: Network, n: int, samples: int) -> list[int]:
    """How many numbers each block drops out of, for n frames.

    Random numbers are drawn before the forward pass, so that their 64-bit arithmetic is not
    compiled with it.
    """
    steps, sizes = -(-samples // network.stem.stride) // (2 if network.pooled_stem else 1), []
    for first, _, _ in network.blocks:
        steps = -(-steps // first.stride)
        sizes.append(n * first.c_out * steps)
    return sizes


def _trained(
    encoder: Residual,
    network: Network,
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
    dtype = weights["stem.conv.weight"].dtype

    def normed_together(name: str, y: Tensor) -> Tensor:
        mean, variance, count = ranks.moments(y, [0, 2, 3])
        unbiased = variance * (count / (count - 1).clamp(min=1))
        statistics[f"{name}.mean"] = mean.detach().to(dtype)
        statistics[f"{name}.variance"] = unbiased.detach().to(dtype)
        scale = weights[f"{name}.weight"] * (variance + EPSILON).rsqrt()
        shift = weights[f"{name}.bias"] - mean * scale
        return (y * scale[:, None, None] + shift[:, None, None]).to(y.dtype)

    def convolved(conv: Conv, h: Tensor, added: Tensor | None = None) -> Tensor:
        name, y = f"{conv.name}.norm", _convolve(h, weights[f"{conv.name}.conv.weight"], conv)
        y = y if added is None else y + added.to(y.dtype)[:, :, None, None]
        if shared:
            return normed_together(name, y)
        mean, variance = (torch.zeros(conv.c_out, dtype=dtype, device=y.device) for _ in range(2))
        scale, shift = weights[f"{name}.weight"], weights[f"{name}.bias"]
        # momentum 1: what is written are the statistics of this batch, its variance unbiased
        h = functional.batch_norm(y, mean, variance, scale, shift, True, 1.0, EPSILON)
        statistics[f"{name}.mean"], statistics[f"{name}.variance"] = mean, variance
        return h

    def drop(block: int, h: Tensor) -> Tensor:
        if not encoder.dropout:
            return h
        if network.masked:
            return keyed_random.dropped(h, encoder.dropout, draws[block])
        by_step = keyed_random.dropped(h.permute(0, 2, 3, 1), encoder.dropout, draws[block])
        return by_step.permute(0, 3, 1, 2)

    h, added = _input(network, weights, encoder.scaled(x))
    h = network.run(h, added, convolved, drop)
    return encoder.pooled(h.squeeze(2).to(dtype).transpose(1, 2), weights, x), statistics


def _folded(network: Network, tensors: Weights) -> Weights:
    """Weights, as convolutions read them, and biases that do the work of batch norm, too."""
    folded, filters = {}, network.is_filtered(tensors["stem.conv.weight"])
    for conv in network.convs:
        name, weight = f"{conv.name}.norm", f"{conv.name}.conv.weight"
        scale = tensors[f"{name}.weight"] * (tensors[f"{name}.variance"] + EPSILON).rsqrt()
        along = scale if conv.taps_first else scale[:, None, None]
        kernel = tensors[weight] * along
        if conv is not network.stem and filters:
            width = native.filter_width()
            kernel = functional.pad(
                kernel, (0, -conv.kernel % conv.stride, 0, 0, 0, -conv.c_out % width)
            )
            taps = kernel.unflatten(2, (-1, conv.stride)).unflatten(0, (-1, width))
            of_taps = _filtering(conv.kernel, conv.stride)[1]
            kernel = torch.einsum("pt,boits->pbsio", of_taps, taps).flatten(2, 3).contiguous()
        elif not conv.taps_first:
            kernel = kernel.mT.contiguous().mT
        folded[weight] = kernel
        folded[f"{conv.name}.bias"] = tensors[f"{name}.bias"] - tensors[f"{name}.mean"] * scale
        if conv is network.stem and network.masked:
            folded[LEAD_PRESENCE] = tensors[LEAD_PRESENCE] * scale[:, None]
    return folded


_FOLDED: OrderedDict[tuple[object, ...], tuple[Sequence[Tensor], Weights]] = OrderedDict()


def _folded_once(network: Network, given: Sequence[Tensor], tensors: Weights) -> Weights:
    """`_folded`, kept while these tensors are unchanged: of a model that predicts one by one."""
    versions = ((id(tensor), tensor._version) for tensor in given)
    key: tuple[object, ...] = (network.is_filtered(given[0]), *versions)
    found = _FOLDED.get(key)
    if found is None:
        # the given ones are kept, too, so that no other tensor has their ids
        found = _FOLDED[key] = given, _folded(network, tensors)
        if len(_FOLDED) > _KEPT:
            _FOLDED.popitem(last=False)
    return found[1]


def _feature_map(network: Network, weights: Weights, x: Tensor) -> Tensor:
    """x: (n, leads, samples) or (n, samples) -> (n, steps, channels), by folded weights."""

    def convolved(conv: Conv, h: Tensor, added: Tensor | None = None) -> Tensor:
        weight, bias = weights[f"{conv.name}.conv.weight"], weights[f"{conv.name}.bias"]
        y = _convolve(h, weight, conv, bias, row_stride=2)
        return y if added is None else y.add_(added.to(y.dtype)[:, :, None, None])

    h, added = _input(network, weights, x)
    h = network.start(h, added, convolved)
    if network.is_filtered(weights["stem.conv.weight"]):
        return _filtered(network, weights, h.squeeze(2).mT.contiguous())
    h = network.body(h, convolved, lambda block, h: h)
    return h.squeeze(2).transpose(1, 2).to(weights["stem.conv.weight"].dtype)


def _filtered(network: Network, weights: Weights, h: Tensor) -> Tensor:
    """`Network.body` by minimal filtering: h (n, steps, channels) -> (n, fewer steps, channels)."""
    convs: list[tuple[dict[str, Tensor], int, bool]] = []
    strides = itertools.accumulate((first.stride for first, *_ in network.blocks), operator.mul)
    widths = (first.c_out for first, *_ in network.blocks)
    most = max(-(-h.shape[1] // stride) * c for stride, c in zip(strides, widths, strict=True))
    # a block reads and writes four at most
    places = itertools.cycle(h.new_empty(4, len(h) * most).unbind())

    def convolved(conv: Conv, x: Tensor, stride: int, relu: bool, **added: Tensor) -> Tensor:
        shape = len(x), -(-x.shape[1] // stride), conv.c_out
        y = next(places)[: math.prod(shape)].view(shape)
        of_steps, _, of_products = _filtering(conv.kernel, conv.stride)
        tensors = {"x": x, "y": y, "of_steps": of_steps, "of_products": of_products, **added}
        tensors["kernel"] = weights[f"{conv.name}.conv.weight"]
        tensors["bias"] = weights[f"{conv.name}.bias"]
        convs.append((tensors, stride, relu))
        return y

    for first, second, shortcut in network.blocks:
        inner = convolved(first, h, first.stride, True)
        around = h if shortcut is None else convolved(shortcut, h, first.stride, False)
        h = convolved(second, inner, 1, True, added=around)
    native.filtered(convs)
    return h


def _input(network: Network, weights: Weights, x: Tensor) -> tuple[Tensor, Tensor | None]:
    """x: (n, leads, samples), nan where missing, or (n, samples) -> (n, leads, 1, samples).

    And (n, channels), what tells the stem which leads are present. On a GPU, empty leads follow up
    to a whole number of those that its matrix units take at once. Activations are as precise as x
    on a GPU, whose matrix units gain by it, else as the weights.
    """
    dtype = weights["stem.conv.weight"].dtype
    precision = x.dtype if x.is_cuda else dtype
    if not network.masked:
        return x[:, None, None].to(precision), None
    mask = ~x[..., 0].isnan()
    count = mask.sum(dim=1, keepdim=True).clamp(min=1)
    factor = (mask.shape[1] / count.to(dtype)).sqrt()
    h = torch.where(mask[..., None], x * factor[..., None].to(x.dtype), 0)
    h = h.to(precision).unsqueeze(2)
    if x.is_cuda:
        h = functional.pad(h, (0, 0, 0, 0, 0, -h.shape[1] % WHOLE))
    added = functional.linear(mask.to(dtype), weights[LEAD_PRESENCE])
    return h.contiguous(memory_format=torch.channels_last), added


def _convolve(
    h: Tensor, weight: Tensor, conv: Conv, bias: Tensor | None = None, *, row_stride: int = 1
) -> Tensor:
    """h: (n, c_in, 1, steps), zeros around it -> (n, c_out, 1, ⌈steps / stride⌉).

    There is one row, so that the stride over rows changes nothing but which of torch's kernels is
    used: at 1, in one thread, another for small batches than for large ones, with other rounding.
    """
    weight = conv.in_torch_order(weight)
    if h.shape[1] > weight.shape[1]:
        weight = functional.pad(weight, (0, 0, 0, h.shape[1] - weight.shape[1]))
    kernel = weight.unsqueeze(2).to(h.dtype, memory_format=torch.channels_last)
    bias = None if bias is None else bias.to(h.dtype)
    stride, padding = (row_stride, conv.stride), (0, conv.kernel // 2)
    return functional.conv2d(h, kernel, bias, stride, padding)


@cache
def _filtering(taps: int, stride: int) -> list[Tensor]:
    """By which it multiplies steps (SIZE, SIZE), taps (SIZE, taps) and products (at once, SIZE)."""
    if taps == 1:  # a plain product
        return [torch.eye(SIZE), torch.eye(1), torch.eye(1, SIZE)]
    taps = -(-taps // stride)
    of_steps, scale = np.zeros((SIZE, SIZE)), np.ones((SIZE, 1))
    for row, point in enumerate(POINTS):
        others = np.poly([other for other in POINTS if other != point])
        of_steps[row, :-1], scale[row] = others[::-1], np.polyval(others, point)
    of_steps[-1] = np.poly(POINTS)[::-1]
    of_kernel, of_products = (
        np.vstack([np.vander(POINTS, count, increasing=True), np.eye(count)[-1:]])
        for count in (taps, SIZE + 1 - taps)
    )
    made = (of_steps, of_kernel / scale, of_products.T)
    return [torch.from_numpy(one.copy()).float() for one in made]


def _pairs_averaged(h: Tensor) -> Tensor:
    """Means of two steps each; of an odd number of steps, the last one stays.

    Not `ceil_mode`: compiled by torch 2.11 or 2.13, its gradient halves that of the last step.
    """
    if h.shape[-1] % 2:
        h = torch.cat((h, h[..., -1:]), dim=-1)
    return functional.avg_pool2d(h, (1, 2))


def _member(tensors: Weights, names: list[str], member: int) -> Weights:
    """One member's own of these; of a single one, views whose gradient costs nothing."""
    own = {name: tensors[name] for name in names}
    if len(own[names[0]]) == 1:
        return {name: tensor.squeeze(0) for name, tensor in own.items()}
    return {name: tensor[member] for name, tensor in own.items()}


def _stack(own: list[Tensor]) -> Tensor:
    return own[0].unsqueeze(0) if len(own) == 1 else torch.stack(own)
