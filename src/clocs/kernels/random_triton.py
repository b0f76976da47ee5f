"""`clocs.keyed_random` inside Triton kernels: the same bits for the same key and element."""

from __future__ import annotations

import triton
import triton.language as tl

_GOLDEN = tl.constexpr(0x9E3779B97F4A7C15)
_M1 = tl.constexpr(0xBF58476D1CE4E5B9)
_M2 = tl.constexpr(0x94D049BB133111EB)


@triton.jit
def bits(key, element):
    """`keyed_random.bits`, as unsigned numbers."""
    x = (element + 1).to(tl.uint64) * _GOLDEN + key.to(tl.uint64)
    x = (x ^ (x >> 30)) * _M1
    x = (x ^ (x >> 27)) * _M2
    return x ^ (x >> 31)


@triton.jit
def kept(key, element, threshold):
    """The mask of `keyed_random.dropout`: one 64-bit draw decides four elements."""
    x = bits(key, element // 4)
    lane = ((x >> ((element % 4) * 16).to(tl.uint64)) & 0xFFFF).to(tl.int32)
    # the lanes are compared as signed 16-bit numbers, so half of them wrap around
    signed = tl.where(lane >= 32768, lane - 65536, lane)
    return signed >= threshold - 32768
