"""The same numbers on a GPU, each call one Triton kernel; also for use inside other kernels.

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
_SIZE = 256  # numbers that a program computes
_PARTS = 3  # that one launch can fold in
# compiled once, not again for each value
_VARYING = [
    *("n0", "n1", "n2", "columns", "total", "key_row", "key_column"),
    *("row0", "column0", "row1", "column1", "row2", "column2"),
]


def folded(key: Tensor, parts: tuple[int | Tensor, ...]) -> Tensor:
    """`keyed_random.fold`; the result has at most two axes."""
    if not parts:
        return key
    now, later = parts[:_PARTS], parts[_PARTS:]
    tensors = [key, *(part for part in now if isinstance(part, Tensor))]
    shape = torch.broadcast_shapes(*(tensor.shape for tensor in tensors))
    out = torch.empty(shape, dtype=torch.int64, device=key.device)
    table = out if out.dim() == 2 else out.view(1, -1)
    given = (key, *now, *[0] * (_PARTS - len(now)))
    # of a number the place in memory is never read, and of a tensor the number
    places = [part if isinstance(part, Tensor) else key for part in given]
    numbers = [0 if isinstance(part, Tensor) else part for part in given]
    kinds = [isinstance(part, Tensor) for part in given]
    strides = [
        stride
        for part in given
        for stride in (part.expand(table.shape).stride() if isinstance(part, Tensor) else (0, 0))
    ]
    _fold[(triton.cdiv(out.numel(), _SIZE),)](
        *places, *numbers[1:], out, table.shape[1], out.numel(), *strides, *kinds[1:], len(now),
        _SIZE, num_warps=1,
    )  # fmt: skip
    return folded(out, later)


def random_bits(key: Tensor, count: int) -> Tensor:
    """`keyed_random.bits`."""
    out = torch.empty(len(key), count, dtype=torch.int64, device=key.device)
    _draw[(triton.cdiv(count, _SIZE), len(key))](key.contiguous(), out, count, False, _SIZE)
    return out


def random_uniform(key: Tensor, count: int, dtype: torch.dtype) -> Tensor:
    """`keyed_random.uniform`."""
    out = torch.empty(len(key), count, dtype=dtype, device=key.device)
    _draw[(triton.cdiv(count, _SIZE), len(key))](key.contiguous(), out, count, True, _SIZE)
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
def _with(x, place, number, row, column, by_row, by_column, ok, is_tensor: tl.constexpr):
    part = tl.zeros_like(x) + number.to(tl.uint64)
    if is_tensor:
        at = place + row * by_row + column * by_column
        part = tl.load(at, mask=ok, other=0).to(tl.uint64)
    return fold(x, part)


@triton.jit(do_not_specialize=_VARYING)
def _fold(
    key, p0, p1, p2, n0, n1, n2, out, columns, total,
    key_row, key_column, row0, column0, row1, column1, row2, column2,
    t0: tl.constexpr, t1: tl.constexpr, t2: tl.constexpr,
    parts: tl.constexpr, size: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0) * size + tl.arange(0, size)
    ok = at < total
    row, column = (at // columns).to(tl.int64), (at % columns).to(tl.int64)
    x = tl.load(key + row * key_row + column * key_column, mask=ok, other=0).to(tl.uint64)
    x = _with(x, p0, n0, row, column, row0, column0, ok, t0)
    if parts > 1:
        x = _with(x, p1, n1, row, column, row1, column1, ok, t1)
    if parts > 2:
        x = _with(x, p2, n2, row, column, row2, column2, ok, t2)
    tl.store(out + at, x.to(tl.int64), mask=ok)


@triton.jit(do_not_specialize=["count"])
def _draw(keys, out, count, uniform: tl.constexpr, size: tl.constexpr):
    member = tl.program_id(1)
    element = tl.program_id(0) * size + tl.arange(0, size)
    x = bits(tl.load(keys + member), element)
    at = out + member.to(tl.int64) * count + element
    if uniform:
        draw = (x >> 11).to(tl.float64) * 1.1102230246251565e-16  # 2⁻⁵³
        tl.store(at, draw.to(out.dtype.element_ty), mask=element < count)
    else:
        tl.store(at, x.to(tl.int64), mask=element < count)
