"""`clocs.keyed_random` inside Triton kernels: the same bits for the same key and element."""

from __future__ import annotations

import triton
import triton.language as tl

from clocs.keyed_random.in_triton import bits, fold

__all__ = ["bits", "fold", "kept", "normal", "uniform"]

_TURN = tl.constexpr(1.4629180792671596e-09)  # 2π · 2⁻³²


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
    return radius * _cosine(low - ((element & 1) << 30).to(tl.uint64))


@triton.jit
def _cosine(turn):
    """cos(2π · turn · 2⁻³²) of the low 32 bits, to 1e-7; without branches, unlike `tl.cos`."""
    quarter = (turn + 0x20000000) >> 30
    a = (turn - (quarter << 30)).to(tl.int32).to(tl.float32) * _TURN  # within ±π/4
    z = a * a
    sine = tl.fma(
        tl.fma(tl.fma(z, -1.9515295891e-4, 8.3321608736e-3), z, -1.6666654611e-1), z * a, a
    )
    cosine = tl.fma(tl.fma(z, 2.443315711809948e-5, -1.388731625493765e-3), z, 4.166664568298827e-2)
    cosine = tl.fma(cosine, z * z, 1.0 - 0.5 * z)
    value = tl.where((quarter & 1) == 0, cosine, sine)
    return tl.where(((quarter + 1) & 2) == 0, value, -value)


@triton.jit
def kept(key, element, threshold):
    """The mask of `keyed_random.dropout`: one 64-bit draw decides four elements."""
    x = bits(key, element // 4)
    lane = ((x >> ((element % 4) * 16).to(tl.uint64)) & 0xFFFF).to(tl.int32)
    # the lanes are compared as signed 16-bit numbers, so half of them wrap around
    signed = tl.where(lane >= 32768, lane - 65536, lane)
    return signed >= threshold - 32768
