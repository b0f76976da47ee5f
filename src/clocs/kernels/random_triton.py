"""`clocs.keyed_random` inside Triton kernels: the same bits for the same key and element."""

from __future__ import annotations

import triton
import triton.language as tl

from clocs.keyed_random.in_triton import bits

__all__ = ["bits", "kept"]


@triton.jit
def kept(key, element, threshold):
    """The mask of `keyed_random.dropout`: one 64-bit draw decides four elements."""
    x = bits(key, element // 4)
    lane = ((x >> ((element % 4) * 16).to(tl.uint64)) & 0xFFFF).to(tl.int32)
    # the lanes are compared as signed 16-bit numbers, so half of them wrap around
    signed = tl.where(lane >= 32768, lane - 65536, lane)
    return signed >= threshold - 32768
