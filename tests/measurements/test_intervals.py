"""Intervals, axes and amplitudes of known beats, by hand; reasons where there are none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from clocs.measurements.intervals import UNITS, Beats, find_beats, measure_beats, median_of
from clocs.measurements.waves import NONE, Waves

RATE = 500.0
LEADS = ("I", "II", "aVF", "V1", "V5", "V6")
Array = NDArray[np.float64]


def waves(at: Array, *, late: float = 0.0, pr: Array | float = 0.16) -> Waves:
    """Beats whose QRS begins at these times: PR 160 ms, QRS 90 ms, QT 400 ms."""

    def of(*times: float) -> Array:
        return np.column_stack([at + late + one for one in times])

    p = np.column_stack([at + late - pr, at + late - pr + 0.05, at + late - pr + 0.1])
    return Waves(p, of(0, 0.04, 0.09), of(0.2, 0.3, 0.4))


def measured(beats: Beats, signal: Array | None = None, *, in_mv: bool = True) -> Any:
    own = np.zeros((len(beats.leads), 6000)) if signal is None else signal
    return measure_beats(beats, own, RATE, in_mv=in_mv)


BEGIN: Array = 1.0 + 0.8 * np.arange(10.0)


def test_intervals_are_those_of_the_marks() -> None:
    found = measured(find_beats(dict.fromkeys(LEADS, waves(BEGIN))))
    expected: dict[str, float] = {
        "heart_rate": 75,
        "pr": 160,
        "qrs": 90,
        "qt": 400,
        "sdnn": 0,
        "rmssd": 0,
    }
    expected |= {
        "qtc_bazett": 400 / 0.8**0.5,
        "qtc_fridericia": 400 / 0.8 ** (1 / 3),
        "qtc_framingham": 400 + 154 * 0.2,
    }
    for name, value in expected.items():
        assert found[name].value == pytest.approx(value, abs=1e-6), name
        assert found[name].low <= value + 1e-6 and found[name].high >= value - 1e-6


@pytest.mark.filterwarnings("error")
def test_waves_that_are_marked_beyond_either_end_have_no_voltage() -> None:
    beats = find_beats(dict.fromkeys(LEADS, waves(BEGIN - 1.1)))  # the first QRS ends before 0 s
    found = measured(beats, np.ones((len(LEADS), int(7.3 * RATE))))  # the last T is after the end
    assert found["r_v5"].value == 0
    assert found["qt"].value == pytest.approx(400)


def test_variability_is_that_of_the_textbook() -> None:
    rr = np.array([0.8, 0.9, 0.7, 0.8, 1.0])
    at = 1 + np.append(0, np.cumsum(rr))
    found = measured(find_beats(dict.fromkeys(LEADS, waves(at))))
    assert found["sdnn"].value == pytest.approx(1000 * rr.std(ddof=1))
    assert found["rmssd"].value == pytest.approx(1000 * np.sqrt((np.diff(rr) ** 2).mean()))
    assert found["sdnn"].low < found["sdnn"].value < found["sdnn"].high


def test_one_lead_that_is_wrong_moves_no_edge() -> None:
    marked = dict.fromkeys(LEADS, waves(BEGIN)) | {"V6": waves(BEGIN, late=0.06)}
    found = measured(find_beats(marked))
    assert found["qrs"].value == pytest.approx(90) and found["qt"].value == pytest.approx(400)


def test_a_beat_that_most_leads_lack_is_none() -> None:
    more = waves(np.sort(np.append(BEGIN, 1.5)))
    assert len(find_beats(dict.fromkeys(LEADS, waves(BEGIN)) | {"V6": more}).marks) == len(BEGIN)


def test_reasons_say_what_is_missing() -> None:
    own = waves(BEGIN)
    no_p, no_t = Waves(NONE.p, own.qrs, own.t), Waves(own.p, own.qrs, NONE.t)
    assert measured(find_beats(dict.fromkeys(LEADS, no_p)))["pr"].reason == "no P waves"
    assert measured(find_beats(dict.fromkeys(LEADS, no_t)))["qtc_bazett"].reason == "no T waves"
    apart = waves(BEGIN, pr=np.linspace(0.1, 0.4, len(BEGIN)))
    found = measured(find_beats(dict.fromkeys(LEADS, apart)))["pr"]
    assert found.value is None and "no constant distance" in str(found.reason)
    none = measured(find_beats(dict.fromkeys(LEADS, NONE)))
    assert {one.reason for one in none.values()} == {"fewer than 3 beats"} and {*none} == {*UNITS}
    two = measured(find_beats({"II": own, "V2": own}))
    assert two["qrs_axis"].reason == "it needs two limb leads"
    assert two["r_v1"].reason == "no lead V1" and "needs V1" in str(two["sokolow_lyon"].reason)
    assert measured(find_beats({"II": own}), in_mv=False)["r_ii"].reason == "the unit is not mV"


@pytest.mark.parametrize("degrees", [0, 60, -45, 110, 179, -170])
def test_the_axis_is_that_of_the_vector(degrees: float) -> None:
    """A vector of 1 mV: its part along I, and along aVF by Goldberger's √3 / 2."""
    angle, signal = np.radians(degrees), np.zeros((len(LEADS), 6000))
    for begin in BEGIN:
        part = slice(round(begin * RATE), round((begin + 0.09) * RATE))
        signal[LEADS.index("I"), part] = np.cos(angle)
        signal[LEADS.index("aVF"), part] = np.sin(angle) * 3**0.5 / 2
    found = measured(find_beats(dict.fromkeys(LEADS, waves(BEGIN))), signal)
    assert found["qrs_axis"].value == pytest.approx(degrees, abs=0.1)
    first, foot = signal[LEADS.index("I")], signal[LEADS.index("aVF")]
    others = {"aVR": -0.75 * first - foot / 2, "aVL": 0.75 * first - foot / 2}
    pair = find_beats(dict.fromkeys(others, waves(BEGIN)))
    again = measured(pair, np.stack([*others.values()]))["qrs_axis"]
    assert again.value == pytest.approx(degrees, abs=0.1)
    assert found["t_axis"].reason == "T waves too small in I and aVF"


