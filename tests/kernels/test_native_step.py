"""The compiled parts of a training step beside the encoder against torch's: loss and Adam."""

from __future__ import annotations

import pytest
import torch

from clocs.encoders.cnn import block_implementation
from clocs.pretraining import losses
from clocs.training.replicas import Optimizer, Replicas

needs_a_compiler = pytest.mark.skipif(
    block_implementation(torch.device("cpu")) != "native",
    reason="needs a C compiler (cc, gcc or clang)",
)


def stepped(steps: int) -> Replicas:
    """Four members: one trains, one has no batch, one gets no number, one an infinite loss."""
    torch.manual_seed(0)
    fleet = Replicas.start(torch.randn(4, 1003), torch.randn(4, 7))
    for step in range(steps):
        gradient, loss = torch.randn(4, 1003) * 10.0**-step, torch.zeros(4)
        if step == 2:
            gradient[2, 1002], loss[3] = torch.nan, torch.inf
        on = torch.tensor([True, False, True, True])
        moved = fleet.step(gradient, torch.randn(4, 7), loss, Optimizer(1e-2), on)
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


@needs_a_compiler
@pytest.mark.parametrize(("views", "batch"), [(2, 64), (3, 37), (4, 2)])
def test_the_compiled_loss_and_its_gradient_equal_torchs(
    views: int, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(batch)
    z = torch.randn(2, views, batch, 16)
    z[0, 0, 0] = 0  # a dead embedding
    patients = torch.randint(0, 9, (2, batch))

    def both(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        leaf = z.to(dtype).requires_grad_()
        loss = losses.patient_nce(leaf, patients, temperature=0.02)
        return loss.detach().double(), torch.autograd.grad(loss.sum(), leaf)[0].double()

    ours = both(torch.float32)
    monkeypatch.setenv("CLOCS_KERNEL", "torch")
    for a, b in zip(ours, both(torch.float64), strict=True):
        assert float((a - b).abs().max()) < 2e-5 * float(b.abs().max())


@needs_a_compiler
def test_a_loss_that_is_no_number_stays_none() -> None:
    z = torch.randn(2, 2, 8, 4)
    z[1, 0, 3, 2] = torch.nan
    loss = losses.patient_nce(z, torch.arange(8).expand(2, -1))
    assert loss.isfinite().tolist() == [True, False]
