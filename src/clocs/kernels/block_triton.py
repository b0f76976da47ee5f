"""The paper's block as Triton kernels: what each one reads and writes.

forward   convolve    h, w        -> y, partial Σy and Σy²          (no unfolded copy of h)
          statistics  partial sums -> mean, variance, scale and shift
          pool        y           -> the larger of two, scaled, ReLU, dropout
backward  sums        g, y        -> partial Σg and Σg·ŷ            (batch norm's two means)
          slopes      partial sums -> d_γ, d_β, d_y's part through mean and variance
          spread      g, y        -> d_y
          weights     h, d_y      -> partial d_w
          add_up      partial d_w -> d_w
          inputs      d_y, w      -> d_h

The first block, one channel in and four out, has kernels of its own unless the gradient of its
input is asked for. Its convolution is seven products: each kernel computes it anew from the
samples, which is faster than to write it down (twice the size of the samples) and to read it three
times. A lane works on the four channels of a pair of positions, 2q and 2q + 1, which lie over ten
samples.

forward   first_sums     x, w    -> partial Σy and Σy²
          first_pool     x, w    -> the larger of two, scaled, ReLU, dropout
backward  first_slopes   g, x, w -> partial Σg and Σg·ŷ
          first_weights  g, x, w -> partial d_w

Activations are (members, n, length, channels), so that the 7·c values under a kernel are
adjacent, in float32 or bfloat16; statistics and sums are float32. Matrix products of float32 are
made in three TF32 passes, as exact as float32 to a few units in the last place. `layers_triton`
calls them. Imported only where there is a GPU.
"""

from __future__ import annotations

import triton
import triton.language as tl

from clocs.kernels.keyed_random_triton import bits, kept


@triton.jit
def _under(kernel, k, c, c_in: tl.constexpr, c_out: tl.constexpr):
    """Rows k of a kernel's weights."""
    return tl.load(
        kernel + k[:, None] * c_out + c[None, :],
        mask=(k[:, None] < 7 * c_in) & (c[None, :] < c_out),
        other=0.0,
    )


