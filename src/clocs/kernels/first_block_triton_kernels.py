"""The paper's first block as Triton kernels: one channel in, four out.

Its convolution is seven products: each kernel computes it anew from the samples, which is faster
than to write it down (twice the size of the samples) and to read it three times.

forward   first_sums     x, w    -> partial Σy and Σy²
          first_pool     x, w    -> the larger of two, scaled, ReLU, dropout
backward  first_slopes   g, x, w -> partial Σg and Σg·ŷ
          first_weights  g, x, w -> partial d_w

A lane works on a pair of positions, 2q and 2q + 1, which lie over ten samples. Imported only where
there is a GPU.
"""

from __future__ import annotations

import triton
import triton.language as tl

from clocs.kernels.random_triton import bits


@triton.jit
def _samples(x, member, row, views, ok, pairs: tl.constexpr, length: tl.constexpr):
    """Ten samples from 6q of view n, for rows n · pairs + q; zero beyond the end."""
    n, q = row // pairs, row % pairs
    at = x + member.to(tl.int64) * views * length + (n * length + 6 * q)
    left = length - 6 * q
    x0 = tl.load(at, mask=ok, other=0.0).to(tl.float32)
    x1 = tl.load(at + 1, mask=ok, other=0.0).to(tl.float32)
    x2 = tl.load(at + 2, mask=ok, other=0.0).to(tl.float32)
    x3 = tl.load(at + 3, mask=ok, other=0.0).to(tl.float32)
    x4 = tl.load(at + 4, mask=ok, other=0.0).to(tl.float32)
    x5 = tl.load(at + 5, mask=ok, other=0.0).to(tl.float32)
    x6 = tl.load(at + 6, mask=ok, other=0.0).to(tl.float32)
    x7 = tl.load(at + 7, mask=ok & (left > 7), other=0.0).to(tl.float32)
    x8 = tl.load(at + 8, mask=ok & (left > 8), other=0.0).to(tl.float32)
    x9 = tl.load(at + 9, mask=ok & (left > 9), other=0.0).to(tl.float32)
    return x0, x1, x2, x3, x4, x5, x6, x7, x8, x9


@triton.jit
def _convolved(w, c: tl.constexpr, x0, x1, x2, x3, x4, x5, x6, x7, x8, x9):
    """Channel c at both positions."""
    w0, w1, w2 = tl.load(w + c), tl.load(w + 4 + c), tl.load(w + 8 + c)
    w3, w4, w5 = tl.load(w + 12 + c), tl.load(w + 16 + c), tl.load(w + 20 + c)
    w6 = tl.load(w + 24 + c)
    first = x0 * w0 + x1 * w1 + x2 * w2 + x3 * w3 + x4 * w4 + x5 * w5 + x6 * w6
    second = x3 * w0 + x4 * w1 + x5 * w2 + x6 * w3 + x7 * w4 + x8 * w5 + x9 * w6
    return first, second


@triton.jit
def _kept(draw, c: tl.constexpr, threshold):
    """`random_triton.kept` for element 4 · row + c, given the draw of this row."""
    lane = ((draw >> (16 * c)) & 0xFFFF).to(tl.int32)
    return tl.where(lane >= 32768, lane - 65536, lane) >= threshold - 32768


