"""Batch-norm statistics moved toward those of a batch, on a GPU: one Triton kernel for a network.

Imported only where there is a GPU, or by tests in Triton's interpreter.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

_LAYERS = 3


def moved_statistics(
    before: list[tuple[Tensor, Tensor]],
    seen: list[tuple[Tensor, Tensor]],
    unbiased: list[float],
    momentum: float,
) -> list[tuple[Tensor, Tensor]]:
    """Means and variances after a batch, as adjacent parts of (members, numbers).

    Args:
        before: Mean and variance of each of three layers, (members, channels); their rows may be
            parts of longer ones.
        seen: The same of this batch.
        unbiased: What makes the variance of this batch an unbiased one, per layer.
        momentum: The weight of this batch.
    """
    assert len(before) == _LAYERS
    channels = [mean.shape[1] for mean, _ in seen]
    members = len(seen[0][0])
    out = seen[0][0].new_empty(members, 2 * sum(channels))
    old = [tensor for pair in before for tensor in pair]
    new = [tensor.contiguous() for pair in seen for tensor in pair]
    _move[(members,)](
        *old, *new, out, *(tensor.stride(0) for tensor in old), *unbiased, momentum, *channels,
        num_warps=1,
    )  # fmt: skip
    parts = out.split([c for c in channels for _ in range(2)], dim=1)
    return list(zip(parts[::2], parts[1::2], strict=True))


@triton.jit
def _part(before, stride, now, out, factor, momentum, member, channels: tl.constexpr):
    c = tl.arange(0, channels)
    old = tl.load(before + member * stride + c)
    new = tl.load(now + member * channels + c) * factor
    tl.store(out + c, old + momentum * (new - old))


@triton.jit
def _move(
    mean1, variance1, mean2, variance2, mean3, variance3,
    now1, square1, now2, square2, now3, square3, out,
    m1, v1, m2, v2, m3, v3, factor1, factor2, factor3, momentum,
    c1: tl.constexpr, c2: tl.constexpr, c3: tl.constexpr,
):  # fmt: skip
    member = tl.program_id(0).to(tl.int64)
    at = out + member * 2 * (c1 + c2 + c3)
    _part(mean1, m1, now1, at, 1.0, momentum, member, c1)
    _part(variance1, v1, square1, at + c1, factor1, momentum, member, c1)
    at += 2 * c1
    _part(mean2, m2, now2, at, 1.0, momentum, member, c2)
    _part(variance2, v2, square2, at + c2, factor2, momentum, member, c2)
    at += 2 * c2
    _part(mean3, m3, now3, at, 1.0, momentum, member, c3)
    _part(variance3, v3, square3, at + c3, factor3, momentum, member, c3)
