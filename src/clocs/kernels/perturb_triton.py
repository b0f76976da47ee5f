"""Perturbations inside a Triton kernel: `clocs.pretraining.perturbations`, sample by sample.

A program is a chain as numbers: for each step its name's number in `keyed_random.stream`, followed
by the values of its options. A step changes values, or says from where each sample is taken; a
program has at most one of the latter, and the steps before it are computed where it points.
"""

from __future__ import annotations

import triton
import triton.language as tl

from clocs.kernels.random_triton import bits, fold, normal, uniform
from clocs.keyed_random import stream

GAUSSIAN = tl.constexpr(stream("gaussian"))
FLIP_X = tl.constexpr(stream("flip_x"))
FLIP_Y = tl.constexpr(stream("flip_y"))
SA_T = tl.constexpr(stream("sa_t"))
SCALING = tl.constexpr(stream("scaling"))
NOISE_SNR = tl.constexpr(stream("noise_snr"))
PERMUTATION = tl.constexpr(stream("permutation"))
TIME_WARP = tl.constexpr(stream("time_warp"))
_MOVING = (FLIP_Y.value, PERMUTATION.value, TIME_WARP.value)


@triton.constexpr_function
def item(values, k):
    return values[k]


@triton.constexpr_function
def moving_step(program):
    """The place of the step that moves samples; the number of steps where there is none."""
    return next((k for k, step in enumerate(program) if step[0] in _MOVING), len(program))


@triton.constexpr_function
def interpolates(program):
    """Whether a sample can be made of two neighbours."""
    return any(step[0] == TIME_WARP.value for step in program)


@triton.constexpr_function
def _mask_of(samples, w):
    """(time bins, masked bins) of `perturbations.sa_t`."""
    bins = 1 + -(-samples // 128)
    return bins, round(w * bins)


@triton.constexpr_function
def _share_of_power(db):
    return 10 ** (-db / 10)


@triton.constexpr_function
def _power_of_2(count):
    return triton.next_power_of_2(count)


@triton.jit
def step_key(key, place, step: tl.constexpr):
    """`Chain.keys_at`."""
    return fold(fold(key, item(step, 0)), place)


@triton.jit
def coin(key, window):
    """True with probability ½: a uniform draw below ½ is one whose highest bit is not set."""
    return (bits(key, window) >> 63) == 0


@triton.jit
def changed(x, i, ok, key, window, place: tl.constexpr, step: tl.constexpr, samples: tl.constexpr):
    """Values x at the samples i of a window after a step that leaves them in their places."""
    name: tl.constexpr = item(step, 0)
    key = step_key(key, place, step)
    if name == GAUSSIAN:
        x = x + normal(key, window * samples + i) * item(step, 1)
    elif name == FLIP_X:
        x = -x if item(step, 1) else tl.where(coin(key, window), -x, x)
    elif name == SA_T:
        x = x * _time_mask(i, key, window, item(step, 1), item(step, 2), samples)
    elif name == SCALING:
        x = x * item(step, 1)
    else:
        tl.static_assert(name == NOISE_SNR)
        mean = tl.sum(tl.where(ok, x, 0.0), axis=0) / samples
        apart = tl.where(ok, x - mean, 0.0)
        power = tl.sum(apart * apart, axis=0) / samples * _share_of_power(item(step, 1))
        x = x + tl.sqrt(power) * normal(key, window * samples + i)
    return x


@triton.jit
def _time_mask(i, key, window, w: tl.constexpr, r: tl.constexpr, samples: tl.constexpr):
    """The gain of `perturbations.sa_t`: the share of the windows' energy that is left."""
    bins: tl.constexpr = item(_mask_of(samples, w), 0)
    width: tl.constexpr = item(_mask_of(samples, w), 1)
    column = i // 128
    ends, begins = column < 0, column < 0  # whether the window that ends or begins here is masked
    for k in range(r):
        draw = uniform(key, window * r + k)
        first = (draw * (bins - width + 1)).to(tl.int32)
        ends = ends | ((column >= first) & (column < first + width))
        begins = begins | ((column + 1 >= first) & (column + 1 < first + width))
    wave = tl.cos((i % 128).to(tl.float32) * 0.02454369260617026)  # 2π / 256
    rising, falling = (1.0 - wave) * (1.0 - wave), (1.0 + wave) * (1.0 + wave)
    left = tl.where(begins, 0.0, rising) + tl.where(ends, 0.0, falling)
    return left / (rising + falling)


@triton.jit
def source(i, key, window, place: tl.constexpr, step: tl.constexpr, samples: tl.constexpr):
    """From where a step takes the samples i: (first sample, share of the one after it)."""
    name: tl.constexpr = item(step, 0)
    key = step_key(key, place, step)
    share = tl.zeros_like(i).to(tl.float32)
    if name == FLIP_Y:
        turned = samples - 1 - i
        i = turned if item(step, 1) else tl.where(coin(key, window), turned, i)
    elif name == PERMUTATION:
        i = _permuted(i, key, window, item(step, 1), samples)
    else:
        tl.static_assert(name == TIME_WARP)
        i, share = _warped(i, key, window, item(step, 1), item(step, 2), samples)
    return i, share


@triton.jit
def _permuted(i, key, window, pieces: tl.constexpr, samples: tl.constexpr):
    other = tl.arange(0, _power_of_2(pieces))
    draws = bits(key, window * pieces + other).to(tl.int64)
    size = (other + 1) * samples // pieces - other * samples // pieces
    size = tl.where(other < pieces, size, 0)
    at = i
    for piece in range(pieces):
        draw = bits(key, window * pieces + piece).to(tl.int64)
        earlier = (draws < draw) | ((draws == draw) & (other < piece))
        lands = tl.sum(tl.where(earlier, size, 0), axis=0)
        begin, end = piece * samples // pieces, (piece + 1) * samples // pieces
        at += tl.where((i >= lands) & (i < lands + end - begin), begin - lands, 0)
    return at


@triton.jit
def _stretch(key, draw, factor: tl.constexpr):
    longer = tl.full((), factor, tl.float64)
    return tl.where(coin(key, draw), longer, 1.0 / longer)


@triton.jit
def _warped(i, key, window, pieces: tl.constexpr, factor: tl.constexpr, samples: tl.constexpr):
    whole = tl.full((), 0.0, tl.float64)
    for p in range(pieces):
        whole += _stretch(key, window * pieces + p, factor)
    unit = (samples - 1) / whole
    length = tl.full((), (samples - 1) / pieces, tl.float64)  # of a piece before
    time = i.to(tl.float64)
    at = tl.zeros_like(time)
    end = tl.full((), 0.0, tl.float64)
    for p in range(pieces):
        begin = end
        end += _stretch(key, window * pieces + p, factor)
        slope = length / ((end - begin) * unit)
        first = p * length - begin * unit * slope
        at = tl.where(time >= begin * unit, first + time * slope, at)  # the last that has begun
    low = tl.minimum(tl.maximum(tl.floor(at), 0.0), samples - 2.0)
    return low.to(tl.int32), (at - low).to(tl.float32)
