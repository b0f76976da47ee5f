"""The distance of recordings from those of training."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from clocs.errors import SettingError
from clocs.models.classifier import distance, fit_reference
from clocs.models.finetune import choose_limits


def gaussian(n: int, dim: int, seed: int) -> torch.Tensor:
    """(2, n, dim) of two members with unequal variances."""
    g = torch.Generator().manual_seed(seed)
    return torch.randn(2, n, dim, generator=g) * torch.linspace(0.2, 5, dim) + 3


def test_the_distance_is_mahalanobis_where_all_axes_are_kept() -> None:
    train, new = gaussian(500, 6, seed=0), gaussian(9, 6, seed=1)
    expected = []
    for own, other in zip(train.double(), new.double(), strict=True):
        away = other - own.mean(dim=0)
        expected.append((away @ torch.cov(own.T).inverse() * away).sum(dim=1) / 6)
    found = distance(fit_reference(train), new)
    assert torch.allclose(found, torch.stack(expected).mean(dim=0).sqrt(), rtol=1e-3)


def test_training_recordings_are_near_and_others_far() -> None:
    reference = fit_reference(gaussian(400, 64, seed=0))
    assert {name: tuple(v.shape) for name, v in reference.items()} == {
        "mean": (2, 64),
        "axes": (2, 32, 64),
        "variance": (2, 32),
        "rest": (2,),
    }
    near = distance(reference, gaussian(50, 64, seed=1))
    assert 0.7 < near.mean() < 1.3
    assert distance(reference, gaussian(50, 64, seed=1) + 20).min() > 2 * near.max()


def test_unused_directions_and_few_recordings_give_finite_distances() -> None:
    train = gaussian(5, 64, seed=0)
    train[..., 10:] = 0
    found = distance(fit_reference(train), gaussian(3, 64, seed=1))
    assert bool(found.isfinite().all())
    still = fit_reference(torch.zeros(1, 4, 8))
    assert bool(distance(still, torch.zeros(1, 2, 8)).isfinite().all())
    with pytest.raises(SettingError, match="two training recordings"):
        fit_reference(train[:, :1])


@pytest.mark.parametrize(("recordings", "dim"), [(90, 50), (40, 50)])
def test_axes_and_variances_are_those_of_the_singular_values(recordings: int, dim: int) -> None:
    train = gaussian(recordings, dim, seed=0)
    away = (train - train.mean(dim=1, keepdim=True)).double()
    _, spread, axes = torch.linalg.svd(away, full_matrices=False)
    found, variance = fit_reference(train), spread.square() / (recordings - 1)
    assert torch.allclose(found["variance"].double(), variance[:, :32], rtol=1e-5)
    assert torch.allclose(found["rest"].double(), variance[:, 32:].sum(dim=1) / (dim - 32))
    cosine = (found["axes"].double() * axes[:, :32]).sum(dim=2).abs()
    assert torch.allclose(cosine, torch.ones_like(cosine), atol=1e-5)


def test_limits_leave_out_the_stated_shares_of_validation_recordings() -> None:
    rng, vectors = np.random.default_rng(0), gaussian(5000, 8, seed=0)
    reference = fit_reference(vectors)
    share, sure = rng.random(5000), rng.random(5000)
    away = distance(reference, vectors).numpy()
    limits = choose_limits({"ecg_share": share, "distance": away, "confidence": sure})
    assert (share < limits["ecg_share"]).mean() == pytest.approx(0.02, abs=0.002)
    assert (away > limits["distance"]).mean() == pytest.approx(0.002, abs=0.001)
    assert (sure < limits["confidence"]).mean() == pytest.approx(0.05, abs=0.002)
    unknown = choose_limits({"ecg_share": share, "distance": away * np.nan, "confidence": sure})
    assert unknown.keys() == {"ecg_share", "confidence"}