@triton.jit(do_not_specialize=["views", "blocks", "repeat"])
def first_sums(
    x, w, sums, views, blocks, repeat,
    length: tl.constexpr, out: tl.constexpr, size: tl.constexpr,
):  # fmt: skip
    block, member = tl.program_id(0), tl.program_id(1)
    w += member * 28
    pairs: tl.constexpr = (out + 1) // 2  # the last may have one position only
    s0 = tl.zeros([size], tl.float32)
    s1, s2, s3, q0, q1, q2, q3 = s0, s0, s0, s0, s0, s0, s0
    for i in range(repeat):
        row = (block * repeat + i) * size + tl.arange(0, size)
        ok = row < views * pairs
        both = 2 * (row % pairs) + 1 < out
        xs = _samples(x, member, row, views, ok, pairs, length)
        a, b = _convolved(w, 0, *xs)
        b = tl.where(both, b, 0.0)
        s0 += a + b
        q0 += a * a + b * b
        a, b = _convolved(w, 1, *xs)
        b = tl.where(both, b, 0.0)
        s1 += a + b
        q1 += a * a + b * b
        a, b = _convolved(w, 2, *xs)
        b = tl.where(both, b, 0.0)
        s2 += a + b
        q2 += a * a + b * b
        a, b = _convolved(w, 3, *xs)
        b = tl.where(both, b, 0.0)
        s3 += a + b
        q3 += a * a + b * b
    place = sums + (member * blocks + block) * 8
    tl.store(place, tl.sum(s0))
    tl.store(place + 1, tl.sum(s1))
    tl.store(place + 2, tl.sum(s2))
    tl.store(place + 3, tl.sum(s3))
    tl.store(place + 4, tl.sum(q0))
    tl.store(place + 5, tl.sum(q1))
    tl.store(place + 6, tl.sum(q2))
    tl.store(place + 7, tl.sum(q3))


@triton.jit
def _pooled(
    w, scale, shift, draw, threshold, boost, c: tl.constexpr, drop: tl.constexpr,
    x0, x1, x2, x3, x4, x5, x6, x7, x8, x9,
):  # fmt: skip
    a, b = tl.load(scale + c), tl.load(shift + c)
    first, second = _convolved(w, c, x0, x1, x2, x3, x4, x5, x6, x7, x8, x9)
    value = tl.maximum(tl.maximum(first * a + b, second * a + b), 0.0)
    if drop:
        value = tl.where(_kept(draw, c, threshold), value * boost, 0.0)
    return value


@triton.jit(do_not_specialize=["views"])
def first_pool(
    x, w, scale, shift, keys, o, views, threshold, boost,
    length: tl.constexpr, half: tl.constexpr, size: tl.constexpr, drop: tl.constexpr,
):  # fmt: skip
    member = tl.program_id(1)
    w, scale, shift = w + member * 28, scale + member * 4, shift + member * 4
    row = tl.program_id(0) * size + tl.arange(0, size)
    ok = row < views * half
    draw = row
    if drop:
        draw = bits(tl.load(keys + member), row)
    xs = _samples(x, member, row, views, ok, half, length)
    v0 = _pooled(w, scale, shift, draw, threshold, boost, 0, drop, *xs)
    v1 = _pooled(w, scale, shift, draw, threshold, boost, 1, drop, *xs)
    v2 = _pooled(w, scale, shift, draw, threshold, boost, 2, drop, *xs)
    v3 = _pooled(w, scale, shift, draw, threshold, boost, 3, drop, *xs)
    value = tl.reshape(tl.join(tl.join(v0, v2), tl.join(v1, v3)), [size, 4])
    c = tl.arange(0, 4)
    o += member.to(tl.int64) * views * half * 4
    tl.store(o + row[:, None] * 4 + c[None, :], value, mask=ok[:, None])


@triton.jit
def _gradient(
    g, at, ok, w, scale, shift, draw, threshold, boost, c: tl.constexpr, drop: tl.constexpr,
    x0, x1, x2, x3, x4, x5, x6, x7, x8, x9,
):  # fmt: skip
    """A pair's gradient after dropout and ReLU, both its values, and which is larger."""
    a, b = tl.load(scale + c), tl.load(shift + c)
    first, second = _convolved(w, c, x0, x1, x2, x3, x4, x5, x6, x7, x8, x9)
    up, down = first * a + b, second * a + b
    value = tl.load(g + at + c, mask=ok, other=0.0).to(tl.float32)
    if drop:
        value = tl.where(_kept(draw, c, threshold), value * boost, 0.0)
    value = tl.where(tl.maximum(up, down) > 0.0, value, 0.0)
    return value, first, second, up >= down


