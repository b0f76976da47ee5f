"""One block of the paper's encoder: convolution, batch norm, ReLU, max-pool, with its gradient.

Activations are (members, n, length, channels): with channels last the values under a kernel lie
side by side, so that a convolution is one strided copy and one batched matrix product for all
members. The gradient is written out because half of what autograd would do here is not needed:

- Batch norm is a scale and a shift a channel. With the sign of γ moved into the kernel the scale is
  never negative, so pooling commutes with it and with ReLU, and comes first, on half the elements.
- The backward of a strided view scatters element by element; a kernel of 7 at stride 3 touches
  blocks of 3, 3 and 1 samples, so three shifted additions do.

`plain_block` is the same function in ordinary torch, for the tests.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from clocs import keyed_random
from clocs.kernels import triton_support

KERNEL, STRIDE, POOL = 7, 3, 2
EPSILON = 1e-5


def convolved(length: int) -> int:
    """How many steps a kernel makes over `length` samples."""
    return (length - KERNEL) // STRIDE + 1 if length >= KERNEL else 0


def conv_block(
    h: Tensor, weight: Tensor, gamma: Tensor, beta: Tensor, keys: Tensor, dropout: float
) -> tuple[Tensor, Tensor, Tensor]:
    """A block in training mode, normalised by the batch's own statistics.

    Args:
        h: (members, n, length, c_in); activations may be of a lower precision than weights.
        weight: (members, 7·c_in, c_out), the kernel's samples before its channels.
        gamma: (members, c_out), batch norm's scale.
        beta: (members, c_out), batch norm's shift.
        keys: (members,) of the dropout.
        dropout: Its probability.

    Returns:
        (members, n, out // 2, c_out), and the batch's mean and (biased) variance, (members, c_out).
    """
    if triton_support.serves(h, h.dtype):
        from clocs.kernels.block_triton import FusedBlock

        fuse: Callable[..., tuple[Tensor, Tensor, Tensor]] = FusedBlock.apply
        return fuse(h, weight, gamma, beta, keys, dropout)
    if compiled(h, weight):
        from clocs.kernels.block_native import NativeBlock

        native: Callable[..., tuple[Tensor, Tensor, Tensor]] = NativeBlock.apply
        return native(h, weight, gamma, beta, keys, dropout)
    block: Callable[..., tuple[Tensor, Tensor, Tensor]] = _Block.apply
    # without matrix units for it, lower precision is a way to round: arithmetic stays as it is
    out, mean, variance = block(h.to(weight.dtype), weight, gamma, beta)
    out = keyed_random.dropout(out, dropout, keys) if dropout else out
    return out.to(h.dtype), mean, variance


def conv_block_eval(
    h: Tensor, weight: Tensor, gamma: Tensor, beta: Tensor, mean: Tensor, variance: Tensor
) -> Tensor:
    """The same block normalised by given statistics, without dropout."""
    scale = gamma * (variance + EPSILON).rsqrt()
    shift = beta - mean * scale
    if triton_support.serves(h, h.dtype):
        from clocs.kernels.block_triton import fused_block_eval

        return fused_block_eval(h, weight, scale, shift)
    learning = torch.is_grad_enabled() and any(x.requires_grad for x in (h, weight, scale, shift))
    if not learning and compiled(h, weight):
        from clocs.kernels.block_native import native_block_eval

        return native_block_eval(h, weight, scale, shift)
    y = torch.bmm(_windows(h.to(weight.dtype)), weight * _sign(scale)[:, None])
    y = _pool(y.view(*h.shape[:2], convolved(h.shape[2]), -1))[0]
    return torch.relu(y * scale.abs()[:, None, None] + shift[:, None, None]).to(h.dtype)


def compiled(h: Tensor, weight: Tensor) -> bool:
    """Whether compiled C serves: on a CPU with a C compiler, for float32."""
    from clocs.kernels.block_native import serves

    return serves(h, weight)


def kernel(device: torch.device, dtype: torch.dtype = torch.float32) -> str:
    """Which code does the paper's blocks there: 'triton', 'native' (compiled C) or 'torch'."""
    h = torch.empty(1, 1, 13, 1, dtype=dtype, device=device)
    if triton_support.serves(h, dtype):
        return "triton"
    return "native" if compiled(h, torch.empty(1, KERNEL, 4, device=device)) else "torch"


def plain_block(
    h: Tensor, weight: Tensor, gamma: Tensor, beta: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The slow twin of `conv_block`: the paper's layers one after the other, by autograd."""
    y = torch.bmm(_windows(h), weight).view(*h.shape[:2], convolved(h.shape[2]), -1)
    variance, mean = torch.var_mean(y, dim=(1, 2), correction=0)
    normal = (y - mean[:, None, None]) * (variance + EPSILON).rsqrt()[:, None, None]
    rectified = torch.relu(normal * gamma[:, None, None] + beta[:, None, None])
    half = rectified.shape[2] // POOL
    pooled = rectified[:, :, : half * POOL].unflatten(2, (half, POOL)).amax(dim=3)
    return pooled, mean, variance


class _Block(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, h: Tensor, weight: Tensor, gamma: Tensor, beta: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        members, n, length, _ = h.shape
        sign = _sign(gamma)
        windows = _windows(h)
        y = torch.bmm(windows, weight * sign[:, None])  # (members, n·out, c_out)
        mean = y.mean(dim=1)
        y -= mean[:, None]
        variance = y.square().mean(dim=1)
        deviation = (variance + EPSILON).rsqrt()
        pooled, first = _pool(y.view(members, n, convolved(length), -1))
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
        # batch norm: what every element gets through the mean and the variance …
        d_y = torch.addcmul(
            (-scale * d_beta / y.shape[1])[:, None],
            y,
            (-scale * deviation * d_gamma / y.shape[1])[:, None],
        )
        # … and what the larger of each two gets besides
        g = g * scale[:, None, None]
        half = g.shape[2]
        pairs = d_y.view(members, n, convolved(length), -1)[:, :, : half * POOL]
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

    On a GPU a long, thin product leaves most of the chip idle, so it is cut into many, then summed.
    """
    if not windows.is_cuda:
        return torch.bmm(windows.transpose(1, 2), d_y)
    pieces = math.gcd(n, 64)
    k, c = windows.shape[2], d_y.shape[2]
    many = torch.bmm(
        windows.view(-1, windows.shape[1] // pieces, k).transpose(1, 2),
        d_y.view(-1, d_y.shape[1] // pieces, c),
    )
    return many.view(-1, pieces, k, c).sum(dim=1)


def _windows(h: Tensor) -> Tensor:
    """(members, n, length, c) -> (members, n·out, 7·c): what lies under the kernel at each step."""
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
    windows = windows.view(-1, n, out, KERNEL * channels)
    h = windows.new_zeros(len(windows), n, out + 2, block)
    h[:, :, :out] = windows[..., :block]
    h[:, :, 1:-1] += windows[..., block : 2 * block]
    h[:, :, 2:, :channels] += windows[..., 2 * block :]
    h = h.view(len(windows), n, -1, channels)[:, :, :length]
    return torch.nn.functional.pad(h, (0, 0, 0, length - h.shape[2]))


def _pool(y: Tensor) -> tuple[Tensor, Tensor]:
    """The larger of each two along the length, and whether it is the first of them."""
    half = y.shape[2] // POOL
    pairs = y[:, :, : half * POOL].unflatten(2, (half, POOL))
    first, second = pairs[:, :, :, 0], pairs[:, :, :, 1]
    return torch.maximum(first, second), first >= second
