"""Windows gathered, perturbed and normalized on a GPU, by one Triton kernel."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from clocs.kernels.perturb_triton import changed, interpolates, item, moving_step, source
from clocs.kernels.random_triton import fold
from clocs.keyed_random import stream

Program = tuple[tuple[float, ...], ...]  # a chain of perturbations: see `perturb_triton`

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
        scale: (instances, windows) mV per step; None to perturb windows in steps.
        keys: (members,) random keys of this batch.
        located: Whether `starts` are those of the batch.
        table: (members, copies) int32, the program of each copy; −1 for those to be left alone.
        programs: the chains.
        offset: Where not None, windows are normalized and moved by it before they are perturbed.
        normalized: Whether views are normalized after it.
        out: what is filled.
    """
    copies, samples = table.shape[1], out.shape[-1]
    _windows[(out.shape[1] // copies, copies, len(table))](
        flat, starts.contiguous(), rows.contiguous(), scale, keys.contiguous(), table, out,
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
        instance = tl.load(rows + member * batch + window % batch)
        at = instance * (n // batch) + window // batch
        if scale is not None:
            factor = tl.load(scale + at)
        key = fold(fold(tl.load(keys + member), _COPY), copy.to(tl.uint64))
        which = tl.load(table + member * copies + copy)
        if not located:
            place = at
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
