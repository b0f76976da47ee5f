"""The kernels of a step beside the task against torch: Adam, the step's rows, the counters."""

from __future__ import annotations

import pytest
import torch

from clocs.training.replicas import BETA1, BETA2, EPSILON, Optimizer, Replicas

NUMBERS = {"lr": 1e-2, "beta1": BETA1, "beta2": BETA2, "epsilon": EPSILON}
STATE = ("theta", "moment1", "moment2", "buffers", "steps", "live", "broken")


def started(weights: int, statistics: int, device: torch.device) -> Replicas:
    torch.manual_seed(0)
    fleet = Replicas.start(torch.randn(4, weights), torch.randn(4, statistics))
    for name in STATE:
        setattr(fleet, name, getattr(fleet, name).to(device))
    return fleet


def by_kernels(fleet: Replicas, gradient: torch.Tensor, after: torch.Tensor, loss: torch.Tensor,
               on: torch.Tensor) -> torch.Tensor:  # fmt: skip
    from clocs.kernels import step_triton

    device = fleet.theta.device
    given = {"gradient": gradient.to(device), "after": after.to(device)}
    state = {name: getattr(fleet, name) for name in STATE}
    moved: torch.Tensor = step_triton.adam(NUMBERS, on.to(device), loss.to(device), given, **state)
    return moved.cpu()


@pytest.mark.parametrize(("weights", "statistics"), [(1003, 7), (5000, 9001)])
def test_adam_equals_torchs_and_leaves_others_alone(
    device: torch.device, weights: int, statistics: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLOCS_KERNEL", "torch")  # of the other side
    ours = started(weights, statistics, device)
    theirs, start = (started(weights, statistics, torch.device("cpu")) for _ in range(2))
    on = torch.tensor([True, False, True, True])
    for step in range(5):
        gradient, loss = torch.randn(4, weights) * 10.0**-step, torch.zeros(4)
        if step == 2:
            gradient[2, weights - 1], loss[3] = torch.nan, torch.inf
        after = torch.randn(4, statistics)
        moved = by_kernels(ours, gradient, after, loss, on)
        assert moved.tolist() == [True, False, step < 2, step < 2]
        assert torch.equal(theirs.step(gradient, after, loss, Optimizer(1e-2), on)[:, 0], moved)
    for name in ("theta", "moment1", "moment2", "buffers"):
        a, b = getattr(ours, name).cpu(), getattr(theirs, name)
        assert torch.allclose(a, b, rtol=1e-4, atol=1e-6), name
        assert torch.equal(a[1], getattr(start, name)[1])
    for name in ("steps", "live", "broken"):
        assert torch.equal(getattr(ours, name).cpu(), getattr(theirs, name))


def test_a_steps_rows_and_keys_are_those_of_its_number(device: torch.device) -> None:
    from clocs.kernels.step_triton import step_inputs

    order = torch.arange(3 * 1000).view(3, 1000).to(device)
    step_keys = torch.arange(4 * 3).view(4, 3).to(device) - (1 << 40)
    live = torch.tensor([True, True, False], device=device)
    steps = torch.tensor([4, 2, 4], device=device)
    for number in (0, 2, 3, 5):
        place = torch.tensor(number, device=device)
        rows, keys, on = step_inputs(order, step_keys, place, 250, live, steps)
        within = number % 4
        assert torch.equal(rows, order[:, within * 250 : (within + 1) * 250])
        assert torch.equal(keys, step_keys[within])
        assert on.tolist() == [number < 4, number < 2, False]
