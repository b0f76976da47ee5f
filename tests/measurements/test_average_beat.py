from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from clocs.measurements.beats import average_beat
from clocs.recording import Gap, Recording

RATE, AT = 500.0, 0.6 + 0.8 * np.arange(11)  # Hz; seconds of the R peaks


def recording(noise: float = 0.0) -> Recording:
    """Two leads of equal beats on a wandering baseline: R of 1 mV, and an inverted one with T."""
    times = np.arange(round(10 * RATE)) / RATE

    def wave(late: float, wide: float) -> NDArray[np.float64]:
        bumps = np.exp(-0.5 * ((times - AT[:, None] - late) / wide) ** 2)
        return np.asarray(bumps.sum(axis=0))

    leads = np.stack([wave(0, 0.012), 0.3 * wave(0.25, 0.04) - 0.8 * wave(0, 0.012)])
    leads += 0.3 * np.sin(2 * np.pi * 0.1 * times)
    leads += noise * np.random.default_rng(0).normal(size=leads.shape)
    digital = np.round(1000 * leads).astype(np.int16)
    gain, baseline = np.full(2, 1000.0), np.zeros(2, np.int32)
    return Recording("r", "p", ("I", "II"), RATE, digital, gain, baseline)


def test_equal_beats_have_that_beat_as_their_mean_and_hardly_any_spread() -> None:
    beat = average_beat(recording())
    assert beat is not None
    np.testing.assert_allclose(beat.peaks / RATE, AT, atol=0.004)
    np.testing.assert_allclose(beat.mean[:, beat.before], [1, -0.8], atol=0.08)
    assert beat.mean[1].max() > 0.2  # the T wave is inside
    assert beat.spread.max() < 0.15


def test_spread_is_the_standard_deviation_of_the_beats() -> None:
    beat = average_beat(recording(noise=0.05))
    assert beat is not None
    assert 0.03 < float(np.median(beat.spread)) < 0.12


def test_a_gap_is_left_out_of_the_mean_and_a_flat_line_has_no_beats() -> None:
    whole = recording()
    gap = replace(whole, gaps=(Gap(0, 2000, "II"),))
    beat = average_beat(gap)
    assert beat is not None and np.isfinite(beat.mean).all()
    np.testing.assert_allclose(beat.mean[1, beat.before], -0.8, atol=0.08)
    assert average_beat(replace(whole, digital=np.zeros_like(whole.digital))) is None
    assert average_beat(whole.between(0, 300)) is None
