"""What a training step does beside the task, on a GPU: its rows, and Adam.

Imported only where there is a GPU, or by tests in Triton's interpreter.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_SIZE = 1024  # weights that a program updates


def step_inputs(
    order: Tensor, step_keys: Tensor, number: Tensor, size: int, live: Tensor, steps: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Rows and keys of a step, and which members have it: (members, size), (members,), bool.

    Args:
        order: (members, rows) of the epoch.
        step_keys: (steps, members).
        number: () of the step; beyond the last step it starts again.
        size: Rows of a step.
        live: (members,) bool.
        steps: (members,) steps that each has in an epoch.
    """
    members = len(order)
    rows, keys = order.new_empty(members, size), step_keys.new_empty(members)
    on = torch.empty_like(live)
    block = min(1024, triton.next_power_of_2(size))
    _inputs[(triton.cdiv(size, block), members)](
        order, step_keys, number, live, steps, rows, keys, on, order.shape[1], size, members,
        len(step_keys), block,
    )  # fmt: skip
    return rows, keys, on


def adam(
    numbers: dict[str, float], on: Tensor, loss: Tensor, given: dict[str, Tensor], **state: Tensor
) -> Tensor:
    """`clocs.kernels.native.adam` on a GPU: (members,) bool, which moved."""
    members, weights = state["theta"].shape
    blocks, statistics = triton.cdiv(weights, _SIZE), state["buffers"].shape[1]
    gradient, after = given["gradient"].contiguous(), given["after"]
    if after.stride(1) != 1:
        after = after.contiguous()
    # what a program changes is never what another one of the same launch reads
    bad = torch.empty(members, blocks, dtype=torch.int32, device=on.device)
    had = torch.empty(members, dtype=torch.int64, device=on.device)
    _check[(blocks, members)](
        gradient, loss, on, state["live"], state["steps"], bad, had, weights, blocks, _SIZE
    )
    moved = torch.empty_like(on)
    _update[(blocks, members)](
        gradient, after, bad, had, *(state[k] for k in _STATE), moved,
        weights, statistics, after.stride(0), blocks,
        numbers["lr"], numbers["beta1"], numbers["beta2"], numbers["epsilon"],
        triton.next_power_of_2(blocks), triton.cdiv(statistics, blocks * _SIZE), _SIZE,
    )  # fmt: skip
    return moved


_STATE = ("theta", "moment1", "moment2", "buffers", "steps", "live", "broken")


@triton.jit
def _inputs(
    order, step_keys, number, live, steps, rows, keys, on, length, size, members, longest,
    block: tl.constexpr,
):  # fmt: skip
    member = tl.program_id(1)
    place = tl.program_id(0) * block + tl.arange(0, block)
    step = tl.load(number)
    within = step % longest
    row = tl.load(order + member.to(tl.int64) * length + within * size + place, mask=place < size)
    tl.store(rows + member * size + place, row, mask=place < size)
    if tl.program_id(0) == 0:
        tl.store(keys + member, tl.load(step_keys + within * members + member))
        has = (step < tl.load(steps + member)) & (tl.load(live + member) != 0)
        tl.store(on + member, has)


@triton.jit
def _finite(x):
    return (x.to(tl.int32, bitcast=True) & 0x7FFFFFFF) < 0x7F800000


@triton.jit
def _check(gradient, loss, on, live, steps, bad, had, weights, blocks, size: tl.constexpr):
    """Whether a block of the gradient, or the loss, is not finite; and the steps made before.

    `had` is −1 for a member that does nothing.
    """
    block, member = tl.program_id(0), tl.program_id(1)
    i = block * size + tl.arange(0, size)
    g = tl.load(gradient + member.to(tl.int64) * weights + i, mask=i < weights, other=0.0)
    count = tl.sum(tl.where(_finite(g), 0, 1), axis=0)
    count += tl.where(_finite(tl.load(loss + member)), 0, 1)
    tl.store(bad + member * blocks + block, count)
    if block == 0:
        does = (tl.load(on + member) != 0) & (tl.load(live + member) != 0)
        tl.store(had + member, tl.where(does, tl.load(steps + member), -1))


@triton.jit
def _update(
    gradient, after, bad, had, theta, moment1, moment2, buffers, steps, live, broken, moved,
    weights, statistics, after_stride, blocks, lr, beta1, beta2, epsilon,
    width: tl.constexpr, rounds: tl.constexpr, size: tl.constexpr,
):  # fmt: skip
    block, member = tl.program_id(0), tl.program_id(1)
    b = tl.arange(0, width)
    faults = tl.sum(tl.load(bad + member * blocks + b, mask=b < blocks, other=0), axis=0)
    before = tl.load(had + member)
    moves = (before >= 0) & (faults == 0)
    if moves:
        count = (before + 1).to(tl.float64)
        # β^count in float64, so that 1 − β₂ keeps its digits
        zero = count * 0.0
        factor = (lr / (1.0 - tl.exp(count * tl.log(zero + beta1)))).to(tl.float32)
        grown = (1.0 / (1.0 - tl.exp(count * tl.log(zero + beta2)))).to(tl.float32)
        i = block * size + tl.arange(0, size)
        ok = i < weights
        at = member.to(tl.int64) * weights + i
        g = tl.load(gradient + at, mask=ok, other=0.0)
        first = tl.load(moment1 + at, mask=ok, other=0.0)
        second = tl.load(moment2 + at, mask=ok, other=0.0)
        first += (1.0 - beta1) * (g - first)
        second += (1.0 - beta2) * (g * g - second)
        now = tl.load(theta + at, mask=ok, other=0.0)
        now -= factor * first / (tl.sqrt_rn(second * grown) + epsilon)
        tl.store(moment1 + at, first, mask=ok)
        tl.store(moment2 + at, second, mask=ok)
        tl.store(theta + at, now, mask=ok)
        for round_ in range(rounds):
            j = (round_ * blocks + block) * size + tl.arange(0, size)
            value = tl.load(after + member.to(tl.int64) * after_stride + j, mask=j < statistics)
            tl.store(buffers + member.to(tl.int64) * statistics + j, value, mask=j < statistics)
    if block == 0:
        tl.store(moved + member, moves)
        if moves:
            tl.store(steps + member, before + 1)
        if (before >= 0) & (faults > 0):
            tl.store(broken + member, 1)
            tl.store(live + member, 0)
