"""The linear layer with ReLU by Triton kernels against torch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch


@pytest.mark.parametrize(("n", "c_in", "c_out"), [(70, 40, 24), (33, 64, 96)])
def test_the_layer_and_its_gradient_equal_torchs(
    device: torch.device, n: int, c_in: int, c_out: int
) -> None:
    from clocs.kernels.layers_triton import LinearReLU

    layer: Callable[..., torch.Tensor] = LinearReLU.apply
    torch.manual_seed(n)
    shapes = ((2, n, c_in), (2, c_in, c_out), (2, c_out))
    inputs = [torch.randn(shape, dtype=torch.float64).requires_grad_() for shape in shapes]
    ours = [x.detach().float().to(device).requires_grad_() for x in inputs]
    expected = torch.baddbmm(inputs[2][:, None], inputs[0], inputs[1]).relu()
    found = layer(*ours)
    weight = torch.randn_like(expected)
    by_torch = torch.autograd.grad((expected * weight).sum(), inputs)
    by_kernel = torch.autograd.grad((found * weight.float().to(device)).sum(), ours)
    for a, b in zip((found, *by_kernel), (expected, *by_torch), strict=True):
        assert torch.allclose(
            a.cpu().double(), b, rtol=1e-4, atol=1e-5 * float(b.detach().abs().max())
        )


def test_what_is_no_number_stays_none(device: torch.device) -> None:
    from clocs.kernels.layers_triton import LinearReLU

    layer: Callable[..., torch.Tensor] = LinearReLU.apply
    h, weight, bias = torch.randn(2, 3, 16), torch.randn(2, 16, 16), torch.randn(2, 16)
    h[1, 2, 3] = torch.nan
    found = layer(h.to(device), weight.to(device), bias.to(device))
    assert found.isfinite().all(dim=2).tolist() == [[True] * 3, [True, True, False]]
