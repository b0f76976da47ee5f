"""Marks come out of probabilities where they were put in, in physiological order."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from clocs.measurements.waves import find_waves

STEP = 0.005
Array = NDArray[np.float64]


def network_output(
    waves: dict[int, list[tuple[float, float, float]]], seconds: float = 4.0
) -> tuple[Array, Array]:
    """What a network that is certain would say; waves: by 1 (P), 2 (QRS) and 3 (T)."""
    at = np.arange(round(seconds / STEP)) * STEP
    chances, near = np.full((4, at.size), 0.01), np.zeros((3, at.size))
    chances[0] = 0.97
    for kind, each in waves.items():
        for onset, peak, offset in each:
            inside = (at >= onset) & (at < offset)
            chances[0, inside], chances[kind, inside] = 0.01, 0.97
            near[kind - 1] = np.maximum(near[kind - 1], np.exp(-(((at - peak) / 0.012) ** 2)))
    return chances, near


BEAT = {1: [(0.8, 0.85, 0.9)], 2: [(0.96, 1.0, 1.05)], 3: [(1.2, 1.3, 1.38)]}


def test_marks_are_found_within_half_a_step() -> None:
    found = find_waves(*network_output(BEAT), STEP)
    for wave, own in zip((found.p, found.qrs, found.t), BEAT.values(), strict=True):
        assert np.abs(wave - own).max() <= STEP / 2 + 1e-9


def test_there_is_one_t_wave_per_beat_the_more_certain_one() -> None:
    two = BEAT | {3: [(1.2, 1.3, 1.38), (1.5, 1.54, 1.58)]}
    assert np.allclose(find_waves(*network_output(two), STEP).t[:, 1], [1.3], atol=STEP)


def test_p_waves_without_a_qrs_complex_are_kept() -> None:
    blocked = BEAT | {1: [(0.8, 0.85, 0.9), (1.8, 1.85, 1.9)]}
    assert len(find_waves(*network_output(blocked), STEP).p) == 2


def test_two_qrs_complexes_need_time_between_them() -> None:
    double = BEAT | {2: [(0.96, 1.0, 1.05), (1.09, 1.12, 1.13)]}
    assert np.allclose(find_waves(*network_output(double), STEP).qrs[:, 1], [1.0], atol=STEP)


def test_short_holes_are_closed_and_short_waves_left_out() -> None:
    chances, near = network_output(BEAT)
    middle, noise = round(1.3 / STEP), round(2.0 / STEP)
    chances[:, middle : middle + 2] = [[0.97], [0.01], [0.01], [0.01]]
    chances[:, noise : noise + 3] = [[0.01], [0.97], [0.01], [0.01]]
    found = find_waves(chances, near, STEP)
    assert len(found.t) == 1 and len(found.p) == 1


def test_a_wave_that_is_cut_off_ends_at_the_end() -> None:
    chances, near = network_output({2: [(-0.02, 0.01, 0.05)], 3: [(3.9, 3.95, 4.2)]})
    found = find_waves(chances, near, STEP)
    assert found.qrs[0, 0] == 0 and found.t[0, 2] <= 4.0
