from __future__ import annotations

import numpy as np

import clocs
from clocs.datasets.synthetic import RHYTHMS, Synthetic
from clocs.measurements.beats import qrs_complexes, typical_beat


def test_heart_rates_are_those_of_the_simulated_rhythms() -> None:
    dataset = Synthetic(patients=20, recordings=1)
    ranges = {rhythm.label: (rhythm.slowest, rhythm.fastest) for rhythm in RHYTHMS}
    for entry in dataset.list().entries:
        recording = dataset.read(entry)
        slowest, fastest = ranges[recording.labels[0]]
        found = clocs.measure(recording).values["heart_rate"].value
        assert found is not None and 0.98 * slowest < found < 1.02 * fastest, recording.labels


def test_a_beat_is_found_where_it_is_in_any_unit_and_at_any_rate() -> None:
    for rate in (50.0, 100.0, 250.0, 257.0, 1000.0):
        at = np.arange(0.5, 9.5, 0.8)
        times = np.arange(round(10 * rate)) / rate
        bumps = np.exp(-0.5 * ((times - at[:, None]) / 0.012) ** 2).sum(axis=0)
        found = qrs_complexes(2000 * bumps[None], rate) / rate
        np.testing.assert_allclose(found, at, atol=0.03)
        typical = typical_beat(bumps[None].astype(np.float32), rate)
        assert typical is not None
        np.testing.assert_allclose(typical.peaks, at[: len(typical.peaks)], atol=0.03)
