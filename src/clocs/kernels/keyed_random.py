"""Counter-based randomness: every number is a function of its place, not of what was drawn before.

A key is made of (seed, stream, epoch, step, …); a draw is a function of (key, element). So a fleet
equals its singles, a resumed run equals an uninterrupted one, and every device draws the same bits.
A process that has some rows of a batch only draws, within `of_rows`, what these rows have in it.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

from clocs.kernels.gpu import can_use_triton

_GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)  # as a signed 64-bit integer
_M1 = 0xBF58476D1CE4E5B9 - (1 << 64)
_M2 = 0x94D049BB133111EB - (1 << 64)
_ROWS: ContextVar[Tensor | None] = ContextVar("rows", default=None)


def _shift(x: Tensor, bits: int) -> Tensor:
    """Logical right shift of int64 (torch's own is arithmetic)."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def mix(x: Tensor) -> Tensor:
    """SplitMix64's finalizer: int64 -> well-mixed int64, the same on every device."""
    x = (x ^ _shift(x, 30)) * _M1
    x = (x ^ _shift(x, 27)) * _M2
    return x ^ _shift(x, 31)


def stream(name: str) -> int:
    """A stable number for a named use of randomness ('order', 'dropout', …)."""
    return zlib.crc32(name.encode())


def fold(key: Tensor, *parts: int | Tensor) -> Tensor:
    """A new key from a key and further coordinates (stream, epoch, step, layer …)."""
    if can_use_triton(key) and key.numel():
        from clocs.kernels.keyed_random_triton import folded

        return folded(key, parts)
    for part in parts:
        key = mix(key * 31 + part + _GOLDEN)
    return key


def member_keys(seeds: list[int], device: torch.device | str = "cpu") -> Tensor:
    """Seeds -> (members,) int64 keys."""
    return fold(torch.tensor(seeds, dtype=torch.int64, device=device), stream("member"))


@contextmanager
def of_rows(rows: Tensor) -> Iterator[None]:
    """Within this `with`, all draws are those of some rows of a batch: (own,) their numbers in it.

    As many numbers are drawn for each row, and those of a row are next to one another.
    """
    before = _ROWS.set(rows)
    try:
        yield
    finally:
        _ROWS.reset(before)


def bits(key: Tensor, count: int) -> Tensor:
    """key: (members,) -> (members, count) int64 of uniformly random bits."""
    rows = _ROWS.get()
    if rows is not None:
        return mix(key[:, None] + (_elements(rows, count) + 1) * _GOLDEN)
    if can_use_triton(key) and key.numel():
        from clocs.kernels.keyed_random_triton import drawn

        return drawn(key, count, torch.int64)
    element = torch.arange(1, count + 1, device=key.device)
    return mix(key[:, None] + element * _GOLDEN)


def bits_in_groups(key: Tensor, count: int, size: int) -> tuple[Tensor, Tensor]:
    """Bits that `size` elements after one another have in common, for `count` of these.

    key: (members,) -> (members, count) int64 as `bits` would draw for the groups, and (count,) the
    place of each element in its group; a group may reach from one row into the next.
    """
    rows = _ROWS.get()
    every = torch.arange(count, device=key.device)
    element = every if rows is None else _elements(rows, count)
    return mix(key[:, None] + (element // size + 1) * _GOLDEN), element % size


def _elements(rows: Tensor, count: int) -> Tensor:
    """(count,) the numbers that the elements of these rows have in the whole batch."""
    each, rest = divmod(count, max(len(rows), 1))
    if rest:
        raise ValueError(f"{count} numbers cannot be drawn for {len(rows)} rows")
    element: Tensor = rows[:, None] * each + torch.arange(each, device=rows.device)
    return element.flatten()


def uniform(key: Tensor, count: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """key: (members,) -> (members, count) uniform in [0, 1)."""
    if can_use_triton(key) and key.numel() and _ROWS.get() is None:
        from clocs.kernels.keyed_random_triton import drawn

        return drawn(key, count, dtype)
    return (_shift(bits(key, count), 11).to(torch.float64) * 2.0**-53).to(dtype)


def symmetric(keys: Tensor, name: str, shape: tuple[int, ...], fan_in: int) -> Tensor:
    """keys: (members,) -> (members, *shape) uniform in ±1/√fan_in, as torch starts its layers."""
    if not len(keys):  # shapes alone, however large
        return torch.empty(0, *shape, device=keys.device)
    draws = uniform(fold(keys, stream(name)), torch.Size(shape).numel(), torch.float32)
    return (draws * 2 - 1).mul(fan_in**-0.5).view(len(keys), *shape)


def permutation(key: Tensor, count: int) -> Tensor:
    """key: (members,) -> (members, count): an independent random order of 0…count−1 each."""
    return bits(key, count).argsort(dim=1, stable=True)


def dropout(x: Tensor, p: float, key: Tensor) -> Tensor:
    """x: (members, …), each element zeroed with probability p (in steps of 2⁻¹⁶), others scaled up.

    One 64-bit draw decides four elements, so the mask costs a fraction of a convolution.
    """
    return dropped(x, p, lanes(key, x[0].numel()))


def lanes(key: Tensor, count: int) -> Tensor:
    """key: (members,) -> (members, count) int16, uniformly random, four to a draw."""
    rows = _ROWS.get()
    if rows is not None and count % (4 * max(len(rows), 1)):
        draws, lane = bits_in_groups(key, count, 4)
        return (draws >> 16 * lane).to(torch.int16)
    return bits(key, (count + 3) // 4).view(torch.int16)[:, :count]


def dropped(x: Tensor, p: float, draws: Tensor) -> Tensor:
    """`dropout` by random numbers that `lanes` has drawn, as many as x has."""
    threshold = round(p * 65536)
    keep = draws >= threshold - 32768
    return x * (keep.view(x.shape) * (65536 / (65536 - threshold))).to(x.dtype)
