"""BYOL's loss on a GPU, and its gradient: one Triton kernel.

Imported only where there is a GPU, or by tests in Triton's interpreter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

_ROWS = 4  # instances that a program compares


def squared_distance(predicted: Tensor, target: Tensor, of: int) -> Tensor:
    """`byol_loss` of (members, 2, batch, dim) -> (members,), divided by the number `of`."""
    apply: Callable[..., Tensor] = _Distance.apply
    return apply(predicted, target, of)


class _Distance(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, predicted: Tensor, target: Tensor, of: int) -> Tensor:
        predicted, target = predicted.contiguous(), target.contiguous()
        members, views, batch, dim = predicted.shape
        programs = triton.cdiv(batch, _ROWS)
        slope = torch.empty_like(predicted)
        parts = predicted.new_empty(members, views * programs)
        _distance[(programs, views, members)](
            predicted, target, slope, parts, 1 / of, batch, dim, triton.next_power_of_2(dim), _ROWS,
            num_warps=2,
        )  # fmt: skip
        ctx.save_for_backward(slope)
        return parts.sum(dim=1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (slope,) = ctx.saved_tensors
        return slope * gradients[0][:, None, None, None], None, None


@triton.jit
def unit_rows(x):
    """Unit vectors, and one over their lengths; both are zero for a zero vector."""
    squared = tl.sum(x * x, axis=1)
    over = tl.where(squared == 0, 0.0, 1.0 / tl.sqrt_rn(tl.where(squared == 0, 1.0, squared)))
    return x * over[:, None], over


@triton.jit
def _distance(
    predicted, target, slope, parts, share, batch, dim,
    wide: tl.constexpr, rows: tl.constexpr,
):  # fmt: skip
    """Rows of one view: their distances to the target's other view, and the gradient."""
    view, member = tl.program_id(1), tl.program_id(2).to(tl.int64)
    i, d = tl.program_id(0) * rows + tl.arange(0, rows), tl.arange(0, wide)
    ok = (i < batch)[:, None] & (d < dim)[None, :]
    at = ((member * 2 + view) * batch + i)[:, None] * dim + d[None, :]
    other = ((member * 2 + 1 - view) * batch + i)[:, None] * dim + d[None, :]
    ours, over = unit_rows(tl.load(predicted + at, mask=ok, other=0.0))
    theirs, _ = unit_rows(tl.load(target + other, mask=ok, other=0.0))
    apart = ours - theirs
    tl.store(
        parts + (member * 2 + view) * tl.num_programs(0) + tl.program_id(0),
        tl.sum(tl.sum(apart * apart, axis=1), axis=0) * share,
    )
    along = tl.sum(ours * apart, axis=1)
    through = (apart - ours * along[:, None]) * (2.0 * share * over)[:, None]
    tl.store(slope + at, through, mask=ok)
