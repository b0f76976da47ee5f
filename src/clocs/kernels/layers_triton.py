"""The layers of the paper's CNN on a GPU: the block's kernels put together, and the linear layer.

Imported only where there is a GPU, or by tests in Triton's interpreter.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from clocs.errors import SettingError
from clocs.kernels import block_triton as kernels
from clocs.kernels.native import EPSILON, KERNEL, POOL, STRIDE, convolved

PROGRAMS = 211  # per member, at most: sums must not depend on how many train beside it; five
# members are then eight programs on each of 132 multiprocessors
CHUNK = 32  # values under a kernel that are multiplied at a time: more do not fit into registers


class Tile(NamedTuple):
    """How a kernel divides its work; measured on an H200."""

    rows: int  # that a program works on at a time
    num_warps: int = 4
    num_stages: int = 2

    @property
    def launch(self) -> dict[str, int]:
        return {"num_warps": self.num_warps, "num_stages": self.num_stages}


CONVOLVE = {4: Tile(32, 1, 3), 16: Tile(64, 4, 2)}  # by channels in
INPUTS = {4: Tile(64, 4, 2), 16: Tile(64, 4, 3)}
WEIGHTS, SUMS, OTHER = Tile(32, 2, 3), Tile(32), Tile(64)
FIRST_SUMS = FIRST_POOL = FIRST_SLOPES = Tile(256, 2)
FIRST_WEIGHTS = Tile(128)
# rows, columns and steps that a program works on; measured on an H200
LINEAR, LINEAR_WEIGHTS, LINEAR_INPUTS = (32, 64, 32), (64, 64, 32), (64, 64, 32)
PART = 128  # rows of the batch that a program of the weights' gradient adds up, at least
PARTS = 8  # that this gradient is added up from, at most


class TritonBlock(torch.autograd.Function):
    """h, weight, gamma, beta, keys, dropout, unbiased -> output, batch mean, batch variance.

    The variance is multiplied by `unbiased`.
    """

    @staticmethod
    def forward(
        ctx: Any,
        h: Tensor,
        weight: Tensor,
        gamma: Tensor,
        beta: Tensor,
        keys: Tensor,
        dropout: float,
        unbiased: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        _check_size(h)
        h, weight = h.contiguous(), weight.contiguous()
        first = _is_first(weight) and not ctx.needs_input_grad[0]
        y, sums = (None, _first_sums(h, weight)) if first else _convolved(h, weight)
        members, blocks, _, c_out = sums.shape
        mean, variance, deviation, scale, shift = weight.new_empty(5, members, c_out)
        kernels.statistics[(members,)](
            sums, gamma.contiguous(), beta.contiguous(), mean, variance, deviation, scale, shift,
            blocks, h.shape[1] * convolved(h.shape[2]), unbiased, EPSILON, c_out,
            triton.next_power_of_2(blocks),
        )  # fmt: skip
        o = _pooled(h, weight, y, scale, shift, keys, dropout)
        # the first block's y is computed anew where it is needed
        kept = () if y is None else (y,)
        ctx.save_for_backward(h, weight, mean, deviation, scale, shift, keys, *kept)
        ctx.threshold, ctx.boost = _dropping(dropout)
        ctx.mark_non_differentiable(mean, variance)
        return o, mean, variance

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        h, weight, mean, deviation, scale, shift, keys, *y = ctx.saved_tensors
        members, n, length, c_in = h.shape
        out, c_out = convolved(length), weight.shape[2]
        half, rows = out // POOL, n * out
        g = gradients[0].contiguous()
        dropping = (ctx.threshold, ctx.boost)
        drop = ctx.threshold > 0
        tile = SUMS if y else FIRST_SLOPES
        blocks, repeat = _programs(n * half, tile)
        sums = weight.new_empty(members, blocks, 2, c_out)
        if y:
            kernels.sums[(blocks, members)](
                g, *y, scale, shift, mean, deviation, keys, sums, n, *dropping, blocks, repeat,
                out, half, c_out, tile.rows, drop, **tile.launch,
            )  # fmt: skip
        else:
            kernels.first_slopes[(blocks, members)](
                g, h, weight, scale, shift, mean, deviation, keys, sums, n, *dropping, blocks,
                repeat, length, half, tile.rows, drop, **tile.launch,
            )  # fmt: skip
        d_gamma, d_beta, constant, slope = weight.new_empty(4, members, c_out)
        kernels.slopes[(members,)](
            sums, mean, deviation, scale, d_gamma, d_beta, constant, slope, blocks, rows, c_out,
            triton.next_power_of_2(blocks),
        )  # fmt: skip
        if not y:
            tile = FIRST_WEIGHTS
            blocks, repeat = _programs(n * ((out + 1) // 2), tile)
            parts = weight.new_empty(members, blocks, KERNEL, c_out)
            kernels.first_weights[(blocks, members)](
                g, h, weight, scale, shift, constant, slope, keys, parts, n, *dropping, blocks,
                repeat, length, out, half, tile.rows, drop, **tile.launch,
            )  # fmt: skip
            return None, added(parts), d_gamma, d_beta, None, None, None
        d_y = torch.empty_like(*y)
        total = n * ((out + 1) // 2) * c_out
        kernels.spread[(triton.cdiv(total, 1024), members)](
            g, *y, scale, shift, constant, slope, keys, d_y, n, total, *dropping, out, half,
            c_out, 1024, drop,
        )  # fmt: skip
        chunks = triton.cdiv(KERNEL * c_in, CHUNK)
        blocks, repeat = _programs(rows, WEIGHTS, chunks)
        parts = weight.new_empty(members, blocks, KERNEL * c_in, c_out)
        kernels.weights[(blocks * chunks, members)](
            h, d_y, parts, rows, blocks, repeat, length, out, c_in, c_out, _padded(c_out),
            WEIGHTS.rows, CHUNK, chunks, **WEIGHTS.launch,
        )  # fmt: skip
        d_h = torch.empty_like(h)
        thirds = -(-length // STRIDE)
        tile = INPUTS.get(c_in, OTHER)
        blocks, repeat = _programs(n * thirds, tile)
        kernels.inputs[(blocks, members)](
            d_y, weight, d_h, n * thirds, repeat, length, out, thirds, c_in, c_out,
            _padded(c_out), _padded(STRIDE * c_in), tile.rows, **tile.launch,
        )  # fmt: skip
        return d_h, added(parts), d_gamma, d_beta, None, None, None


def triton_block_eval(h: Tensor, weight: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """The block with a given scale and shift per channel, (members, c_out) each."""
    _check_size(h)
    h, weight = h.contiguous(), weight.contiguous()
    y = None if _is_first(weight) else _convolved(h, weight)[0]
    return _pooled(h, weight, y, scale.contiguous(), shift.contiguous(), keys=None, dropout=0.0)


def _check_size(h: Tensor) -> None:
    """Kernels count the numbers of a member with 32 bits."""
    _, n, length, channels = h.shape
    if n * length * channels >= 2**31:
        raise SettingError(
            f"{n:,} views of {length:,} samples are too many for a GPU to encode at once; "
            "use a smaller batch size"
        )


def _is_first(weight: Tensor) -> bool:
    """Whether it is the paper's first block."""
    return weight.shape[1:] == (KERNEL, 4)


