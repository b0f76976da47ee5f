"""The losses on a GPU: the contrastive ones, without a matrix of similarities, and BYOL's.

Both contrastive losses have one form. Rows of unit vectors u, in groups; S = u·uᵀ/τ between two
groups; a share of each pair (i, k), symmetric, and wanted_i = Σ_k share_ik:

    value    = Σ_i wanted_i · log Σ_k exp S_ik − Σ_ik share_ik · S_ik
    ∂value/∂S_ik, both directions = −2·share_ik + wanted_i · p(k | i) + wanted_k · p(i | k)

`patient_nce`: a group per view, every view against every other one; the share is 1/batch on the
diagonal and 1/positives elsewhere. `nt_xent`: one group of all views against itself, without the
diagonal. Every sum has a fixed order, so that results are the same from run to run.

Numbers are multiplied as sums of two float16 each, high + low, which have 22 bits together: a
product of two is made of three. Unit vectors are kept like that, so that they are taken apart once;
what they are multiplied with is scaled to where float16 is precise. Tests compare values and
gradients with float64, to 2e-5 of the largest.

Imported only where there is a GPU, or by tests in Triton's interpreter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

# rows and columns that a program works on at a time, and its warps; measured on an H200
VALUES, SLOPES = (64, 64, 4), (64, 32, 4)
LONG = (32, 32, 4)  # both, for vectors of more than 128 numbers
SLOTS = 8  # parts that a row's gradient is added up from, at most
COMPARED = 4  # instances that a program of BYOL's loss compares


def contrasted(z: Tensor, temperature: float, patients: Tensor | None) -> Tensor:
    """`patient_nce` of z: (members, views, batch, dim); without patients, `nt_xent`."""
    apply: Callable[..., Tensor] = _Contrast.apply
    return apply(z, temperature, None if patients is None else patients.contiguous())


class _Contrast(torch.autograd.Function):
    """z, temperature, patients or None for `nt_xent` -> (members,)."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, temperature: float, patients: Tensor | None) -> Tensor:
        z = z.contiguous()
        members, views, batch, dim = z.shape
        instances = patients is None
        groups, rows = (1, views * batch) if instances else (views, batch)
        u = z.new_empty(2, *z.shape, dtype=torch.float16)  # high, low
        inverse = z.new_empty(members, groups, rows)
        counts = torch.empty(members, batch, dtype=torch.int32, device=z.device)
        facts = counts if patients is None else patients, counts
        wide = _padded(dim)
        tile = 16 if wide > 64 else 32
        _unit[(triton.cdiv(views * batch, tile), members)](
            z, facts[0], *u, inverse, counts, dim, views * batch, batch, wide, tile, 64,
            not instances,
        )  # fmt: skip
        tile, step, warps = VALUES if wide <= 128 else LONG
        tiles = triton.cdiv(rows, tile)
        lse = z.new_empty(members, groups, groups, rows)
        pairs = groups * (groups - 1) or 1
        parts = z.new_empty(members, pairs * tiles)
        shape = (rows, batch, groups, wide)
        fixed = (triton.next_power_of_2(batch), instances)
        ctx.numbers = (dim, 1 / temperature, max(1, pairs // 2))
        _values[(tiles, pairs, members)](
            *u, *facts, lse, parts, *ctx.numbers, *shape, tile, step, *fixed, num_warps=warps
        )
        ctx.save_for_backward(u, inverse, lse, *facts)
        # the columns of a program, few, so that programs are many
        tile, step, ctx.warps = SLOPES if wide <= 128 else LONG
        pieces = triton.cdiv(rows, step) * max(1, groups - 1)
        steps = max(2, triton.cdiv(pieces, SLOTS))
        ctx.slots = triton.cdiv(pieces, steps)
        ctx.fixed = (*shape, tile, step, *fixed, steps)
        ctx.tile = tile
        return parts.sum(dim=1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        u, inverse, lse, *facts = ctx.saved_tensors
        members, groups, rows = inverse.shape
        dim, scale, pairs = ctx.numbers
        parts = inverse.new_empty(members, ctx.slots, groups * rows, dim)
        _slopes[(triton.cdiv(rows, ctx.tile), groups * ctx.slots, members)](
            *u, lse, *facts, parts, dim, scale, *ctx.fixed, num_warps=ctx.warps
        )
        dz, tile = inverse.new_empty(u.shape[1:]), 4
        _through_length[(triton.cdiv(groups * rows, tile), members)](
            *u, inverse, parts, gradients[0].contiguous(), dz, dim, scale, pairs,
            groups * rows, _padded(dim), tile, ctx.slots, num_warps=2,
        )  # fmt: skip
        return dz, None, None


def _padded(size: int) -> int:
    """Matrix products need powers of two from 16."""
    return max(16, int(triton.next_power_of_2(size)))


@triton.jit
def unit_rows(x):
    """Unit vectors, and one over their lengths; both are zero for a zero vector."""
    squared = tl.sum(x * x, axis=1)
    over = tl.where(squared == 0, 0.0, 1.0 / tl.sqrt_rn(tl.where(squared == 0, 1.0, squared)))
    return x * over[:, None], over


@triton.jit
def _apart(x):
    """Two float16 whose sum is x."""
    high = x.to(tl.float16)
    return high, (x - high.to(tl.float32)).to(tl.float16)


@triton.jit
def _dot(a_high, a_low, b_high, b_low, total):
    """The sum of `total` and a·b, the smallest products first."""
    total = tl.dot(a_low, b_high, total)
    total = tl.dot(a_high, b_low, total)
    return tl.dot(a_high, b_high, total)


@triton.jit
def _unit(
    z, patients, high, low, inverse, counts, dim,
    rows: tl.constexpr, batch: tl.constexpr, wide: tl.constexpr,
    tile: tl.constexpr, step: tl.constexpr, count: tl.constexpr,
):  # fmt: skip
    """Unit vectors, one over their lengths, and for each instance the others of its patient."""
    member = tl.program_id(1).to(tl.int64)
    row, d = tl.program_id(0) * tile + tl.arange(0, tile), tl.arange(0, wide)
    at = (member * rows + row)[:, None] * dim + d[None, :]
    ok = (row < rows)[:, None] & (d < dim)[None, :]
    x = tl.load(z + at, mask=ok, other=0.0)
    x, over = unit_rows(x)
    h, rest = _apart(x)
    tl.store(high + at, h, mask=ok)
    tl.store(low + at, rest, mask=ok)
    tl.store(inverse + member * rows + row, over, mask=row < rows)
    if count:  # the instances are the rows of the first view
        mine = tl.load(patients + member * batch + row, mask=row < batch, other=-1)
        found = tl.zeros([tile], tl.int32)
        for start in range(0, batch, step):
            k = start + tl.arange(0, step)
            theirs = tl.load(patients + member * batch + k, mask=k < batch, other=-2)
            same = (mine[:, None] == theirs[None, :]) & (row[:, None] != k[None, :])
            found += tl.sum(same.to(tl.int32), axis=1)
        tl.store(counts + member * batch + row, found, mask=row < batch)


@triton.jit
def _pair(
    patients, member, i, k, share,
    rows: tl.constexpr, batch: tl.constexpr, instances: tl.constexpr,
):  # fmt: skip
    """Of pairs (i, k): their share of the loss, and whether they count in the sums."""
    itself = i[:, None] == k[None, :]
    inside = (i[:, None] < rows) & (k[None, :] < rows)
    if instances:
        same = (i[:, None] % batch == k[None, :] % batch) & ~itself
        return tl.where(same & inside, share, 0.0), inside & ~itself
    mine = tl.load(patients + member * batch + i, mask=i < batch, other=-1)
    theirs = tl.load(patients + member * batch + k, mask=k < batch, other=-2)
    same = mine[:, None] == theirs[None, :]
    weight = tl.where(itself, 1.0 / batch, tl.where(same, share, 0.0))
    return tl.where(inside, weight, 0.0), inside


@triton.jit
def _vectors(high, low, group, i, d, dim, rows: tl.constexpr):
    """Unit vectors i of a group, both parts."""
    at = i[:, None] * dim + d[None, :]
    ok = (i < rows)[:, None] & (d < dim)[None, :]
    start = group * rows * dim
    h = tl.load(high + start + at, mask=ok, other=0.0)
    return h, tl.load(low + start + at, mask=ok, other=0.0)


@triton.jit
def _shares(
    counts, member,
    rows: tl.constexpr, batch: tl.constexpr, width: tl.constexpr, instances: tl.constexpr,
):  # fmt: skip
    """The share of one positive pair, and of one instance as such."""
    if instances:
        own = 1.0 / rows
        return own / (rows // batch - 1), own
    k = tl.arange(0, width)
    found = tl.sum(tl.load(counts + member * batch + k, mask=k < batch, other=0), axis=0)
    return 1.0 / tl.maximum(found, 1).to(tl.float32), 1.0 / batch


@triton.jit
def _wanted(counts, member, i, share, own, batch: tl.constexpr, instances: tl.constexpr):
    """Σ_k share_ik: what an instance weighs."""
    if instances:
        return tl.zeros(i.shape, tl.float32) + own
    found = tl.load(counts + member * batch + i, mask=i < batch, other=0).to(tl.float32)
    return found * share + own


@triton.jit
def _values(
    high, low, patients, counts, lse, parts, dim, scale, pairs,
    rows: tl.constexpr, batch: tl.constexpr, groups: tl.constexpr, wide: tl.constexpr,
    tile: tl.constexpr, step: tl.constexpr, width: tl.constexpr, instances: tl.constexpr,
):  # fmt: skip
    """Of rows i of group a against group b: log Σ_k exp S_ik, and their part of the value."""
    pair, member = tl.program_id(1), tl.program_id(2).to(tl.int64)
    a, b = pair * 0, pair * 0
    if groups > 1:
        a, b = pair // (groups - 1), pair % (groups - 1)
        b = b + tl.where(b >= a, 1, 0)
    i, d = tl.program_id(0) * tile + tl.arange(0, tile), tl.arange(0, wide)
    share, own = _shares(counts, member, rows, batch, width, instances)
    ours, our_rest = _vectors(high, low, member * groups + a, i, d, dim, rows)
    top = tl.full([tile], float("-inf"), tl.float32)
    total = tl.zeros([tile], tl.float32)
    pulled = tl.zeros([tile], tl.float32)
    for start in range(0, rows, step):
        k = start + tl.arange(0, step)
        theirs, rest = _vectors(high, low, member * groups + b, k, d, dim, rows)
        s = tl.zeros([tile, step], tl.float32)
        s = _dot(ours, our_rest, tl.trans(theirs), tl.trans(rest), s) * scale
        weight, counted = _pair(patients, member, i, k, share, rows, batch, instances)
        pulled += tl.sum(weight * s, axis=1)
        s = tl.where(counted, s, float("-inf"))
        most = tl.maximum(top, tl.max(s, axis=1))
        safe = tl.where(most == float("-inf"), 0.0, most)
        total = total * tl.exp(top - safe) + tl.sum(tl.exp(s - safe[:, None]), axis=1)
        top = most
    log = top + tl.log(total)
    tl.store(lse + ((member * groups + a) * groups + b) * rows + i, log, mask=i < rows)
    wanted = _wanted(counts, member, i, share, own, batch, instances)
    value = tl.sum(tl.where(i < rows, wanted * log - pulled, 0.0), axis=0) / pairs
    place = (member * tl.num_programs(1) + pair) * tl.num_programs(0) + tl.program_id(0)
    tl.store(parts + place, value)


@triton.jit
def _slopes(
    high, low, lse, patients, counts, parts, dim, scale,
    rows: tl.constexpr, batch: tl.constexpr, groups: tl.constexpr, wide: tl.constexpr,
    tile: tl.constexpr, step: tl.constexpr, width: tl.constexpr, instances: tl.constexpr,
    steps: tl.constexpr,
):  # fmt: skip
    """Of unit vectors i of group a: their gradient through some pieces of the other groups."""
    pieces: tl.constexpr = (rows + step - 1) // step
    last: tl.constexpr = pieces * (groups - 1 if groups > 1 else 1)
    a, slot = tl.program_id(1) % groups, tl.program_id(1) // groups
    member = tl.program_id(2).to(tl.int64)
    i, d = tl.program_id(0) * tile + tl.arange(0, tile), tl.arange(0, wide)
    share, own = _shares(counts, member, rows, batch, width, instances)
    ours, our_rest = _vectors(high, low, member * groups + a, i, d, dim, rows)
    wanted = _wanted(counts, member, i, share, own, batch, instances)
    # the gradient of S, of about the size of `own`, as float16 has most of its bits
    larger = tl.minimum(1.0 / own, 16384.0)
    slope = tl.zeros([tile, wide], tl.float32)
    for piece in range(slot * steps, tl.minimum((slot + 1) * steps, last)):
        b = piece // pieces
        if groups > 1:
            b = b + tl.where(b >= a, 1, 0)
        k = (piece % pieces) * step + tl.arange(0, step)
        theirs, rest = _vectors(high, low, member * groups + b, k, d, dim, rows)
        s = tl.zeros([tile, step], tl.float32)
        s = _dot(ours, our_rest, tl.trans(theirs), tl.trans(rest), s) * scale
        weight, counted = _pair(patients, member, i, k, share, rows, batch, instances)
        s = tl.where(counted, s, float("-inf"))
        by_row = lse + ((member * groups + a) * groups + b) * rows
        by_column = lse + ((member * groups + b) * groups + a) * rows
        row = tl.load(by_row + i, mask=i < rows, other=0.0)
        column = tl.load(by_column + k, mask=k < rows, other=0.0)
        sought = _wanted(counts, member, k, share, own, batch, instances)
        pull = tl.exp(s - row[:, None]) * wanted[:, None]
        pull += tl.exp(s - column[None, :]) * sought[None, :]
        pull, little = _apart((pull - 2.0 * weight) * larger)
        slope = _dot(pull, little, theirs, rest, slope)
    slope /= larger
    slots = tl.num_programs(1) // groups
    at = (((member * slots + slot) * groups + a) * rows + i)[:, None] * dim + d[None, :]
    tl.store(parts + at, slope, mask=(i < rows)[:, None] & (d < dim)[None, :])


@triton.jit
def _through_length(
    high, low, inverse, parts, g, dz, dim, scale, pairs,
    rows: tl.constexpr, wide: tl.constexpr, tile: tl.constexpr, slots: tl.constexpr,
):  # fmt: skip
    """The parts of a gradient added up, and through the length of the vectors."""
    member = tl.program_id(1).to(tl.int64)
    row, d = tl.program_id(0) * tile + tl.arange(0, tile), tl.arange(0, wide)
    ok = (row < rows)[:, None] & (d < dim)[None, :]
    slope = tl.zeros([tile, wide], tl.float32)
    for slot in range(slots):
        at = ((member * slots + slot) * rows + row)[:, None] * dim + d[None, :]
        slope += tl.load(parts + at, mask=ok, other=0.0)
    slope *= scale * tl.load(g + member) / pairs
    at = (member * rows + row)[:, None] * dim + d[None, :]
    mine = tl.load(high + at, mask=ok, other=0.0).to(tl.float32)
    mine += tl.load(low + at, mask=ok, other=0.0).to(tl.float32)
    along = tl.sum(mine * slope, axis=1)
    over = tl.load(inverse + member * rows + row, mask=row < rows, other=0.0)
    tl.store(dz + at, (slope - mine * along[:, None]) * over[:, None], mask=ok)


def squared_distance(predicted: Tensor, target: Tensor, of: int) -> Tensor:
    """`byol_loss` of (members, 2, batch, dim) -> (members,), divided by the number `of`."""
    apply: Callable[..., Tensor] = _Distance.apply
    return apply(predicted, target, of)


class _Distance(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, predicted: Tensor, target: Tensor, of: int) -> Tensor:
        predicted, target = predicted.contiguous(), target.contiguous()
        members, views, batch, dim = predicted.shape
        programs = triton.cdiv(batch, COMPARED)
        slope = torch.empty_like(predicted)
        parts = predicted.new_empty(members, views * programs)
        _distance[(programs, views, members)](
            predicted, target, slope, parts, 1 / of, batch, dim, triton.next_power_of_2(dim),
            COMPARED, num_warps=2,
        )  # fmt: skip
        ctx.save_for_backward(slope)
        return parts.sum(dim=1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (slope,) = ctx.saved_tensors
        return slope * gradients[0][:, None, None, None], None, None


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
