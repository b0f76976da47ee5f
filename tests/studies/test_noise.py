"""Noise: its power, its spectrum, and that it is a function of its key."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from clocs.errors import SettingError
from clocs.frames.frames import Frames
from research.noise import (
    KINDS,
    add_noise,
    kinds_at,
    noise_keys,
    with_noise,
)

RATE = 250.0
KEYS = torch.arange(40).view(10, 4) * 7919
SIGNAL = torch.randn(10, 4, 1250, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def noise_of(kind: str, rate: float = RATE) -> Tensor:
    """Ten frames of four leads, of power 1."""
    return add_noise(SIGNAL, kind, 0.0, KEYS, rate) - SIGNAL


def share(noise: Tensor, low: float, high: float, rate: float = RATE) -> float:
    """The share of the power within a band, frames tapered so that slopes leak little."""
    window = torch.hann_window(noise.shape[-1], dtype=noise.dtype)
    power = torch.fft.rfft(noise * window).abs().square().sum(dim=(0, 1))
    hertz = torch.fft.rfftfreq(noise.shape[-1], 1 / rate)
    return float(power[(hertz >= low) & (hertz <= high)].sum() / power.sum())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("db", [-6.0, 0.0, 12.0])
def test_noise_has_exactly_the_power_asked_for(kind: str, db: float) -> None:
    x = 3 + 0.2 * SIGNAL
    noise = add_noise(x, kind, db, KEYS, RATE) - x
    ratio = x.var(dim=-1, correction=0) / noise.var(dim=-1, correction=0)
    assert torch.allclose(10 * ratio.log10(), torch.tensor(db, dtype=x.dtype), atol=1e-9)
    assert noise.mean(dim=-1).abs().max() < 1e-12  # it is measured about the mean


@pytest.mark.parametrize(
    ("kind", "low", "high", "least"),
    [
        ("baseline-wander", 0.0, 0.8, 0.95),
        ("muscle", 19.5, 125.0, 0.999),
        ("electrode-motion", 0.0, 10.5, 0.9),
        ("electrode-motion", 0.8, 10.5, 0.6),
        ("mains", 49.0, 51.0, 0.85),
        ("mains-60", 59.0, 61.0, 0.85),
    ],
)
def test_each_kind_has_its_spectrum(kind: str, low: float, high: float, least: float) -> None:
    assert share(noise_of(kind), low, high) > least


def test_muscle_noise_comes_in_bursts() -> None:
    loudness = noise_of("muscle").unfold(-1, 50, 50).var(dim=-1)
    assert (loudness.amax(dim=-1) / loudness.amin(dim=-1)).median() > 4


def test_harmonics_of_the_mains_stay_below_what_sampling_passes() -> None:
    assert share(noise_of("mains"), 99.0, 101.0) > 0.005
    at_200 = noise_of("mains", 200.0)  # 100 Hz would be half of the rate, 150 Hz come back as 50
    assert share(at_200, 49.0, 51.0, 200.0) > 0.999


def test_frames_at_100_hz_have_no_mains_hum() -> None:
    assert kinds_at(100) == ("baseline-wander", "muscle", "electrode-motion")
    assert kinds_at(500) == tuple(KINDS)
    with pytest.raises(SettingError, match="the filter before sampling removes it"):
        noise_of("mains", 100.0)


@pytest.mark.parametrize("kind", KINDS)
def test_noise_is_a_function_of_the_key_of_a_lead(kind: str) -> None:
    whole = noise_of(kind)
    alone = add_noise(SIGNAL[3:5, 1], kind, 0.0, KEYS[3:5, 1], RATE) - SIGNAL[3:5, 1]
    assert torch.allclose(alone, whole[3:5, 1], atol=1e-12)
    assert not torch.allclose(whole[0, 0], whole[0, 1])


def test_many_leads_get_the_noise_that_each_gets_alone() -> None:
    keys = torch.arange(20_000)
    x = SIGNAL[0, 0, :50].expand(len(keys), -1)
    many = add_noise(x, "muscle", 3.0, keys, RATE)
    assert torch.allclose(many[15_000], add_noise(x[0], "muscle", 3.0, keys[15_000], RATE))


@pytest.mark.parametrize("kind", KINDS)
def test_a_missing_lead_stays_nan_and_a_flat_one_flat(kind: str) -> None:
    x = SIGNAL.clone().float()
    x[2, 1], x[2, 2] = torch.nan, 0.5
    noisy = add_noise(x, kind, 6.0, KEYS, RATE)
    assert noisy.dtype == torch.float32
    assert noisy[2, 1].isnan().all() and (noisy[2, 2] == 0.5).all()
    assert noisy.isnan().sum() == x.shape[-1]


def test_the_noise_of_frames_depends_on_names_not_places(usual_frames: Frames) -> None:
    rows = np.arange(6)
    keys = noise_keys(usual_frames, rows, seed=1)
    first = usual_frames.with_leads(usual_frames.leads[1:])
    assert torch.equal(noise_keys(first, rows[2:], seed=1), keys[2:, 1:])
    assert not (noise_keys(usual_frames, rows, seed=2) == keys).any()
    assert keys.unique().numel() == keys.numel()


def test_test_frames_get_noise_and_the_others_are_absent(usual_frames: Frames) -> None:
    noisy, test = with_noise(usual_frames, "muscle", 6.0), usual_frames.split == 2
    rows = np.flatnonzero(test)
    clean, changed = usual_frames.windows(rows, 1), noisy.windows(rows, 1)
    ratio = clean.var(axis=1) / (changed - clean).var(axis=1)
    assert np.allclose(10 * np.log10(ratio), 6.0, atol=0.2)  # rounded to steps
    assert not noisy.present[~test].any()


def test_loud_noise_is_not_clipped(usual_frames: Frames) -> None:
    noisy = with_noise(usual_frames, "baseline-wander", -60.0)
    rows = np.flatnonzero(usual_frames.split == 2)
    ratio = usual_frames.windows(rows).var(axis=1) / noisy.windows(rows).var(axis=1)
    assert np.allclose(10 * np.log10(ratio), -60.0, atol=0.1)


def test_noise_without_end_of_decibels_changes_nothing(usual_frames: Frames) -> None:
    quiet, rows = with_noise(usual_frames, "mains", float("inf")), usual_frames.split == 2
    rows = np.flatnonzero(rows)
    assert np.array_equal(quiet.windows(rows), usual_frames.windows(rows))


@pytest.mark.parametrize("wrong", [("hum", 6.0), ("muscle", float("nan"))])
def test_noise_that_does_not_exist_is_refused(wrong: tuple[str, float]) -> None:
    with pytest.raises(SettingError):
        add_noise(SIGNAL, *wrong, KEYS, RATE)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
def test_noise_is_the_same_on_a_gpu(kind: str) -> None:
    there = add_noise(SIGNAL.cuda(), kind, 6.0, KEYS.cuda(), RATE).cpu()
    assert torch.allclose(there, add_noise(SIGNAL, kind, 6.0, KEYS, RATE), atol=1e-9)