def _first_sums(h: Tensor, weight: Tensor) -> Tensor:
    """(members, blocks, 2, 4) partial sums and squares of the first block's convolution."""
    members, n, length, _ = h.shape
    out = convolved(length)
    blocks, repeat = _programs(n * ((out + 1) // 2), FIRST_SUMS)
    sums = weight.new_empty(members, blocks, 2, 4)
    kernels.first_sums[(blocks, members)](
        h, weight, sums, n, blocks, repeat, length, out, FIRST_SUMS.rows,
        **FIRST_SUMS.launch,
    )  # fmt: skip
    return sums


def _convolved(h: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """(members, n, out, c_out), and its (members, blocks, 2, c_out) partial sums and squares."""
    members, n, length, c_in = h.shape
    c_out, out = weight.shape[2], convolved(length)
    rows = n * out
    y = h.new_empty(members, n, out, c_out)
    tile = CONVOLVE.get(c_in, OTHER)
    blocks, repeat = _programs(rows, tile)
    sums = weight.new_empty(members, blocks, 2, c_out)
    kernels.convolve[(blocks, members)](
        h, weight, y, sums, rows, blocks, repeat, length, out, c_in, c_out,
        _padded(c_out), tile.rows, CHUNK, **tile.launch,
    )  # fmt: skip
    return y, sums


def _pooled(
    h: Tensor,
    weight: Tensor,
    y: Tensor | None,
    scale: Tensor,
    shift: Tensor,
    keys: Tensor | None,
    dropout: float,
) -> Tensor:
    """Scaled, the larger of two, ReLU, dropout; y: None to compute it from h."""
    members, n, length, _ = h.shape
    out, c_out = convolved(length), weight.shape[2]
    half = out // POOL
    threshold, boost = _dropping(dropout)
    o = h.new_empty(members, n, half, c_out)
    key = keys if keys is not None else h
    if y is None:
        grid = triton.cdiv(n * half, FIRST_POOL.rows), members
        kernels.first_pool[grid](
            h, weight, scale, shift, key, o, n, threshold, boost, length, half,
            FIRST_POOL.rows, dropout > 0, **FIRST_POOL.launch,
        )  # fmt: skip
        return o
    total = n * half * c_out
    kernels.pool[(triton.cdiv(total, 1024), members)](
        y, scale, shift, key, o, total, threshold, boost, out, half, c_out, 1024, dropout > 0,
    )  # fmt: skip
    return o


def added(parts: Tensor) -> Tensor:
    """(members, blocks, …) -> (members, …), the sum over blocks."""
    members, blocks = parts.shape[:2]
    count = parts[0, 0].numel()
    total = parts.new_empty(members, *parts.shape[2:])
    height = min(64, triton.next_power_of_2(blocks))
    size = 2048 // height
    kernels.add_up[(triton.cdiv(count, size), members)](parts, total, blocks, count, height, size)
    return total


def _dropping(dropout: float) -> tuple[int, float]:
    threshold = round(dropout * 65536)
    return threshold, 65536 / (65536 - threshold)


def _padded(size: int) -> int:
    """Matrix products need powers of two from 16."""
    return max(16, int(triton.next_power_of_2(size)))


def _programs(rows: int, tile: Tile, chunks: int = 1) -> tuple[int, int]:
    """Programs per member, and repetitions of each, so that there are few partial sums."""
    tiles = -(-rows // tile.rows)
    repeat = -(-tiles // (PROGRAMS // chunks))
    return -(-tiles // repeat), repeat


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
        grid = triton.cdiv(n, LINEAR[0]), triton.cdiv(c_out, LINEAR[1]), members
        _linear[grid](h, weight, bias, z, n, c_in, c_out, *LINEAR)
        ctx.save_for_backward(h, weight, z)
        return z

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
        h, weight, z = ctx.saved_tensors
        members, n, c_in = h.shape
        c_out = weight.shape[2]
        g = gradients[0].contiguous()
        parts = min(PARTS, triton.cdiv(n, PART))
        # the weights' gradient and, after it, the bias's
        sums = weight.new_empty(members, parts, c_in + 1, c_out)
        tiles = triton.cdiv(c_in, LINEAR_WEIGHTS[0]) * triton.cdiv(c_out, LINEAR_WEIGHTS[1])
        _linear_weights[(tiles, parts, members)](h, g, z, sums, n, c_in, c_out, *LINEAR_WEIGHTS)
        slopes = added(sums)
        d_h = None
        if ctx.needs_input_grad[0]:
            d_h = torch.empty_like(h)
            grid = triton.cdiv(n, LINEAR_INPUTS[0]), triton.cdiv(c_in, LINEAR_INPUTS[1]), members
            _linear_inputs[grid](g, z, weight, d_h, n, c_in, c_out, *LINEAR_INPUTS)
        return d_h, slopes[:, :c_in], slopes[:, c_in]


@triton.jit
def _linear(
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
def _linear_weights(
    h, g, z, sums, n: tl.constexpr, c_in: tl.constexpr, c_out: tl.constexpr,
    rows: tl.constexpr, columns: tl.constexpr, step: tl.constexpr,
):  # fmt: skip
    """The gradient of weights and bias through some of the batch's rows."""
    part, parts, member = tl.program_id(1), tl.num_programs(1), tl.program_id(2).to(tl.int64)
    across: tl.constexpr = (c_out + columns - 1) // columns
    k = tl.program_id(0) // across * rows + tl.arange(0, rows)
    c = tl.program_id(0) % across * columns + tl.arange(0, columns)
    total = tl.zeros([rows, columns], tl.float32)
    bias = tl.zeros([columns], tl.float32)
    length = tl.cdiv(tl.cdiv(n, step), parts) * step
    for start in range(part * length, tl.minimum((part + 1) * length, n), step):
        i = start + tl.arange(0, step)
        ok = (k < c_in)[:, None] & (i < n)[None, :]
        x = tl.load(h + (member * n + i)[None, :] * c_in + k[:, None], mask=ok, other=0.0)
        at = (member * n + i)[:, None] * c_out + c[None, :]
        slope = _through(g, z, at, (i < n)[:, None] & (c < c_out)[None, :])
        total = tl.dot(x, slope.to(x.dtype), total, input_precision="tf32x3")
        bias += tl.sum(slope, axis=0)
    place = (member * parts + part) * (c_in + 1)
    at = (place + k)[:, None] * c_out + c[None, :]
    tl.store(sums + at, total, mask=(k < c_in)[:, None] & (c < c_out)[None, :])
    if tl.program_id(0) // across == 0:
        tl.store(sums + (place + c_in) * c_out + c, bias, mask=c < c_out)


@triton.jit
def _linear_inputs(
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
