"""The block of the paper's CNN for many members: in torch, and on a CPU in compiled C (`block.c`).

Both compute the same function as `layers_triton` on a GPU: convolution, batch norm, ReLU, max-pool
and, except in torch, dropout. In C, one instance stays in the processor's cache from convolution
to statistics, and from d_y to the gradients; results do not depend on the number of threads.

Activations are (members, n, length, channels): with channels last the values under a kernel are
adjacent in memory, so a convolution is one strided copy and one batched matrix product for all
members. In torch the gradient is written out because half of what autograd would do here is not
needed:

- Batch norm is a scale and a shift per channel. With the sign of γ moved into the kernel the scale
  is never negative, so pooling commutes with it and with ReLU, and comes first, on half the
  elements.
- The backward of a strided view scatters element by element; a kernel of 7 at stride 3 touches
  blocks of 3, 3 and 1 samples, so three shifted additions do.

Within `collectives.sharing`, the statistics in torch are those of all processes.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from clocs.kernels import collectives
from clocs.kernels.native import c_struct, compiled_library

KERNEL, STRIDE, POOL = 7, 3, 2
EPSILON = 1e-5
_PIECE = 16  # instances, as in block.c
_NativeArguments = c_struct(  # as in block.c
    int64=("members", "n", "length", "h_stride", "threads", "threshold"),
    float32=("boost", "epsilon"),
    pointers=(
        "h", "w", "w_turned", "gamma", "beta", "keys", "y", "o", "mean", "variance", "deviation",
        "scale", "shift", "g", "dh", "dw", "dgamma", "dbeta", "sums", "parts", "scratch",
    ),
)  # fmt: skip


def convolved(length: int) -> int:
    """Steps that the kernel makes over `length` samples."""
    return (length - KERNEL) // STRIDE + 1 if length >= KERNEL else 0


def torch_block_eval(h: Tensor, weight: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """The block with a given scale and shift per channel, (members, c_out) each."""
    y = torch.bmm(_windows(h.to(weight.dtype)), weight * _sign(scale)[:, None])
    y = _pool(y.view(*h.shape[:2], convolved(h.shape[2]), weight.shape[2]))[0]
    return torch.relu(y * scale.abs()[:, None, None] + shift[:, None, None]).to(h.dtype)


class TorchBlock(torch.autograd.Function):
    """h, weight, gamma, beta -> output, batch mean, batch variance."""

    @staticmethod
    def forward(
        ctx: Any, h: Tensor, weight: Tensor, gamma: Tensor, beta: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        members, n, length, _ = h.shape
        sign = _sign(gamma)
        windows = _windows(h)
        y = torch.bmm(windows, weight * sign[:, None])  # (members, n·out, c_out)
        ctx.shared, ctx.count = collectives.is_shared(), y.shape[1]
        if ctx.shared:
            mean, variance, ctx.count = collectives.moments(y, [1])
            y -= mean[:, None]
        else:
            mean = y.mean(dim=1)
            y -= mean[:, None]
            variance = y.square().mean(dim=1)
        deviation = (variance + EPSILON).rsqrt()
        pooled, first = _pool(y.view(members, n, convolved(length), y.shape[2]))
        scale = gamma.abs() * deviation
        out = torch.relu(pooled * scale[:, None, None] + beta[:, None, None])
        ctx.save_for_backward(windows, weight, gamma, y, deviation, pooled, first, out)
        ctx.shape = h.shape
        mean = mean * sign
        ctx.mark_non_differentiable(mean, variance)
        return out, mean, variance

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor, Tensor, Tensor]:
        windows, weight, gamma, y, deviation, pooled, first, out = ctx.saved_tensors
        members, n, length, channels = ctx.shape
        sign = _sign(gamma)
        g = gradients[0] * (out > 0)
        d_beta = g.sum(dim=(1, 2))
        d_gamma = (g * pooled).sum(dim=(1, 2)) * deviation
        scale = gamma.abs() * deviation
        # batch norm: every element's gradient through the mean and the variance …
        sums: Sequence[Tensor] = (d_beta, d_gamma)
        if ctx.shared:  # … to which the others' elements contribute
            sums = collectives.summed(torch.stack((d_beta, d_gamma))).unbind()
        d_y = torch.addcmul(
            (-scale * sums[0] / ctx.count)[:, None],
            y,
            (-scale * deviation * sums[1] / ctx.count)[:, None],
        )
        # … and that of the larger of each two through the pooling
        g = g * scale[:, None, None]
        half = g.shape[2]
        pairs = d_y.view(members, n, convolved(length), y.shape[2])[:, :, : half * POOL]
        pairs = pairs.unflatten(2, (half, POOL))
        to_first = g * first
        pairs[:, :, :, 0] += to_first
        pairs[:, :, :, 1] += g - to_first
        d_weight = _products(windows, d_y, n) * sign[:, None]
        d_h = None
        if ctx.needs_input_grad[0]:
            d_windows = torch.bmm(d_y, (weight * sign[:, None]).transpose(1, 2))
            d_h = _fold(d_windows, n, length, channels)
        return d_h, d_weight, d_gamma * sign, d_beta


def _sign(gamma: Tensor) -> Tensor:
    return torch.where(gamma < 0, -1, 1).to(gamma.dtype)


def _products(windows: Tensor, d_y: Tensor, n: int) -> Tensor:
    """Σ over rows of windows × d_y: (members, rows, k), (members, rows, c) -> (members, k, c).

    On a GPU a long, thin product leaves most of the chip idle, so it is split and summed.
    """
    if not windows.is_cuda or not n:
        return torch.bmm(windows.transpose(1, 2), d_y)
    pieces = math.gcd(n, 64)
    k, c = windows.shape[2], d_y.shape[2]
    many = torch.bmm(
        windows.view(-1, windows.shape[1] // pieces, k).transpose(1, 2),
        d_y.view(-1, d_y.shape[1] // pieces, c),
    )
    return many.view(-1, pieces, k, c).sum(dim=1)


def _windows(h: Tensor) -> Tensor:
    """(members, n, length, c) -> (members, n·out, 7·c): the values under each kernel."""
    members, n, length, channels = h.shape
    out = convolved(length)
    windows = h.contiguous().as_strided(
        (members, n, out, KERNEL * channels),
        (n * length * channels, length * channels, STRIDE * channels, 1),
    )
    return windows.reshape(members, n * out, KERNEL * channels)


def _fold(windows: Tensor, n: int, length: int, channels: int) -> Tensor:
    """The transpose of `_windows`: every value added back to the sample it came from."""
    out, block = convolved(length), STRIDE * channels
    windows = windows.view(len(windows), n, out, KERNEL * channels)
    h = windows.new_zeros(len(windows), n, out + 2, block)
    h[:, :, :out] = windows[..., :block]
    h[:, :, 1:-1] += windows[..., block : 2 * block]
    h[:, :, 2:, :channels] += windows[..., 2 * block :]
    h = h.view(len(windows), n, (out + 2) * STRIDE, channels)[:, :, :length]
    return torch.nn.functional.pad(h, (0, 0, 0, length - h.shape[2]))


def _pool(y: Tensor) -> tuple[Tensor, Tensor]:
    """The larger of each two along the length, and whether it is the first of them."""
    half = y.shape[2] // POOL
    pairs = y[:, :, : half * POOL].unflatten(2, (half, POOL))
    first, second = pairs[:, :, :, 0], pairs[:, :, :, 1]
    return torch.maximum(first, second), first >= second


def can_use_native_block(h: Tensor, weight: Tensor) -> bool:
    """Whether compiled code can compute this block: by device, type and shape alone."""
    return (
        h.device.type == "cpu"
        and h.dtype == weight.dtype == torch.float32
        and weight.shape[2] % 4 == 0
        and h.shape[1] > 0
        and convolved(h.shape[2]) >= POOL
        and _library(h, weight) is not None
    )


class NativeBlock(torch.autograd.Function):
    """h, weight, gamma, beta, keys, dropout -> output, batch mean, batch variance."""

    @staticmethod
    def forward(
        ctx: Any,
        h: Tensor,
        weight: Tensor,
        gamma: Tensor,
        beta: Tensor,
        keys: Tensor,
        dropout: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        h, weight, keys = _packed(h), weight.contiguous(), keys.contiguous()
        members, n, length, _ = h.shape
        out, c_out = convolved(length), weight.shape[2]
        y, o = h.new_empty(members, n, out, c_out), h.new_empty(members, n, out // POOL, c_out)
        mean, variance, deviation, scale, shift = h.new_empty(5, members, c_out)
        given = {"gamma": gamma.contiguous(), "beta": beta.contiguous(), "keys": keys}
        made = {"deviation": deviation, "scale": scale, "shift": shift, "mean": mean}
        _call("forward", h, weight, dropout, y=y, o=o, variance=variance, **given, **made)
        ctx.save_for_backward(h, weight, y, o, *made.values())
        ctx.dropout = dropout
        ctx.mark_non_differentiable(mean, variance)
        return o, mean, variance

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        h, weight, y, o, deviation, scale, shift, mean = ctx.saved_tensors
        members, n, _, _ = h.shape
        d_weight, d_gamma, d_beta = (
            torch.empty_like(x, memory_format=torch.contiguous_format)
            for x in (weight, scale, scale)
        )
        d_h = None
        if ctx.needs_input_grad[0]:
            d_h = torch.empty_like(h, memory_format=torch.contiguous_format)
        _call(
            "backward", h, weight, ctx.dropout, y=y, o=o, deviation=deviation, scale=scale,
            shift=shift, mean=mean, g=gradients[0].contiguous(), dh=d_h, dw=d_weight,
            dgamma=d_gamma, dbeta=d_beta, w_turned=weight.transpose(1, 2).contiguous(),
            parts=y.new_empty(members, -(-n // _PIECE), *weight.shape[1:]),
        )  # fmt: skip
        return d_h, d_weight, d_gamma, d_beta, None, None


def native_block_eval(h: Tensor, weight: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """The block with a given scale and shift per channel, (members, c_out) each."""
    h, weight = _packed(h), weight.contiguous()
    members, n, length, _ = h.shape
    o = h.new_empty(members, n, convolved(length) // POOL, weight.shape[2])
    _call("evaluate", h, weight, 0.0, o=o, scale=scale.contiguous(), shift=shift.contiguous())
    return o


def _call(name: str, h: Tensor, weight: Tensor, dropout: float, **tensors: Tensor | None) -> None:
    library = _library(h, weight)
    assert library is not None  # `can_use_native_block` has checked
    members, n, length, _ = h.shape
    c_out, threads = weight.shape[2], torch.get_num_threads()
    threshold = round(dropout * 65536)
    tensors |= {
        "h": h,
        "w": weight,
        "sums": h.new_empty(members, n, 2, c_out),
        "scratch": h.new_empty(threads, convolved(length) + 4, c_out),
    }
    given = _NativeArguments(
        members=members,
        n=n,
        length=length,
        h_stride=h.stride(0),
        threads=threads,
        threshold=threshold,
        boost=65536 / (65536 - threshold),
        epsilon=EPSILON,
        **{k: v.data_ptr() for k, v in tensors.items() if v is not None},
    )
    getattr(library, name)(ctypes.byref(given))


def _library(h: Tensor, weight: Tensor) -> ctypes.CDLL | None:
    assert weight.shape[1] == KERNEL * h.shape[3] and STRIDE == 3  # as block.c has it
    return compiled_library("block", f"C_IN={h.shape[3]}", f"C_OUT={weight.shape[2]}")


def _packed(h: Tensor) -> Tensor:
    """Each member's activations contiguous; members may share them (`expand`)."""
    return h if h[0].is_contiguous() else h.contiguous()