def test_amplitudes_count_from_the_level_before_the_qrs_complex() -> None:
    signal = np.full((len(LEADS), 6000), 0.4)  # an offset that counts for nothing
    for begin in BEGIN:
        peak, end = round((begin + 0.04) * RATE), round((begin + 0.07) * RATE)
        signal[LEADS.index("V5"), peak] += 1.8
        signal[LEADS.index("V6"), peak] += 1.2
        signal[LEADS.index("V1"), end] -= 1.5
    found = measured(find_beats(dict.fromkeys(LEADS, waves(BEGIN))), signal)
    assert found["r_v5"].value == pytest.approx(1.8) and found["r_v1"].value == pytest.approx(0)
    assert found["sokolow_lyon"].value == pytest.approx(3.3)


def test_the_interval_of_a_median_holds_it_19_times_of_20() -> None:
    rng = np.random.default_rng(0)
    drawn = [median_of(rng.normal(size=12)) for _ in range(2000)]
    held = np.mean([one.low <= 0 <= one.high for one in drawn])  # type: ignore[operator]
    assert 0.93 < held < 0.99


def test_the_time_over_a_gap_is_no_interval_between_beats() -> None:
    begin = BEGIN[[0, 1, 2, 3, 6, 7, 8, 9]]  # two beats are in the gap
    beats = find_beats(dict.fromkeys(LEADS, waves(begin)) | {"V6": NONE})
    signal = np.zeros((len(LEADS), 6000))
    signal[:5, int(4.2 * RATE) : int(5.4 * RATE)] = np.nan
    found = measured(beats, signal)
    assert found["heart_rate"].low == pytest.approx(75)
    assert found["sdnn"].value == pytest.approx(0, abs=1e-6)
    assert found["rmssd"].value == pytest.approx(0, abs=1e-6)
    assert found["qt"].value == pytest.approx(400)
    signal[:3] = 0  # most of the leads with beats have none there
    assert measured(beats, signal)["heart_rate"].low == pytest.approx(25)
    signal[:, ::100] = np.nan
    assert measured(beats, signal)["pr"].reason == "fewer than 3 beats"
