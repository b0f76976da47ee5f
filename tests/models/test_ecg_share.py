"""The share of ECG in frames follows the noise."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch

from clocs.frames.frames import Frames
from clocs.models.classifier import ecg_share_and_flat
from research.noise import add_noise, kinds_at

RATE = 500.0


def share_of_ecg(x: torch.Tensor, rate: float) -> torch.Tensor:
    return ecg_share_and_flat(x, rate)[0]


@pytest.fixture(scope="module")
def frames(usual_frames: Frames) -> torch.Tensor:
    """(rows, samples) of simulated ECGs, without those that are noisy already."""
    rows = usual_frames.signals.reshape(-1, usual_frames.spec.samples)
    assert usual_frames.spec.rate == RATE
    found = torch.from_numpy(rows[:160]).float()
    return found[share_of_ecg(found, RATE) > 0.7][:60]


@pytest.mark.parametrize("kind", kinds_at(RATE))
def test_more_noise_is_less_ecg(frames: torch.Tensor, kind: str) -> None:
    keys = torch.arange(len(frames))
    found = [share_of_ecg(frames, RATE)]
    for db in (12.0, 6.0, 0.0, -6.0):
        found.append(share_of_ecg(add_noise(frames, kind, db, keys, RATE), RATE))
    for cleaner, noisier in pairwise(found):
        assert (noisier < cleaner).float().mean() > 0.8
        assert noisier.mean() < cleaner.mean()


def test_noise_alone_flat_lines_and_hum_hold_no_ecg(frames: torch.Tensor) -> None:
    torch.manual_seed(0)
    time = torch.arange(2500) / RATE
    junk = torch.stack(
        [
            torch.randn(2500),
            torch.randn(2500).cumsum(0),
            torch.zeros(2500),
            torch.full((2500,), 900.0),
            (2 * math.pi * 50 * time).sin(),
            (2 * math.pi * 0.2 * time).sin(),
            (2 * math.pi * 8 * time).sin(),
            (2 * math.pi * 1.2 * time).sin().sign(),
        ]
    )
    assert share_of_ecg(junk, RATE).max() < 0.25


def test_half_of_a_frame_without_signal_halves_the_share(frames: torch.Tensor) -> None:
    broken = frames.clone()
    broken[:, 1250:] = broken[:, 1250:1251]
    assert (share_of_ecg(broken, RATE) < 0.6 * share_of_ecg(frames, RATE)).float().mean() > 0.9


def test_a_clipped_signal_has_half_the_share_at_most(frames: torch.Tensor) -> None:
    low, high = frames.quantile(0.1, dim=1)[:, None], frames.quantile(0.9, dim=1)[:, None]
    clipped = frames.clamp(low, high)
    assert (share_of_ecg(clipped, RATE) < 0.5 * share_of_ecg(frames, RATE)).float().mean() > 0.8


def test_the_share_does_not_depend_on_unit_offset_or_company(frames: torch.Tensor) -> None:
    alone = torch.cat([share_of_ecg(one[None], RATE) for one in frames])
    assert torch.allclose(share_of_ecg(frames * 0.005 + 3, RATE), alone, atol=1e-3)
    assert share_of_ecg(frames.view(2, 30, -1), RATE).shape == (2, 30)
    assert share_of_ecg(frames[:0], RATE).shape == (0,)


def test_every_rate_and_length_of_frames_has_a_share(frames: torch.Tensor) -> None:
    for rate, samples in ((1953.125, 2500), (100.0, 1000), (50.0, 50), (250.0, 2500), (250.0, 3)):
        found = share_of_ecg(frames[:, :samples], rate)
        assert bool(((found >= 0) & (found <= 1)).all())