@triton.jit(do_not_specialize=["rows", "blocks", "repeat"])
def convolve(
    h, w, y, sums, rows, blocks, repeat, length: tl.constexpr, out: tl.constexpr,
    c_in: tl.constexpr, c_out: tl.constexpr, c_pad: tl.constexpr, size: tl.constexpr,
    chunk: tl.constexpr,
):  # fmt: skip
    block, member = tl.program_id(0), tl.program_id(1)
    c = tl.arange(0, c_pad)
    kernel = w + member * 7 * c_in * c_out
    h += member.to(tl.int64) * (rows // out) * length * c_in
    y += member.to(tl.int64) * rows * c_out
    once: tl.constexpr = 7 * c_in <= chunk  # the weights fit into registers
    weight = _under(kernel, tl.arange(0, chunk), c, c_in, c_out)
    total = tl.zeros([size, c_pad], tl.float32)
    squares = tl.zeros([size, c_pad], tl.float32)
    for i in range(repeat):
        row = (block * repeat + i) * size + tl.arange(0, size)
        n, t = row // out, row % out
        at = (n * length + 3 * t) * c_in
        value = tl.zeros([size, c_pad], tl.float32)
        for first in tl.static_range(0, 7 * c_in, chunk):
            k = first + tl.arange(0, chunk)
            inside = k < 7 * c_in
            window = tl.load(
                h + at[:, None] + k[None, :],
                mask=(row[:, None] < rows) & inside[None, :],
                other=0.0,
            )
            if not once:
                weight = _under(kernel, k, c, c_in, c_out)
            value = tl.dot(window, weight.to(window.dtype), value, input_precision="tf32x3")
        ok = (row[:, None] < rows) & (c[None, :] < c_out)
        tl.store(y + row[:, None] * c_out + c[None, :], value, mask=ok)
        total += value  # rows beyond the last are zero
        squares += value * value
    place = (member * blocks + block) * 2 * c_out + c
    tl.store(sums + place, tl.sum(total, axis=0), mask=c < c_out)
    tl.store(sums + place + c_out, tl.sum(squares, axis=0), mask=c < c_out)


@triton.jit
def statistics(
    sums, gamma, beta, mean, variance, deviation, scale, shift, blocks, rows, unbiased, epsilon,
    c_out: tl.constexpr, width: tl.constexpr,
):  # fmt: skip
    """Partial sums of a member -> mean, variance, and batch norm as one scale and shift."""
    member = tl.program_id(0)
    c, block = tl.arange(0, c_out), tl.arange(0, width)
    at = sums + (member * blocks + block[:, None]) * 2 * c_out + c[None, :]
    ok = block[:, None] < blocks
    first = tl.sum(tl.load(at, mask=ok, other=0.0).to(tl.float64), axis=0) / rows
    second = tl.sum(tl.load(at + c_out, mask=ok, other=0.0).to(tl.float64), axis=0) / rows
    spread = tl.maximum(second - first * first, 0.0).to(tl.float32)
    middle = first.to(tl.float32)
    inverse = 1.0 / tl.sqrt(spread + epsilon)
    place = member * c_out + c
    factor = tl.load(gamma + place) * inverse
    tl.store(mean + place, middle)
    tl.store(variance + place, spread * unbiased)
    tl.store(deviation + place, inverse)
    tl.store(scale + place, factor)
    tl.store(shift + place, tl.load(beta + place) - middle * factor)


@triton.jit
def slopes(
    sums, mean, deviation, scale, d_gamma, d_beta, constant, slope, blocks, rows,
    c_out: tl.constexpr, width: tl.constexpr,
):  # fmt: skip
    """Partial sums of a member -> d_gamma, d_beta, and d_y's part through mean and variance."""
    member = tl.program_id(0)
    c, block = tl.arange(0, c_out), tl.arange(0, width)
    at = sums + (member * blocks + block[:, None]) * 2 * c_out + c[None, :]
    ok = block[:, None] < blocks
    beta = tl.sum(tl.load(at, mask=ok, other=0.0), axis=0)
    gamma = tl.sum(tl.load(at + c_out, mask=ok, other=0.0), axis=0)
    place = member * c_out + c
    factor = tl.load(scale + place)
    tilt = -factor * tl.load(deviation + place) * gamma / rows
    tl.store(d_gamma + place, gamma)
    tl.store(d_beta + place, beta)
    tl.store(slope + place, tilt)
    tl.store(constant + place, -factor * beta / rows - tl.load(mean + place) * tilt)


@triton.jit
def pool(
    y, scale, shift, keys, o, total, threshold, boost, out: tl.constexpr, half: tl.constexpr,
    c_out: tl.constexpr, size: tl.constexpr, drop: tl.constexpr,
):  # fmt: skip
    """Scale, shift, the larger of two, ReLU, dropout; one element of the output per lane."""
    member = tl.program_id(1)
    element = tl.program_id(0) * size + tl.arange(0, size)
    ok = element < total
    c, position = element % c_out, element // c_out
    n, q = position // half, position % half
    a = tl.load(scale + member * c_out + c, mask=ok, other=0.0)
    b = tl.load(shift + member * c_out + c, mask=ok, other=0.0)
    views = total // (half * c_out)
    y += member.to(tl.int64) * views * out * c_out
    at = (n * out + 2 * q) * c_out + c
    first = tl.load(y + at, mask=ok, other=0.0).to(tl.float32) * a + b
    second = tl.load(y + at + c_out, mask=ok, other=0.0).to(tl.float32) * a + b
    value = tl.maximum(tl.maximum(first, second), 0.0)
    if drop:
        draw = bits(tl.load(keys + member), element // 4)
        value = tl.where(kept(draw, element % 4, threshold), value * boost, 0.0)
    tl.store(o + member.to(tl.int64) * total + element, value, mask=ok)


@triton.jit
def _gradient(
    g, y, scale, shift, keys, member, n, q, c, ok, views, out: tl.constexpr, half: tl.constexpr,
    threshold, boost, c_out: tl.constexpr, drop: tl.constexpr,
):  # fmt: skip
    """A pair's gradient after dropout and ReLU, both its values, and which is larger."""
    a = tl.load(scale + member * c_out + c, mask=ok, other=0.0)
    b = tl.load(shift + member * c_out + c, mask=ok, other=0.0)
    y += member.to(tl.int64) * views * out * c_out
    g += member.to(tl.int64) * views * half * c_out
    at = (n * out + 2 * q) * c_out + c
    first = tl.load(y + at, mask=ok, other=0.0).to(tl.float32)
    second = tl.load(y + at + c_out, mask=ok, other=0.0).to(tl.float32)
    up, down = first * a + b, second * a + b
    wins = up >= down
    element = (n * half + q) * c_out + c
    value = tl.load(g + element, mask=ok, other=0.0).to(tl.float32)
    if drop:
        draw = bits(tl.load(keys + member), element // 4)
        value = tl.where(kept(draw, element % 4, threshold), value * boost, 0.0)
    value = tl.where(tl.maximum(up, down) > 0.0, value, 0.0)
    return value, first, second, wins


@triton.jit(do_not_specialize=["views", "blocks", "repeat"])
def sums(
    g, y, scale, shift, mean, deviation, keys, sums, views, threshold, boost, blocks, repeat,
    out: tl.constexpr, half: tl.constexpr, c_out: tl.constexpr, size: tl.constexpr,
    drop: tl.constexpr,
):  # fmt: skip
    block, member = tl.program_id(0), tl.program_id(1)
    c = tl.arange(0, c_out)
    middle = tl.load(mean + member * c_out + c)
    inverse = tl.load(deviation + member * c_out + c)
    beta = tl.zeros([size, c_out], tl.float32)
    gamma = tl.zeros([size, c_out], tl.float32)
    for i in range(repeat):
        row = (block * repeat + i) * size + tl.arange(0, size)
        n, q = row // half, row % half
        ok = (row[:, None] < views * half) & (c[None, :] < c_out)
        value, first, second, wins = _gradient(
            g, y, scale, shift, keys, member, n[:, None], q[:, None], c[None, :], ok, views, out,
            half, threshold, boost, c_out, drop,
        )  # fmt: skip
        normal = (tl.where(wins, first, second) - middle[None, :]) * inverse[None, :]
        beta += value
        gamma += value * normal
    place = (member * blocks + block) * 2 * c_out + c
    tl.store(sums + place, tl.sum(beta, axis=0))
    tl.store(sums + place + c_out, tl.sum(gamma, axis=0))


@triton.jit
def spread(
    g, y, scale, shift, constant, slope, keys, dy, views, total, threshold, boost,
    out: tl.constexpr, half: tl.constexpr, c_out: tl.constexpr, size: tl.constexpr,
    drop: tl.constexpr,
):  # fmt: skip
    """d_y = scale·g where it won + constant + slope·y: one pair of positions per lane."""
    member = tl.program_id(1)
    element = tl.program_id(0) * size + tl.arange(0, size)
    pairs = (out + 1) // 2  # the last may have one position only, and never wins
    ok = element < total
    c, position = element % c_out, element // c_out
    n, q = position // pairs, position % pairs
    pooled = ok & (q < half)
    value, first, second, wins = _gradient(
        g, y, scale, shift, keys, member, n, q, c, pooled, views, out, half, threshold, boost,
        c_out, drop,
    )  # fmt: skip
    a = tl.load(scale + member * c_out + c, mask=ok, other=0.0)
    base = tl.load(constant + member * c_out + c, mask=ok, other=0.0)
    tilt = tl.load(slope + member * c_out + c, mask=ok, other=0.0)
    y += member.to(tl.int64) * views * out * c_out
    dy += member.to(tl.int64) * views * out * c_out
    at = (n * out + 2 * q) * c_out + c
    last = tl.load(y + at, mask=ok & (q >= half), other=0.0).to(tl.float32)
    first = tl.where(pooled, first, last)
    tl.store(dy + at, tl.where(wins, value * a, 0.0) + base + tilt * first, mask=ok)
    tl.store(dy + at + c_out, tl.where(wins, 0.0, value * a) + base + tilt * second, mask=pooled)


@triton.jit(do_not_specialize=["rows", "blocks", "repeat"])
def weights(
    h, dy, dw, rows, blocks, repeat, length: tl.constexpr, out: tl.constexpr,
    c_in: tl.constexpr, c_out: tl.constexpr, c_pad: tl.constexpr, size: tl.constexpr,
    chunk: tl.constexpr, chunks: tl.constexpr,
):  # fmt: skip
    """One chunk of the values under the kernel per program; its neighbors read the same d_y."""
    member = tl.program_id(1)
    block, part = tl.program_id(0) // chunks, tl.program_id(0) % chunks
    k, c = part * chunk + tl.arange(0, chunk), tl.arange(0, c_pad)
    inside = k[:, None] < 7 * c_in
    h += member.to(tl.int64) * (rows // out) * length * c_in
    dy += member.to(tl.int64) * rows * c_out
    total = tl.zeros([chunk, c_pad], tl.float32)
    for i in range(repeat):
        row = (block * repeat + i) * size + tl.arange(0, size)
        n, t = row // out, row % out
        at = (n * length + 3 * t) * c_in
        window = tl.load(
            h + at[None, :] + k[:, None], mask=(row[None, :] < rows) & inside, other=0.0
        )
        slope = tl.load(
            dy + row[:, None] * c_out + c[None, :],
            mask=(row[:, None] < rows) & (c[None, :] < c_out),
            other=0.0,
        )
        total = tl.dot(window, slope, total, input_precision="tf32x3")
    place = (member * blocks + block) * 7 * c_in * c_out + k[:, None] * c_out + c[None, :]
    tl.store(dw + place, total, mask=inside & (c[None, :] < c_out))


@triton.jit(do_not_specialize=["blocks", "count"])
def add_up(parts, total, blocks, count, height: tl.constexpr, size: tl.constexpr):
    """(members, blocks, count) -> (members, count), always in the same order."""
    member = tl.program_id(1)
    i, block = tl.program_id(0) * size + tl.arange(0, size), tl.arange(0, height)
    held = tl.zeros([height, size], tl.float32)
    for first in range(0, blocks, height):
        at = (member * blocks + first + block).to(tl.int64)[:, None] * count + i[None, :]
        ok = (first + block[:, None] < blocks) & (i[None, :] < count)
        held += tl.load(parts + at, mask=ok, other=0.0)
    tl.store(total + member * count + i, tl.sum(held, axis=0), mask=i < count)


@triton.jit
def _taps(w, member, i, c, j: tl.constexpr, c_in: tl.constexpr, c_out: tl.constexpr):
    """Weights at the taps phase + 3j, for channels out c and i = phase · c_in + channel in."""
    phase, channel = i // c_in, i % c_in
    tap = phase + 3 * j
    return tl.load(
        w + ((member * 7 + tap) * c_in + channel)[None, :] * c_out + c[:, None],
        mask=((phase < 3) & (tap < 7))[None, :] & (c < c_out)[:, None],
        other=0.0,
    )


@triton.jit
def _through(
    dy, n, q, weight, total, ok, c, j: tl.constexpr, out: tl.constexpr, c_out: tl.constexpr
):
    """The sum of `total` and the gradient that comes from position q − j."""
    ok = (ok & (q >= j) & (q - j < out))[:, None] & (c < c_out)[None, :]
    at = (n * out + q - j) * c_out
    slope = tl.load(dy + at[:, None] + c[None, :], mask=ok, other=0.0)
    return tl.dot(slope, weight.to(slope.dtype), total, input_precision="tf32x3")


@triton.jit(do_not_specialize=["rows", "repeat"])
def inputs(
    dy, w, dh, rows, repeat, length: tl.constexpr, out: tl.constexpr, thirds: tl.constexpr,
    c_in: tl.constexpr, c_out: tl.constexpr, c_pad: tl.constexpr, i_pad: tl.constexpr,
    size: tl.constexpr,
):  # fmt: skip
    """d_h at the samples 3q, 3q + 1 and 3q + 2 of all channels, which are adjacent.

    Sample 3q + phase is under tap phase + 3j of position q − j.
    """
    block, member = tl.program_id(0), tl.program_id(1)
    c, i = tl.arange(0, c_pad), tl.arange(0, i_pad)
    phase = i // c_in
    w0 = _taps(w, member, i, c, 0, c_in, c_out)
    w1 = _taps(w, member, i, c, 1, c_in, c_out)
    w2 = _taps(w, member, i, c, 2, c_in, c_out)
    dy += member.to(tl.int64) * (rows // thirds) * out * c_out
    dh += member.to(tl.int64) * (rows // thirds) * length * c_in
    for r in range(repeat):
        row = (block * repeat + r) * size + tl.arange(0, size)
        n, q = row // thirds, row % thirds
        total = tl.zeros([size, i_pad], tl.float32)
        total = _through(dy, n, q, w0, total, row < rows, c, 0, out, c_out)
        total = _through(dy, n, q, w1, total, row < rows, c, 1, out, c_out)
        total = _through(dy, n, q, w2, total, row < rows, c, 2, out, c_out)
        inside = (row[:, None] < rows) & (3 * q[:, None] + phase[None, :] < length)
        at = (n * length + 3 * q) * c_in
        tl.store(dh + at[:, None] + i[None, :], total, mask=inside & (phase[None, :] < 3))


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
def _convolved(w, c, xs, start: tl.constexpr):
    """(4, size): all channels over the samples from `start`."""
    total = tl.load(w + c)[:, None] * xs[start][None, :]
    for k in tl.static_range(1, 7):
        total += tl.load(w + 4 * k + c)[:, None] * xs[start + k][None, :]
    return total


@triton.jit(do_not_specialize=["views", "blocks", "repeat"])
def first_sums(
    x, w, sums, views, blocks, repeat,
    length: tl.constexpr, out: tl.constexpr, size: tl.constexpr,
):  # fmt: skip
    block, member = tl.program_id(0), tl.program_id(1)
    c = tl.arange(0, 4)
    w += member * 28
    pairs: tl.constexpr = (out + 1) // 2  # the last may have one position only
    total = tl.zeros([4, size], tl.float32)
    squares = tl.zeros([4, size], tl.float32)
    for i in range(repeat):
        row = (block * repeat + i) * size + tl.arange(0, size)
        both = 2 * (row % pairs) + 1 < out
        xs = _samples(x, member, row, views, row < views * pairs, pairs, length)
        a = _convolved(w, c, xs, 0)
        b = tl.where(both[None, :], _convolved(w, c, xs, 3), 0.0)
        total += a + b
        squares += a * a + b * b
    place = sums + (member * blocks + block) * 8 + c
    tl.store(place, tl.sum(total, axis=1))
    tl.store(place + 4, tl.sum(squares, axis=1))


@triton.jit(do_not_specialize=["views"])
def first_pool(
    x, w, scale, shift, keys, o, views, threshold, boost,
    length: tl.constexpr, half: tl.constexpr, size: tl.constexpr, drop: tl.constexpr,
):  # fmt: skip
    member, c = tl.program_id(1), tl.arange(0, 4)
    row = tl.program_id(0) * size + tl.arange(0, size)
    ok = row < views * half
    w += member * 28
    a = tl.load(scale + member * 4 + c)[:, None]
    b = tl.load(shift + member * 4 + c)[:, None]
    xs = _samples(x, member, row, views, ok, half, length)
    first, second = _convolved(w, c, xs, 0) * a + b, _convolved(w, c, xs, 3) * a + b
    value = tl.maximum(tl.maximum(first, second), 0.0)
    if drop:
        draw = bits(tl.load(keys + member), row)
        value = tl.where(kept(draw[None, :], c[:, None], threshold), value * boost, 0.0)
    o += member.to(tl.int64) * views * half * 4
    tl.store(o + row[None, :] * 4 + c[:, None], value, mask=ok[None, :])


@triton.jit
def _first_gradient(
    g, element, ok, w, scale, shift, key, threshold, boost, c, drop: tl.constexpr, xs
):  # fmt: skip
    """A pair's gradient after dropout and ReLU, both its values, and which is larger."""
    a, b = tl.load(scale + c)[:, None], tl.load(shift + c)[:, None]
    first, second = _convolved(w, c, xs, 0), _convolved(w, c, xs, 3)
    up, down = first * a + b, second * a + b
    value = tl.load(g + element[None, :] * 4 + c[:, None], mask=ok[None, :], other=0.0)
    value = value.to(tl.float32)
    if drop:
        draw = bits(tl.load(key), element)
        value = tl.where(kept(draw[None, :], c[:, None], threshold), value * boost, 0.0)
    value = tl.where(tl.maximum(up, down) > 0.0, value, 0.0)
    return value, first, second, up >= down


@triton.jit(do_not_specialize=["views", "blocks", "repeat"])
def first_slopes(
    g, x, w, scale, shift, mean, deviation, keys, sums, views, threshold, boost, blocks, repeat,
    length: tl.constexpr, half: tl.constexpr, size: tl.constexpr, drop: tl.constexpr,
):  # fmt: skip
    block, member, c = tl.program_id(0), tl.program_id(1), tl.arange(0, 4)
    w, scale, shift = w + member * 28, scale + member * 4, shift + member * 4
    middle = tl.load(mean + member * 4 + c)[:, None]
    inverse = tl.load(deviation + member * 4 + c)[:, None]
    g += member.to(tl.int64) * views * half * 4
    beta = tl.zeros([4, size], tl.float32)
    gamma = tl.zeros([4, size], tl.float32)
    for i in range(repeat):
        row = (block * repeat + i) * size + tl.arange(0, size)
        ok = row < views * half
        xs = _samples(x, member, row, views, ok, half, length)
        value, first, second, wins = _first_gradient(
            g, row, ok, w, scale, shift, keys + member, threshold, boost, c, drop, xs
        )
        beta += value
        gamma += value * ((tl.where(wins, first, second) - middle) * inverse)
    place = sums + (member * blocks + block) * 8 + c
    tl.store(place, tl.sum(beta, axis=1))
    tl.store(place + 4, tl.sum(gamma, axis=1))


@triton.jit(do_not_specialize=["views", "blocks", "repeat"])
def first_weights(
    g, x, w, scale, shift, constant, slope, keys, dw, views, threshold, boost, blocks, repeat,
    length: tl.constexpr, out: tl.constexpr, half: tl.constexpr, size: tl.constexpr,
    drop: tl.constexpr,
):  # fmt: skip
    """Seven taps of four channels: 28 running sums per lane, added up at the end."""
    block, member, c = tl.program_id(0), tl.program_id(1), tl.arange(0, 4)
    w, scale, shift = w + member * 28, scale + member * 4, shift + member * 4
    a = tl.load(scale + c)[:, None]
    base = tl.load(constant + member * 4 + c)[:, None]
    tilt = tl.load(slope + member * 4 + c)[:, None]
    g += member.to(tl.int64) * views * half * 4
    pairs: tl.constexpr = (out + 1) // 2  # the last may have one position only
    t0 = tl.zeros([4, size], tl.float32)
    t1, t2, t3, t4, t5, t6 = t0, t0, t0, t0, t0, t0
    for r in range(repeat):
        row = (block * repeat + r) * size + tl.arange(0, size)
        n, q = row // pairs, row % pairs
        ok = row < views * pairs
        xs = _samples(x, member, row, views, ok, pairs, length)
        value, first, second, wins = _first_gradient(
            g, n * half + q, ok & (q < half), w, scale, shift, keys + member, threshold, boost, c,
            drop, xs,
        )  # fmt: skip
        d0 = tl.where(wins, value * a, 0.0) + base + tilt * first
        d1 = tl.where(wins, 0.0, value * a) + base + tilt * second
        d1 = tl.where((2 * q + 1 < out)[None, :], d1, 0.0)
        t0 = t0 + d0 * xs[0][None, :] + d1 * xs[3][None, :]
        t1 = t1 + d0 * xs[1][None, :] + d1 * xs[4][None, :]
        t2 = t2 + d0 * xs[2][None, :] + d1 * xs[5][None, :]
        t3 = t3 + d0 * xs[3][None, :] + d1 * xs[6][None, :]
        t4 = t4 + d0 * xs[4][None, :] + d1 * xs[7][None, :]
        t5 = t5 + d0 * xs[5][None, :] + d1 * xs[8][None, :]
        t6 = t6 + d0 * xs[6][None, :] + d1 * xs[9][None, :]
    place = dw + (member * blocks + block) * 28 + c
    tl.store(place, tl.sum(t0, axis=1))
    tl.store(place + 4, tl.sum(t1, axis=1))
    tl.store(place + 8, tl.sum(t2, axis=1))
    tl.store(place + 12, tl.sum(t3, axis=1))
    tl.store(place + 16, tl.sum(t4, axis=1))
    tl.store(place + 20, tl.sum(t5, axis=1))
    tl.store(place + 24, tl.sum(t6, axis=1))