@triton.jit
def _slope_sums(
    beta, gamma, g, at, ok, w, scale, shift, mean, deviation, draw, threshold, boost,
    c: tl.constexpr, drop: tl.constexpr, x0, x1, x2, x3, x4, x5, x6, x7, x8, x9,
):  # fmt: skip
    value, first, second, wins = _gradient(
        g, at, ok, w, scale, shift, draw, threshold, boost, c, drop,
        x0, x1, x2, x3, x4, x5, x6, x7, x8, x9,
    )  # fmt: skip
    normal = (tl.where(wins, first, second) - tl.load(mean + c)) * tl.load(deviation + c)
    return beta + value, gamma + value * normal


@triton.jit(do_not_specialize=["views", "blocks", "repeat"])
def first_slopes(
    g, x, w, scale, shift, mean, deviation, keys, sums, views, threshold, boost, blocks, repeat,
    length: tl.constexpr, half: tl.constexpr, size: tl.constexpr, drop: tl.constexpr,
):  # fmt: skip
    block, member = tl.program_id(0), tl.program_id(1)
    w, scale, shift = w + member * 28, scale + member * 4, shift + member * 4
    mean, deviation = mean + member * 4, deviation + member * 4
    g += member.to(tl.int64) * views * half * 4
    b0 = tl.zeros([size], tl.float32)
    b1, b2, b3, g0, g1, g2, g3 = b0, b0, b0, b0, b0, b0, b0
    for i in range(repeat):
        row = (block * repeat + i) * size + tl.arange(0, size)
        ok = row < views * half
        at = row * 4
        draw = row
        if drop:
            draw = bits(tl.load(keys + member), row)
        xs = _samples(x, member, row, views, ok, half, length)
        b0, g0 = _slope_sums(
            b0,
            g0,
            g,
            at,
            ok,
            w,
            scale,
            shift,
            mean,
            deviation,
            draw,
            threshold,
            boost,
            0,
            drop,
            *xs,
        )
        b1, g1 = _slope_sums(
            b1,
            g1,
            g,
            at,
            ok,
            w,
            scale,
            shift,
            mean,
            deviation,
            draw,
            threshold,
            boost,
            1,
            drop,
            *xs,
        )
        b2, g2 = _slope_sums(
            b2,
            g2,
            g,
            at,
            ok,
            w,
            scale,
            shift,
            mean,
            deviation,
            draw,
            threshold,
            boost,
            2,
            drop,
            *xs,
        )
        b3, g3 = _slope_sums(
            b3,
            g3,
            g,
            at,
            ok,
            w,
            scale,
            shift,
            mean,
            deviation,
            draw,
            threshold,
            boost,
            3,
            drop,
            *xs,
        )
    place = sums + (member * blocks + block) * 8
    tl.store(place, tl.sum(b0))
    tl.store(place + 1, tl.sum(b1))
    tl.store(place + 2, tl.sum(b2))
    tl.store(place + 3, tl.sum(b3))
    tl.store(place + 4, tl.sum(g0))
    tl.store(place + 5, tl.sum(g1))
    tl.store(place + 6, tl.sum(g2))
    tl.store(place + 7, tl.sum(g3))


@triton.jit
def _weight_sums(
    t0, t1, t2, t3, t4, t5, t6, g, at, pooled, both, w, scale, shift, constant, slope, draw,
    threshold, boost, c: tl.constexpr, drop: tl.constexpr, x0, x1, x2, x3, x4, x5, x6, x7, x8, x9,
):  # fmt: skip
    value, first, second, wins = _gradient(
        g, at, pooled, w, scale, shift, draw, threshold, boost, c, drop,
        x0, x1, x2, x3, x4, x5, x6, x7, x8, x9,
    )  # fmt: skip
    a, base, tilt = tl.load(scale + c), tl.load(constant + c), tl.load(slope + c)
    d0 = tl.where(wins, value * a, 0.0) + base + tilt * first
    d1 = tl.where(both, tl.where(wins, 0.0, value * a) + base + tilt * second, 0.0)
    t0, t1, t2 = t0 + d0 * x0 + d1 * x3, t1 + d0 * x1 + d1 * x4, t2 + d0 * x2 + d1 * x5
    t3, t4, t5 = t3 + d0 * x3 + d1 * x6, t4 + d0 * x4 + d1 * x7, t5 + d0 * x5 + d1 * x8
    return t0, t1, t2, t3, t4, t5, t6 + d0 * x6 + d1 * x9


