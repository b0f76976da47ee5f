"""Flat stretches are found as a search of every sample finds them."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from clocs.recording import Gap, Recording, flat_stretches


@given(st.lists(st.tuples(st.integers(-2, 2), st.integers(1, 25)), max_size=12), st.integers(2, 12))
def test_every_flat_second_is_found_and_no_other(runs: list[tuple[int, int]], rate: int) -> None:
    values = np.array([v for value, count in runs for v in [value] * count] or [0], np.int16)
    recording = Recording(
        id="r", patient="p", leads=("II",), rate=float(rate), digital=values[None],
        gain=np.ones(1), baseline=np.zeros(1, np.int32),
    )  # fmt: skip
    expected, start = [], 0
    for place in range(1, len(values) + 1):
        if place == len(values) or values[place] != values[start]:
            if place - start >= max(2, rate):
                expected.append(Gap(start, place, "II"))
            start = place
    assert flat_stretches(recording) == tuple(expected)
