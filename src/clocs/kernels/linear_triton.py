"""A linear layer with ReLU on a GPU, and its gradient, made of Triton kernels.

Imported only where there is a GPU, or by tests in Triton's interpreter.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from clocs.kernels.block_triton import added

# rows, columns and steps that a program works on; measured on an H200
FORWARD, WEIGHTS, INPUTS = (32, 64, 32), (64, 64, 32), (64, 64, 32)
PART = 128  # rows of the batch that a program of the weights' gradient adds up, at least
PARTS = 8  # that this gradient is added up from, at most


class LinearReLU(torch.autograd.Function):
    """h: (members, n, c_in), weight: (members, c_in, c_out), bias -> (members, n, c_out).

    Activations may be bfloat16; the result is as precise as the weights.
    """

    @staticmethod
    def forward(ctx: Any, h: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        h, weight, bias = h.contiguous(), weight.contiguous(), bias.contiguous()
        members, n, c_in = h.shape
        c_out = weight.shape[2]
        z = weight.new_empty(members, n, c_out)
        grid = triton.cdiv(n, FORWARD[0]), triton.cdiv(c_out, FORWARD[1]), members
        _forward[grid](h, weight, bias, z, n, c_in, c_out, *FORWARD)
        ctx.save_for_backward(h, weight, z)
        return z

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
        h, weight, z = ctx.saved_tensors
        members, n, c_in = h.shape
        c_out = weight.shape[2]
        g = gradients[0].contiguous()
        parts = min(PARTS, triton.cdiv(n, PART))
        # the weights' gradient and, after it, the bias's
        sums = weight.new_empty(members, parts, c_in + 1, c_out)
        tiles = triton.cdiv(c_in, WEIGHTS[0]) * triton.cdiv(c_out, WEIGHTS[1])
        _weights[(tiles, parts, members)](h, g, z, sums, n, c_in, c_out, *WEIGHTS)
        slopes = added(sums)
        d_h = None
        if ctx.needs_input_grad[0]:
            d_h = torch.empty_like(h)
            grid = triton.cdiv(n, INPUTS[0]), triton.cdiv(c_in, INPUTS[1]), members
            _inputs[grid](g, z, weight, d_h, n, c_in, c_out, *INPUTS)
        return d_h, slopes[:, :c_in], slopes[:, c_in]


@triton.jit
def _forward(
    h, w, bias, z, n, c_in: tl.constexpr, c_out: tl.constexpr,
    rows: tl.constexpr, columns: tl.constexpr, step: tl.constexpr,
):  # fmt: skip
    member = tl.program_id(2).to(tl.int64)
    i = tl.program_id(0) * rows + tl.arange(0, rows)
    c = tl.program_id(1) * columns + tl.arange(0, columns)
    start_h, start_w = h + member * n * c_in, w + member * c_in * c_out
    total = tl.zeros([rows, columns], tl.float32)
    for start in range(0, c_in, step):
        k = start + tl.arange(0, step)
        ok = (i < n)[:, None] & (k < c_in)[None, :]
        x = tl.load(start_h + i[:, None] * c_in + k[None, :], mask=ok, other=0.0)
        ok = (k < c_in)[:, None] & (c < c_out)[None, :]
        weight = tl.load(start_w + k[:, None] * c_out + c[None, :], mask=ok, other=0.0)
        total = tl.dot(x, weight.to(x.dtype), total, input_precision="tf32x3")
    total += tl.load(bias + member * c_out + c, mask=c < c_out, other=0.0)[None, :]
    total = tl.where(total < 0.0, 0.0, total)  # what is no number stays none
    at = (member * n + i)[:, None] * c_out + c[None, :]
    tl.store(z + at, total, mask=(i < n)[:, None] & (c < c_out)[None, :])


@triton.jit
def _through(g, z, at, ok):
    """The gradient before ReLU."""
    slope = tl.load(g + at, mask=ok, other=0.0)
    return tl.where(tl.load(z + at, mask=ok, other=0.0) > 0.0, slope, 0.0)


@triton.jit
def _weights(
    h, g, z, sums, n: tl.constexpr, c_in: tl.constexpr, c_out: tl.constexpr,
    rows: tl.constexpr, columns: tl.constexpr, step: tl.constexpr,
):  # fmt: skip
    """The gradient of weights and bias through some of the batch's rows."""
    part, parts, member = tl.program_id(1), tl.num_programs(1), tl.program_id(2).to(tl.int64)
    across: tl.constexpr = (c_out + columns - 1) // columns
    k = tl.program_id(0) // across * rows + tl.arange(0, rows)
    c = tl.program_id(0) % across * columns + tl.arange(0, columns)
    total = tl.zeros([rows, columns], tl.float32)
    bias = tl.zeros([columns], tl.float32)
    length = tl.cdiv(tl.cdiv(n, step), parts) * step
    for start in range(part * length, tl.minimum((part + 1) * length, n), step):
        i = start + tl.arange(0, step)
        ok = (k < c_in)[:, None] & (i < n)[None, :]
        x = tl.load(h + (member * n + i)[None, :] * c_in + k[:, None], mask=ok, other=0.0)
        at = (member * n + i)[:, None] * c_out + c[None, :]
        slope = _through(g, z, at, (i < n)[:, None] & (c < c_out)[None, :])
        total = tl.dot(x, slope.to(x.dtype), total, input_precision="tf32x3")
        bias += tl.sum(slope, axis=0)
    place = (member * parts + part) * (c_in + 1)
    at = (place + k)[:, None] * c_out + c[None, :]
    tl.store(sums + at, total, mask=(k < c_in)[:, None] & (c < c_out)[None, :])
    if tl.program_id(0) // across == 0:
        tl.store(sums + (place + c_in) * c_out + c, bias, mask=c < c_out)


@triton.jit
def _inputs(
    g, z, w, dh, n, c_in: tl.constexpr, c_out: tl.constexpr,
    rows: tl.constexpr, columns: tl.constexpr, step: tl.constexpr,
):  # fmt: skip
    member = tl.program_id(2).to(tl.int64)
    i = tl.program_id(0) * rows + tl.arange(0, rows)
    k = tl.program_id(1) * columns + tl.arange(0, columns)
    total = tl.zeros([rows, columns], tl.float32)
    for start in range(0, c_out, step):
        c = start + tl.arange(0, step)
        at = (member * n + i)[:, None] * c_out + c[None, :]
        slope = _through(g, z, at, (i < n)[:, None] & (c < c_out)[None, :])
        ok = (c < c_out)[:, None] & (k < c_in)[None, :]
        weight = tl.load(w + (member * c_in + k)[None, :] * c_out + c[:, None], mask=ok, other=0.0)
        slope = slope.to(dh.dtype.element_ty)
        total = tl.dot(slope, weight.to(slope.dtype), total, input_precision="tf32x3")
    at = (member * n + i)[:, None] * c_in + k[None, :]
    tl.store(dh + at, total, mask=(i < n)[:, None] & (k < c_in)[None, :])
