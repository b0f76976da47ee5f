"""Windows gathered, perturbed and normalized on a GPU, by one Triton kernel.

Perturbations are those of `clocs.pretraining.perturbations`, sample by sample. A program is a chain
as numbers: for each step its name's number in `keyed_random.stream`, followed by the values of its
options. A step changes values, or says from where each sample is taken; a program has at most one
of the latter, and the steps before it are computed where it points.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from clocs.kernels.keyed_random import stream
from clocs.kernels.keyed_random_triton import bits, fold, normal, uniform

Program = tuple[tuple[float, ...], ...]  # a chain of perturbations as numbers

GAUSSIAN = tl.constexpr(stream("gaussian"))
FLIP_X = tl.constexpr(stream("flip_x"))
FLIP_Y = tl.constexpr(stream("flip_y"))
SA_T = tl.constexpr(stream("sa_t"))
SCALING = tl.constexpr(stream("scaling"))
NOISE_SNR = tl.constexpr(stream("noise_snr"))
PERMUTATION = tl.constexpr(stream("permutation"))
TIME_WARP = tl.constexpr(stream("time_warp"))
_MOVING = (FLIP_Y.value, PERMUTATION.value, TIME_WARP.value)
_COPY = tl.constexpr(stream("copy"))


def normalized_windows(
    flat: Tensor, starts: Tensor, samples: int, dtype: torch.dtype = torch.float32
) -> Tensor:
    """flat: (samples,) int16, starts: (…) -> (…, samples) in [0, 1] each."""
    out = torch.empty(*starts.shape, samples, device=flat.device, dtype=dtype)
    _windows[(starts.numel(), 1, 1)](
        flat, starts.contiguous(), None, None, None, None, out, 0, ((),), None, True, True,
        **_shape(samples),
    )  # fmt: skip
    return out


def perturbed_windows(
    flat: Tensor,
    starts: Tensor,
    rows: Tensor,
    scale: Tensor | None,
    keys: Tensor,
    *,
    located: bool,
    table: Tensor,
    programs: tuple[Program, ...],
    offset: float | None,
    normalized: bool,
    out: Tensor,
) -> None:
    """Fill out: (members, copies·windows·batch, samples), each view as its program says.

    Args:
        flat: (samples,) int16.
        starts: Where windows begin in `flat`: (instances, windows), or if `located` those of the
            batch, (members, windows·batch).
        rows: (members, batch), the instances of each member.
        scale: Of the shape of `starts`: mV per step; None to perturb windows in steps.
        keys: (members,) random keys of this batch.
        located: Whether `starts` are those of the batch.
        table: (members, copies) int32, the program of each copy; −1 for those to be left alone.
        programs: the chains.
        offset: Where not None, windows are normalized and moved by it before they are perturbed.
        normalized: Whether views are normalized after it.
        out: what is filled.
    """
    copies, samples = table.shape[1], out.shape[-1]
    own = None if scale is None else scale.contiguous()
    _windows[(out.shape[1] // copies, copies, len(table))](
        flat, starts.contiguous(), rows.contiguous(), own, keys.contiguous(), table, out,
        rows.shape[1], programs, offset, normalized, located, **_shape(samples),
    )  # fmt: skip


def _shape(samples: int) -> dict[str, int]:
    """A launch for windows of so many samples: at most 16 of them per thread, if possible."""
    width = triton.next_power_of_2(samples)
    # products are not fused with sums, so that they are rounded as torch rounds them
    launch = {"num_warps": min(max(width // 512, 4), 32), "enable_fp_fusion": False}
    return {"samples": samples, "width": width, **launch}


@triton.jit
def _windows(
    flat, starts, rows, scale, keys, table, o, batch,
    programs: tl.constexpr, offset: tl.constexpr, normalized: tl.constexpr, located: tl.constexpr,
    samples: tl.constexpr, width: tl.constexpr,
):  # fmt: skip
    """One view: a window of a member, as one of its copies."""
    window, copy, member = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    n, copies = tl.num_programs(0), tl.num_programs(1)
    number = member.to(tl.int64) * n + window
    place, factor, key, which = number, 1.0, number, 0
    if rows is not None:
        if not located:
            instance = tl.load(rows + member * batch + window % batch)
            place = instance * (n // batch) + window // batch
        if scale is not None:
            factor = tl.load(scale + place)
        key = fold(fold(tl.load(keys + member), _COPY), copy.to(tl.uint64))
        which = tl.load(table + member * copies + copy)
    flat += tl.load(starts + place)
    i = tl.arange(0, width)
    low, span = 0.0, 1.0
    if offset is not None:
        low, span = _range(tl.load(flat + i, mask=i < samples, other=0).to(tl.float32), i < samples)
    o += ((member.to(tl.int64) * copies + copy) * n + window) * samples
    for p in tl.static_range(len(programs)):
        if which == p:
            x = _perturbed(
                flat, factor, low, span, i, key, window, item(programs, p), offset,
                scale is not None, samples,
            )  # fmt: skip
            if normalized:
                low, span = _range(x, i < samples)
                x = tl.div_rn(x - low, span)
            tl.store(o + i, x, mask=i < samples)


@triton.jit
def _range(x, ok):
    """The least value, and how far the greatest is from it."""
    low = tl.min(tl.where(ok, x, float("inf")), axis=0)
    high = tl.max(tl.where(ok, x, float("-inf")), axis=0)
    return low, tl.maximum(high - low, 1e-6)


@triton.jit
def _perturbed(
    flat, factor, low, span, i, key, window,
    program: tl.constexpr, offset: tl.constexpr, scaled: tl.constexpr, samples: tl.constexpr,
):  # fmt: skip
    """The samples i of a window after all steps of the program."""
    moving: tl.constexpr = moving_step(program)
    j, share = i, 0.0
    if moving < len(program):
        j, share = source(i, key, window, moving, item(program, moving), samples)
    x = _unmoved(
        flat, factor, low, span, j, i < samples, key, window, program, moving, offset, scaled,
        samples,
    )  # fmt: skip
    if interpolates(program):
        y = _unmoved(
            flat, factor, low, span, j + 1, i < samples, key, window, program, moving, offset,
            scaled, samples,
        )  # fmt: skip
        # as `torch.lerp`
        x = tl.where(share < 0.5, x + share * (y - x), y - (y - x) * (1.0 - share))
    for place in tl.static_range(moving + 1, len(program)):
        x = changed(x, i, i < samples, key, window, place, item(program, place), samples)
    return x


@triton.jit
def _unmoved(
    flat, factor, low, span, j, ok, key, window,
    program: tl.constexpr, moving: tl.constexpr, offset: tl.constexpr, scaled: tl.constexpr,
    samples: tl.constexpr,
):  # fmt: skip
    """The samples j of a window after the steps before the one that moves samples."""
    x = tl.load(flat + j, mask=ok, other=0).to(tl.float32)
    if offset is not None:
        x = tl.div_rn(x - low, span) + offset
    elif scaled:
        x = x * factor
    for place in tl.static_range(moving):
        x = changed(x, j, ok, key, window, place, item(program, place), samples)
    return x


@triton.constexpr_function
def item(values, k):
    return values[k]


@triton.constexpr_function
def moving_step(program):
    """The place of the step that moves samples; the number of steps where there is none."""
    return next((k for k, step in enumerate(program) if step[0] in _MOVING), len(program))


@triton.constexpr_function
def interpolates(program):
    """Whether a sample can be made of two neighbors."""
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
