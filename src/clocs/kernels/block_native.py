"""The paper's block on a CPU: the same function as `block_torch`, in compiled C (`block.c`).

One instance stays in the processor's cache from convolution to statistics, and from d_y to the
gradients. Results do not depend on the number of threads.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from clocs.kernels.block_torch import EPSILON, KERNEL, POOL, STRIDE, convolved
from clocs.kernels.compiler import c_struct, compiled_library

_PIECE = 16  # instances, as in block.c
_Block = c_struct(  # as in block.c
    int64=("members", "n", "length", "h_stride", "threads", "threshold"),
    float32=("boost", "epsilon"),
    pointers=(
        "h", "w", "w_turned", "gamma", "beta", "keys", "y", "o", "mean", "variance", "deviation",
        "scale", "shift", "g", "dh", "dw", "dgamma", "dbeta", "sums", "parts", "scratch",
    ),
)  # fmt: skip


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
    given = _Block(
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
