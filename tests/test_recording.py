"""Recordings: gaps, and samples made of values of which some are missing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from clocs.errors import UnusableError
from clocs.recording import MAX_GAPS, Recording, quantize, quantize_with_gaps

LEADS = ("I", "II", "III")


@given(
    arrays(np.float64, (3, 40), elements=st.floats(-5, 5)),
    arrays(np.bool_, (3, 40)),
)
def test_the_signal_is_the_given_one_with_its_gaps(values: np.ndarray, missing: np.ndarray) -> None:
    values[missing] = np.nan
    if missing.all():
        with pytest.raises(UnusableError, match="r has no value in any lead"):
            quantize_with_gaps(values, LEADS, name="r")
        return
    leads, digital, gain, gaps = quantize_with_gaps(values, LEADS, name="r")
    assert leads == tuple(np.array(LEADS)[~missing.all(axis=1)])
    zero = np.zeros(len(leads), np.int32)
    recording = Recording("r", "r", leads, 250.0, digital, gain, zero, gaps=gaps)
    np.testing.assert_allclose(recording.signal, values[~missing.all(axis=1)], atol=5.1e-4)


def test_values_without_gaps_are_quantized_as_ever() -> None:
    values = np.random.default_rng(0).normal(size=(3, 100))
    ours = quantize_with_gaps(values, LEADS, name="r", per_mv=1000.0)
    digital, gain = quantize(values, 1000.0)
    assert ours.leads == LEADS
    assert not ours.gaps
    assert np.array_equal(ours.digital, digital)
    assert np.array_equal(ours.gain, gain)


def test_infinity_is_a_gap_too() -> None:
    ours = quantize_with_gaps(np.array([[1.0, np.inf, -np.inf, 2.0]]), ["I"], name="r")
    assert [(gap.start, gap.stop, gap.lead) for gap in ours.gaps] == [(1, 3, "I")]


def test_a_recording_of_almost_nothing_but_gaps_is_refused() -> None:
    values = np.zeros((1, 2 * MAX_GAPS + 2))
    values[:, ::2] = np.nan
    with pytest.raises(UnusableError, match="r has more than 100,000 gaps"):
        quantize_with_gaps(values, ["I"], name="r")
