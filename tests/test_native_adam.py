"""Adam's compiled step against the one in torch."""

from __future__ import annotations

import pytest
import torch

from clocs.encoders.block import kernel
from clocs.fleet import Fleet

needs_a_compiler = pytest.mark.skipif(
    kernel(torch.device("cpu")) != "native", reason="needs a C compiler (cc, gcc or clang)"
)


def stepped(steps: int) -> Fleet:
    """Four members: one trains, one has no batch, one gets no number, one an infinite loss."""
    torch.manual_seed(0)
    fleet = Fleet.start(torch.randn(4, 1003), torch.randn(4, 7))
    for step in range(steps):
        gradient, loss = torch.randn(4, 1003) * 10.0**-step, torch.zeros(4)
        if step == 2:
            gradient[2, 1002], loss[3] = torch.nan, torch.inf
        on = torch.tensor([True, False, True, True])
        moved = fleet.step(gradient, torch.randn(4, 7), loss, 1e-2, on)
        assert moved[:, 0].tolist() == [True, False, step < 2, step < 2]
    return fleet


@needs_a_compiler
def test_the_compiled_step_equals_torchs_and_leaves_others_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours = stepped(5)
    monkeypatch.setenv("CLOCS_KERNEL", "torch")
    theirs, start = stepped(5), stepped(0)
    for name in ("theta", "moment1", "moment2", "buffers"):
        a, b = getattr(ours, name), getattr(theirs, name)
        assert torch.allclose(a, b, rtol=1e-5, atol=1e-6), name
        assert torch.equal(a[1], getattr(start, name)[1])
    for name in ("steps", "live", "broken"):
        assert torch.equal(getattr(ours, name), getattr(theirs, name))