@triton.jit
def _store_taps(place, t0, t1, t2, t3, t4, t5, t6):
    tl.store(place, tl.sum(t0))
    tl.store(place + 4, tl.sum(t1))
    tl.store(place + 8, tl.sum(t2))
    tl.store(place + 12, tl.sum(t3))
    tl.store(place + 16, tl.sum(t4))
    tl.store(place + 20, tl.sum(t5))
    tl.store(place + 24, tl.sum(t6))


@triton.jit(do_not_specialize=["views", "blocks", "repeat"])
def first_weights(
    g, x, w, scale, shift, constant, slope, keys, dw, views, threshold, boost, blocks, repeat,
    length: tl.constexpr, out: tl.constexpr, half: tl.constexpr, size: tl.constexpr,
    drop: tl.constexpr,
):  # fmt: skip
    """Seven taps of four channels: 28 running sums per lane, added up at the end."""
    block, member = tl.program_id(0), tl.program_id(1)
    w, scale, shift = w + member * 28, scale + member * 4, shift + member * 4
    constant, slope = constant + member * 4, slope + member * 4
    g += member.to(tl.int64) * views * half * 4
    pairs: tl.constexpr = (out + 1) // 2  # the last may have one position only
    i0 = tl.zeros([size], tl.float32)
    i1, i2, i3, i4, i5, i6 = i0, i0, i0, i0, i0, i0
    j0, j1, j2, j3, j4, j5, j6 = i0, i0, i0, i0, i0, i0, i0
    k0, k1, k2, k3, k4, k5, k6 = i0, i0, i0, i0, i0, i0, i0
    l0, l1, l2, l3, l4, l5, l6 = i0, i0, i0, i0, i0, i0, i0
    for r in range(repeat):
        row = (block * repeat + r) * size + tl.arange(0, size)
        n, q = row // pairs, row % pairs
        ok = row < views * pairs
        pooled, both = ok & (q < half), 2 * q + 1 < out
        xs = _samples(x, member, row, views, ok, pairs, length)
        element = n * half + q  # among the pooled
        at = element * 4
        draw = row
        if drop:
            draw = bits(tl.load(keys + member), element)
        i0, i1, i2, i3, i4, i5, i6 = _weight_sums(
            i0, i1, i2, i3, i4, i5, i6, g, at, pooled, both, w, scale, shift, constant, slope,
            draw, threshold, boost, 0, drop, *xs,
        )  # fmt: skip
        j0, j1, j2, j3, j4, j5, j6 = _weight_sums(
            j0, j1, j2, j3, j4, j5, j6, g, at, pooled, both, w, scale, shift, constant, slope,
            draw, threshold, boost, 1, drop, *xs,
        )  # fmt: skip
        k0, k1, k2, k3, k4, k5, k6 = _weight_sums(
            k0, k1, k2, k3, k4, k5, k6, g, at, pooled, both, w, scale, shift, constant, slope,
            draw, threshold, boost, 2, drop, *xs,
        )  # fmt: skip
        l0, l1, l2, l3, l4, l5, l6 = _weight_sums(
            l0, l1, l2, l3, l4, l5, l6, g, at, pooled, both, w, scale, shift, constant, slope,
            draw, threshold, boost, 3, drop, *xs,
        )  # fmt: skip
    place = dw + (member * blocks + block) * 28
    _store_taps(place, i0, i1, i2, i3, i4, i5, i6)
    _store_taps(place + 1, j0, j1, j2, j3, j4, j5, j6)
    _store_taps(place + 2, k0, k1, k2, k3, k4, k5, k6)
    _store_taps(place + 3, l0, l1, l2, l3, l4, l5, l6)
