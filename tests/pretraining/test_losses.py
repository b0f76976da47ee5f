from __future__ import annotations

import functools
import math

import pytest
import torch
from torch import Tensor

from clocs.pretraining import losses
from clocs.pretraining.losses import unit


def patient_nce(z: Tensor, patients: Tensor, tau: float = 0.1) -> Tensor:
    return losses.patient_nce(z, patients, temperature=tau)


def slow_patient_nce(z: Tensor, patients: Tensor, tau: float) -> Tensor:
    """The paper's equations letter by letter, in loops; z: (views, batch, dim), one member."""
    views, batch, _ = z.shape

    @functools.cache
    def s(a: int, i: int, b: int, k: int) -> Tensor:
        norms = z[a, i].norm() * z[b, k].norm()
        return (z[a, i] @ z[b, k]) / norms / tau if norms > 0 else z.new_zeros(())

    def log_p(a: int, i: int, b: int, k: int) -> Tensor:
        return s(a, i, b, k) - torch.stack([s(a, i, b, j) for j in range(batch)]).exp().sum().log()

    def diagonal(a: int, b: int) -> Tensor:
        return -torch.stack([log_p(a, i, b, i) for i in range(batch)]).mean()

    def off_diagonal(a: int, b: int) -> Tensor:
        terms = [
            log_p(a, i, b, k)
            for i in range(batch)
            for k in range(batch)
            if i != k and patients[i] == patients[k]
        ]
        return -torch.stack(terms).mean() if terms else z.new_zeros(())

    pairs = [(a, b) for a in range(views) for b in range(a + 1, views)]
    total = [
        diagonal(a, b) + diagonal(b, a) + off_diagonal(a, b) + off_diagonal(b, a) for a, b in pairs
    ]
    return torch.stack(total).mean()


@pytest.mark.parametrize("views", [2, 3, 8])
@pytest.mark.parametrize("whose", [[0, 1, 2, 3, 4], [0, 0, 1, 1, 1], [7, 7, 7, 7, 7]])
def test_loss_and_gradient_follow_the_equations(views: int, whose: list[int]) -> None:
    torch.manual_seed(views)
    z = torch.randn(2, views, 5, 6, dtype=torch.float64, requires_grad=True)
    patients = torch.tensor([whose, whose[::-1]])
    fast = patient_nce(z, patients)
    slow = torch.stack([slow_patient_nce(z[m], patients[m], 0.1) for m in range(2)])
    assert torch.allclose(fast, slow, rtol=1e-10)
    (by_fast,) = torch.autograd.grad(fast.sum(), z)
    (by_slow,) = torch.autograd.grad(slow.sum(), z)
    assert torch.allclose(by_fast, by_slow, atol=1e-10)


def test_twenty_four_views_follow_the_equations() -> None:
    torch.manual_seed(0)
    z = torch.randn(1, 24, 3, 4, dtype=torch.float64)
    patients = torch.tensor([[0, 0, 1]])
    assert torch.allclose(patient_nce(z, patients), slow_patient_nce(z[0], patients[0], 0.1))


def test_every_view_gets_gradient() -> None:
    torch.manual_seed(0)
    z = torch.randn(1, 8, 16, 12, requires_grad=True)
    (gradient,) = torch.autograd.grad(patient_nce(z, torch.arange(16)[None]).sum(), z)
    assert (gradient.abs().amax(dim=(2, 3)) > 1e-6).all()


def test_zero_vectors_have_similarity_zero_and_no_gradient() -> None:
    torch.manual_seed(0)
    z = torch.randn(1, 2, 4, 3, dtype=torch.float64)
    z[0, 0, 1] = 0
    z.requires_grad_()
    patients = torch.tensor([[0, 0, 1, 2]])
    loss = patient_nce(z, patients)
    assert torch.allclose(loss, slow_patient_nce(z[0], patients[0], 0.1))
    (gradient,) = torch.autograd.grad(loss.sum(), z)
    assert gradient.isfinite().all()
    assert (gradient[0, 0, 1] == 0).all()


def test_all_zero_embeddings_give_the_loss_of_guessing() -> None:
    loss = patient_nce(torch.zeros(1, 2, 8, 3), torch.arange(8)[None])
    assert float(loss) == pytest.approx(2 * math.log(8), rel=1e-6)


def test_float32_is_stable_at_a_tiny_temperature() -> None:
    torch.manual_seed(0)
    z = torch.randn(1, 2, 32, 16)
    patients = torch.arange(32)[None] // 2
    single = patient_nce(z, patients, 1e-3)
    double = patient_nce(z.double(), patients, 1e-3)
    assert single.isfinite().all()
    assert float(single) == pytest.approx(float(double), rel=1e-5)


def test_unit_vectors_have_length_one() -> None:
    assert torch.allclose(unit(torch.randn(5, 7) * 1e-8).norm(dim=1), torch.ones(5))
