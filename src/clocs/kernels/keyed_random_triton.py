"""`keyed_random` on a GPU: each call one Triton kernel, and the same numbers inside other kernels.

Imported only where there is a GPU, or by tests in Triton's interpreter.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_GOLDEN = tl.constexpr(0x9E3779B97F4A7C15)
_M1 = tl.constexpr(0xBF58476D1CE4E5B9)
_M2 = tl.constexpr(0x94D049BB133111EB)
_TURN = tl.constexpr(1.4629180792671596e-09)  # 2π · 2⁻³²
_SIZE = 256  # numbers that a program computes
_PARTS = 3  # that one launch can fold in


def folded(key: Tensor, parts: tuple[int | Tensor, ...]) -> Tensor:
    """`keyed_random.fold`."""
    if not parts:
        return key
    now, later = parts[:_PARTS], parts[_PARTS:]
    given = (key, *now)
    shape = torch.broadcast_shapes(*(x.shape for x in given if isinstance(x, Tensor)))
    same = [x.expand(shape).contiguous() if isinstance(x, Tensor) else x for x in given]
    out = torch.empty(shape, dtype=torch.int64, device=key.device)
    _fold[(triton.cdiv(out.numel(), _SIZE),)](
        *same, *[0] * (_PARTS - len(now)), out, out.numel(), len(now), _SIZE, num_warps=1
    )
    return folded(out, later)


def drawn(key: Tensor, count: int, dtype: torch.dtype) -> Tensor:
    """`keyed_random.bits` as int64, or `keyed_random.uniform` as a floating-point type."""
    out = torch.empty(len(key), count, dtype=dtype, device=key.device)
    _draw[(triton.cdiv(count, _SIZE), len(key))](key.contiguous(), out, count, _SIZE)
    return out


@triton.jit
def mixed(x):
    """`keyed_random.mix` of unsigned numbers."""
    x = (x ^ (x >> 30)) * _M1
    x = (x ^ (x >> 27)) * _M2
    return x ^ (x >> 31)


@triton.jit
def bits(key, element):
    """`keyed_random.bits`, as unsigned numbers."""
    return mixed((element + 1).to(tl.uint64) * _GOLDEN + key.to(tl.uint64))


@triton.jit
def fold(key, part):
    """`keyed_random.fold` of one part, as unsigned numbers."""
    return mixed(key.to(tl.uint64) * 31 + part + _GOLDEN)


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
def kept(draw, lane, threshold):
    """The mask of `keyed_random.dropout`: one 64-bit draw decides four elements, its lanes."""
    value = ((draw >> (lane * 16).to(tl.uint64)) & 0xFFFF).to(tl.int32)
    # the lanes are compared as signed 16-bit numbers, so half of them wrap around
    signed = tl.where(value >= 32768, value - 65536, value)
    return signed >= threshold - 32768


@triton.jit
def _part(part, at, ok):
    if part.dtype.is_ptr():
        part = tl.load(part + at, mask=ok, other=0)
    return part.to(tl.uint64)


@triton.jit(do_not_specialize=["p0", "p1", "p2", "total"])  # compiled once, not for each value
def _fold(key, p0, p1, p2, out, total, parts: tl.constexpr, size: tl.constexpr):
    at = tl.program_id(0) * size + tl.arange(0, size)
    ok = at < total
    x = fold(tl.load(key + at, mask=ok, other=0), _part(p0, at, ok))
    if parts > 1:
        x = fold(x, _part(p1, at, ok))
    if parts > 2:
        x = fold(x, _part(p2, at, ok))
    tl.store(out + at, x.to(tl.int64), mask=ok)


@triton.jit(do_not_specialize=["count"])
def _draw(keys, out, count, size: tl.constexpr):
    member = tl.program_id(1)
    element = tl.program_id(0) * size + tl.arange(0, size)
    key, at = tl.load(keys + member), out + member.to(tl.int64) * count + element
    if out.dtype.element_ty == tl.int64:
        tl.store(at, bits(key, element).to(tl.int64), mask=element < count)
    else:
        draw = uniform(key, element).to(out.dtype.element_ty)
        tl.store(at, draw, mask=element < count)
