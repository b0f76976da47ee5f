"""The losses by Triton kernels against those in torch, in float64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from clocs.pretraining import losses
from clocs.pretraining.methods.baselines import byol_loss

# the interpreter takes seconds
SMALL = [(2, 2, 37, 32), (1, 3, 70, 24), (1, 2, 20, 16), (2, 3, 9, 40), (1, 4, 17, 8)]
LARGE = [(5, 2, 256, 128), (5, 8, 256, 128), (3, 2, 100, 32), (2, 4, 37, 256), (1, 24, 64, 128)]


@pytest.fixture
def shape(request: pytest.FixtureRequest, device: torch.device) -> tuple[int, ...]:
    few, many = request.param
    return tuple(few if device.type == "cpu" else many)


SHAPES = list(zip(SMALL, LARGE, strict=True))
every_shape = pytest.mark.parametrize("shape", SHAPES, indirect=True)


def every_shape_with(name: str, *values: object) -> pytest.MarkDecorator:
    """Each with one of the values: all pairs would take the interpreter a minute."""
    given = [(shape, values[i % len(values)]) for i, shape in enumerate(SHAPES)]
    return pytest.mark.parametrize(("shape", name), given, indirect=["shape"])


def embeddings(shape: tuple[int, ...]) -> Tensor:
    torch.manual_seed(sum(shape))
    z = torch.randn(shape)
    z[0, 0, 0] = 0  # a dead embedding
    return z.relu()


def agree(
    z: Tensor, device: torch.device, ours: Callable[[Tensor], Tensor], torchs: Callable[..., Tensor]
) -> None:
    """Value and gradient, for other weights of the members' losses than one."""
    found = []
    for function, x in ((ours, z.to(device)), (torchs, z.double())):
        leaf = x.requires_grad_()
        loss = function(leaf)
        weights = torch.arange(1, len(z) + 1, device=loss.device).to(loss.dtype)
        (slope,) = torch.autograd.grad(loss, leaf, weights)
        found.append([x.detach().cpu().double() for x in (loss, slope)])
    for a, b in zip(*found, strict=True):
        assert float((a - b).abs().max()) < 2e-5 * float(b.abs().max())


@every_shape_with("temperature", 0.1, 0.02)
def test_the_patients_loss_and_its_gradient_equal_torchs(
    shape: tuple[int, ...], temperature: float, device: torch.device
) -> None:
    from clocs.kernels import contrast_triton

    patients = torch.randint(0, 1 + shape[2] // 3, shape[0:3:2])
    there = patients.to(device)
    agree(
        embeddings(shape),
        device,
        lambda z: contrast_triton.contrasted(z, temperature, there),
        lambda z: losses.patient_nce(z, patients, temperature),
    )


@every_shape
def test_nt_xent_and_its_gradient_equal_torchs(
    shape: tuple[int, ...], device: torch.device
) -> None:
    from clocs.kernels import contrast_triton

    agree(
        embeddings(shape),
        device,
        lambda z: contrast_triton.contrasted(z, 0.1, None),
        lambda z: losses.nt_xent(z, 0.1),
    )


def test_without_pairs_of_a_patient_the_diagonal_alone_counts(device: torch.device) -> None:
    from clocs.kernels import contrast_triton

    patients = torch.arange(20).expand(2, -1)
    z = embeddings((2, 2, 20, 16))
    ours = contrast_triton.contrasted(z.to(device), 0.1, patients.to(device)).cpu()
    assert torch.allclose(ours, losses.patient_nce(z, patients), rtol=1e-5)


def test_a_members_loss_that_is_no_number_stays_its_own(device: torch.device) -> None:
    from clocs.kernels import contrast_triton

    z = embeddings((2, 2, 20, 16))
    z[1, 0, 3, 2] = torch.nan
    patients = torch.zeros(2, 20, dtype=torch.int64, device=device)
    for loss in (
        contrast_triton.contrasted(z.to(device), 0.1, patients),
        contrast_triton.contrasted(z.to(device), 0.1, None),
    ):
        assert loss.isfinite().tolist() == [True, False]


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
