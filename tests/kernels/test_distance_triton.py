"""BYOL's loss by a Triton kernel against torch in double precision."""

from __future__ import annotations

import pytest
import torch

from clocs.pretraining.methods.baselines import byol_loss


@pytest.mark.parametrize(("batch", "dim", "of"), [(37, 24, None), (8, 128, 20)])
def test_distances_and_their_gradient_equal_torchs(
    device: torch.device, batch: int, dim: int, of: int | None
) -> None:
    from clocs.kernels.contrast_triton import squared_distance

    torch.manual_seed(batch)
    predicted, target = torch.randn(2, 3, 2, batch, dim, dtype=torch.float64)
    predicted[1, 0, 5] = target[2, 1, 3] = 0  # as ReLU may leave them
    weight = torch.randn(3, dtype=torch.float64)
    predicted.requires_grad_()
    expected = byol_loss(predicted, target, of)
    (by_torch,) = torch.autograd.grad((expected * weight).sum(), predicted)
    ours = predicted.detach().float().to(device).requires_grad_()
    found = squared_distance(ours, target.float().to(device), of or batch)
    (by_kernel,) = torch.autograd.grad((found * weight.float().to(device)).sum(), ours)
    assert torch.allclose(found.detach().cpu().double(), expected.detach(), rtol=1e-5)
    assert torch.allclose(by_kernel.cpu().double(), by_torch, rtol=1e-4, atol=1e-7)
    assert not by_kernel[1, 0, 5].any()
