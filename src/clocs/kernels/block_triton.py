"""The paper's block on a GPU: the same function as `block_torch`, made of Triton kernels.

Imported only where there is a GPU.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from clocs.kernels import block_triton_kernels as kernels
from clocs.kernels.block_torch import EPSILON, KERNEL, POOL, STRIDE, convolved

ROWS = 128  # positions a program works on at a time


class TritonBlock(torch.autograd.Function):
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
        h, weight = h.contiguous(), weight.contiguous()
        y, sums = _convolved(h, weight)
        members, blocks, _, c_out = sums.shape
        mean, variance, deviation, scale, shift = weight.new_empty(5, members, c_out)
        kernels.statistics[(members,)](
            sums, gamma.contiguous(), beta.contiguous(), mean, variance, deviation, scale, shift,
            blocks, y.shape[1] * y.shape[2], EPSILON, c_out, triton.next_power_of_2(blocks),
        )  # fmt: skip
        o = _pooled(y, scale, shift, keys, dropout)
        ctx.save_for_backward(h, weight, y, mean, deviation, scale, shift, keys)
        ctx.threshold, ctx.boost = _dropping(dropout)
        ctx.mark_non_differentiable(mean, variance)
        return o, mean, variance

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        h, weight, y, mean, deviation, scale, shift, keys = ctx.saved_tensors
        members, n, length, c_in = h.shape
        out, c_out = y.shape[2], y.shape[3]
        half, rows = out // POOL, n * out
        g = gradients[0].contiguous()
        dropping = (ctx.threshold, ctx.boost)
        blocks, repeat = _programs(n * half, members)
        sums = weight.new_empty(members, blocks, 2, c_out)
        kernels.sums[(blocks, members)](
            g, y, scale, shift, mean, deviation, keys, sums, n, out, half, *dropping, blocks,
            c_out, ROWS, repeat, ctx.threshold > 0,
        )  # fmt: skip
        d_gamma, d_beta, constant, slope = weight.new_empty(4, members, c_out)
        kernels.slopes[(members,)](
            sums, mean, deviation, scale, d_gamma, d_beta, constant, slope, blocks, rows, c_out,
            triton.next_power_of_2(blocks),
        )  # fmt: skip
        d_y = torch.empty_like(y)
        total = n * ((out + 1) // 2) * c_out
        kernels.spread[(triton.cdiv(total, 1024), members)](
            g, y, scale, shift, constant, slope, keys, d_y, n, out, half, total, *dropping,
            c_out, 1024, ctx.threshold > 0,
        )  # fmt: skip
        blocks, repeat = _programs(rows, members)
        parts = weight.new_empty(members, blocks, KERNEL * c_in, c_out)
        if c_in == 1:
            kernels.first_weights[(blocks, members)](
                h, d_y, parts, length, out, rows, blocks, c_out, ROWS, repeat
            )
        else:
            pads = _padded(KERNEL * c_in), _padded(c_out)
            kernels.weights[(blocks, members)](
                h, d_y, parts, length, out, rows, blocks, c_in, c_out, *pads, ROWS, repeat
            )
        d_h = None
        if ctx.needs_input_grad[0]:
            d_h = torch.empty_like(h)
            thirds = -(-length // STRIDE)
            kernels.inputs[(triton.cdiv(n * thirds, ROWS), members, STRIDE)](
                d_y, weight, d_h, length, out, thirds, n * thirds, c_in, c_out, _padded(c_in), ROWS
            )
        return d_h, parts.sum(dim=1), d_gamma, d_beta, None, None


def triton_block_eval(h: Tensor, weight: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """The block with a given scale and shift per channel, (members, c_out) each."""
    h, weight = h.contiguous(), weight.contiguous()
    y, _ = _convolved(h, weight)
    return _pooled(y, scale.contiguous(), shift.contiguous(), keys=None, dropout=0.0)


def _convolved(h: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """(members, n, out, c_out), and its (members, blocks, 2, c_out) partial sums and squares."""
    members, n, length, c_in = h.shape
    c_out, out = weight.shape[2], convolved(length)
    rows = n * out
    y = h.new_empty(members, n, out, c_out)
    blocks, repeat = _programs(rows, members)
    sums = weight.new_empty(members, blocks, 2, c_out)
    pads = _padded(KERNEL * c_in), c_out if c_in == 1 else _padded(c_out)
    kernels.convolve[(blocks, members)](
        h, weight, y, sums, length, out, rows, blocks, c_in, c_out, *pads, ROWS, repeat
    )
    return y, sums


def _pooled(y: Tensor, scale: Tensor, shift: Tensor, keys: Tensor | None, dropout: float) -> Tensor:
    members, n, out, c_out = y.shape
    half = out // POOL
    threshold, boost = _dropping(dropout)
    o = y.new_empty(members, n, half, c_out)
    total = n * half * c_out
    kernels.pool[(triton.cdiv(total, 1024), members)](
        y, scale, shift, keys if keys is not None else y, o, out, half, total, threshold, boost,
        c_out, 1024, dropout > 0,
    )  # fmt: skip
    return o


def _dropping(dropout: float) -> tuple[int, float]:
    threshold = round(dropout * 65536)
    return threshold, 65536 / (65536 - threshold)


def _padded(size: int) -> int:
    """Matrix products need powers of two from 16."""
    return max(16, int(triton.next_power_of_2(size)))


def _programs(rows: int, members: int) -> tuple[int, int]:
    """Programs per member, and repetitions of each, so that there are few partial sums."""
    tiles = -(-rows // ROWS)
    wanted = max(1, 1056 // members)  # eight programs on each of 132 multiprocessors
    repeat = max(1, -(-tiles // wanted))
    return -(-tiles // repeat), repeat
