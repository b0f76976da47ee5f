"""A linear layer with ReLU on a GPU, and its gradient: three Triton kernels.

Imported only where there is a GPU, or by tests in Triton's interpreter.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor


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
        _forward[(triton.cdiv(n, 32), triton.cdiv(c_out, 64), members)](
            h, weight, bias, z, n, c_in, c_out, 32, 64, 32
        )
        ctx.save_for_backward(h, weight, z)
        return z

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
        h, weight, z = ctx.saved_tensors
        members, n, c_in = h.shape
        c_out = weight.shape[2]
        g = gradients[0].contiguous()
        d_weight, d_bias = torch.empty_like(weight), weight.new_empty(members, c_out)
        _weights[(triton.cdiv(c_in, 32), triton.cdiv(c_out, 64), members)](
            h, g, z, d_weight, d_bias, n, c_in, c_out, 32, 64, 32
        )
        d_h = None
        if ctx.needs_input_grad[0]:
            d_h = torch.empty_like(h)
            _inputs[(triton.cdiv(n, 64), triton.cdiv(c_in, 64), members)](
                g, z, weight, d_h, n, c_in, c_out, 64, 64, 32
            )
        return d_h, d_weight, d_bias


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
    h, g, z, dw, db, n: tl.constexpr, c_in: tl.constexpr, c_out: tl.constexpr,
    rows: tl.constexpr, columns: tl.constexpr, step: tl.constexpr,
):  # fmt: skip
    member = tl.program_id(2).to(tl.int64)
    k = tl.program_id(0) * rows + tl.arange(0, rows)
    c = tl.program_id(1) * columns + tl.arange(0, columns)
    total = tl.zeros([rows, columns], tl.float32)
    sums = tl.zeros([columns], tl.float32)
    for start in range(0, n, step):
        i = start + tl.arange(0, step)
        ok = (k < c_in)[:, None] & (i < n)[None, :]
        x = tl.load(h + (member * n + i)[None, :] * c_in + k[:, None], mask=ok, other=0.0)
        at = (member * n + i)[:, None] * c_out + c[None, :]
        slope = _through(g, z, at, (i < n)[:, None] & (c < c_out)[None, :])
        total = tl.dot(x, slope.to(x.dtype), total, input_precision="tf32x3")
        sums += tl.sum(slope, axis=0)
    at = (member * c_in + k)[:, None] * c_out + c[None, :]
    tl.store(dw + at, total, mask=(k < c_in)[:, None] & (c < c_out)[None, :])
    if tl.program_id(0) == 0:
        tl.store(db + member * c_out + c, sums, mask=c < c_out)


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
