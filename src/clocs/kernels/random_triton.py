"""`clocs.keyed_random` inside Triton kernels: the same bits for the same key and element."""

from __future__ import annotations

import triton
import triton.language as tl

from clocs.keyed_random.in_triton import bits, fold

__all__ = ["bits", "fold", "kept", "normal", "uniform"]

_TURN = tl.constexpr(1.4629180792671596e-09)  # 2π · 2⁻³²
_QUARTER = tl.constexpr(1.5707963267948966)  # π / 2


@triton.jit
def uniform(key, element):
    """`keyed_random.uniform`, in float64."""
    return (bits(key, element) >> 11).to(tl.float64) * 2.0**-53


@triton.jit
def normal(key, element):
    """Standard normal numbers, two per draw (Box–Muller): `perturbations.normals`, in float32."""
    x = bits(key, element >> 1)
    high, low = x >> 32, x & 0xFFFFFFFF
    radius = tl.sqrt(tl.maximum(-2.0 * tl.log((high + 1).to(tl.float32) * 2.0**-32), 0.0))
    # odd elements are sines, and sin(a) = cos(a − π/2)
    angle = low.to(tl.float32) * _TURN - tl.where((element & 1) == 0, 0.0, _QUARTER)
    return radius * tl.cos(angle)


@triton.jit
def kept(key, element, threshold):
    """The mask of `keyed_random.dropout`: one 64-bit draw decides four elements."""
    x = bits(key, element // 4)
    lane = ((x >> ((element % 4) * 16).to(tl.uint64)) & 0xFFFF).to(tl.int32)
    # the lanes are compared as signed 16-bit numbers, so half of them wrap around
    signed = tl.where(lane >= 32768, lane - 65536, lane)
    return signed >= threshold - 32768
