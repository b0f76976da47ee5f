"""What the signal itself says about whose it is: numbers with a known answer."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from clocs import Checkpoint, Store
from clocs.patients.controls import BAND_HZ, BEAT_S, CONTROLS, amplitudes, log_spectrum, median_beat
from clocs.patients.retrieval import retrieval

RATE = 250.0
BEAT = np.exp(-((BEAT_S / 0.03) ** 2)) + 0.2 * np.exp(-(((BEAT_S - 0.25) / 0.05) ** 2))


def beats(heights: tuple[float, ...], seconds: float = 5.0) -> NDArray[np.float32]:
    """(1, leads, samples) in mV: one beat per 0.8 s, of a height of its own in each lead."""
    time = np.arange(round(seconds * RATE)) / RATE
    middles = np.arange(0.5, seconds - 0.5, 0.8)
    wave = sum(np.interp(time - middle, BEAT_S, BEAT, left=0, right=0) for middle in middles)
    return np.asarray([height * np.asarray(wave) for height in heights], np.float32)[None]


def test_the_median_beat_is_the_beat_in_mv() -> None:
    found = median_beat(beats((1.0, -0.5)), RATE).reshape(2, len(BEAT_S))
    expected = BEAT - np.median(BEAT)
    shifts = [np.abs(np.roll(found[0], k) - expected).max() for k in range(-5, 6)]
    assert min(shifts) < 0.15  # of 1 mV; the middle of a QRS complex is found within 0.05 s
    assert np.allclose(found[1], -0.5 * found[0], atol=1e-6)


def test_one_odd_beat_does_not_move_the_median() -> None:
    plain = beats((1.0,))
    odd = plain.copy()
    odd[0, 0, 500:560] += 3.0
    assert np.abs(median_beat(odd, RATE) - median_beat(plain, RATE)).max() < 0.2


def test_a_frame_without_beats_has_no_direction() -> None:
    assert not median_beat(np.zeros((2, 3, 1250), np.float32), RATE).any()


def test_the_spectrum_is_where_the_wave_is() -> None:
    time = np.arange(1250) / RATE
    found = log_spectrum(np.sin(2 * np.pi * 12 * time)[None, None].astype(np.float32), RATE)
    assert found.shape == (1, len(BAND_HZ)) and BAND_HZ[found.argmax()] == 11


def test_amplitudes_are_of_each_lead() -> None:
    x = beats((1.0, 0.5))
    sd, high, low = amplitudes(x, RATE).reshape(2, 3).T
    assert sd[0] - sd[1] == pytest.approx(np.log(2), abs=0.02)
    assert high[0] == pytest.approx(2 * high[1]) and low[0] == pytest.approx(2 * low[1], abs=1e-6)


def test_controls_are_scored_beside_the_encoder_on_the_same_patients(
    checkpoint: Checkpoint, small_store: Store
) -> None:
    encoder, *found = retrieval([checkpoint], small_store)
    assert [one.method for one in found] == list(CONTROLS)
    for one in found:
        assert one.pretrain is None and one.patients == encoder.patients
        assert one.halves is not None and encoder.halves is not None
        same = ("queries", "among", "chance", "frame")
        assert all(one.halves[name] == encoder.halves[name] for name in same)
        assert one.halves["top1"] > 5 * one.halves["chance"]  # nothing learned, and yet found
    assert [one.embedding_dim for one in found] == [4 * 60, 4 * 20, 4 * 3]
