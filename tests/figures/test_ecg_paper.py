"""ECGs are drawn to scale."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread
from matplotlib.lines import Line2D

from clocs.errors import SettingError
from clocs.figures.canvas import save
from clocs.figures.ecg_paper import ecg_paper
from clocs.recording import STANDARD_LEADS, Recording


def ecg(
    unit: str = "mV", seconds: float = 10.0, leads: tuple[str, ...] = STANDARD_LEADS
) -> Recording:
    """One spike of 1 mV a second in every lead, on a line that lies 0.3 mV off."""
    digital = np.full((len(leads), round(seconds * 500)), 300, np.int16)
    digital[:, 250::500] += 1000
    count = len(leads)
    return Recording(
        id="E1",
        patient="P1",
        leads=leads,
        rate=500.0,
        digital=digital,
        gain=np.full(count, 1000.0),
        baseline=np.zeros(count, np.int32),
        unit=unit,
    )


def lines(figure: Figure, start: str) -> list[Line2D]:
    return [line for line in figure.axes[0].lines if str(line.get_gid()).startswith(start)]


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.axes[0].texts]


def test_a_saved_page_has_as_many_pixels_as_its_millimeters_at_150_dpi(tmp_path: Path) -> None:
    figure = ecg_paper(ecg(), layout="clinical")
    width, height = figure.axes[0].get_xlim()[1], figure.axes[0].get_ylim()[1]
    save(figure, tmp_path / "ecg.png")
    pixels = imread(tmp_path / "ecg.png").shape
    assert pixels[1] == pytest.approx(width / 25.4 * 150, abs=1)
    assert pixels[0] == pytest.approx(height / 25.4 * 150, abs=1)
    assert [path.name for path in tmp_path.iterdir()] == ["ecg.png"]


def test_a_second_is_25_mm_and_a_millivolt_10_mm() -> None:
    (trace,) = lines(ecg_paper(ecg(), leads=["II"], seconds=4.0), "trace II")
    x, y = np.asarray(trace.get_xdata()), np.asarray(trace.get_ydata())
    assert x[500] - x[0] == pytest.approx(25.0)
    assert y.max() - np.median(y) == pytest.approx(10.0)
    assert x[-1] - x[0] == pytest.approx(100.0, abs=0.1)


def test_the_calibration_pulse_is_1_mv_for_200_ms_on_every_row() -> None:
    figure = ecg_paper(ecg(), leads=["II", "V2", "aVL"])
    pulses = lines(figure, "calibration")
    assert len(pulses) == 3
    x, y = np.asarray(pulses[0].get_xdata()), np.asarray(pulses[0].get_ydata())
    assert np.ptp(y) == pytest.approx(10.0)
    assert np.ptp(x[y == y.max()]) == pytest.approx(5.0)
    (trace,) = lines(figure, "trace II")
    assert y.min() == pytest.approx(np.median(np.asarray(trace.get_ydata())))


@pytest.mark.parametrize(
    ("mv", "scale"),
    [
        (2.9, "25 mm/s    10 mm/mV"),
        (5, "25 mm/s    5 mm/mV"),
        (9, "25 mm/s    2.5 mm/mV"),
        (15, "25 mm/s    2.5 mm/mV    cut off at ±30 mm"),
    ],
)
def test_tall_complexes_stay_in_their_row_at_a_gain_that_is_stated(mv: float, scale: str) -> None:
    tall = ecg()
    tall.digital[:, 250::500] = 300 + round(1000 * mv)
    tall.digital[:, 258::500] = 300 - round(1000 * mv)  # a deep S
    figure = ecg_paper(tall)
    spans = [
        (y.min(), y.max())
        for line in lines(figure, "trace")
        if (y := np.array(line.get_ydata())).size
    ]
    assert all(above[0] > below[1] for above, below in pairwise(spans))
    assert scale in texts(figure)
    gain = float(scale.split()[2])
    pulse = np.asarray(lines(figure, "calibration")[0].get_ydata())
    assert np.ptp(pulse) == pytest.approx(gain)


def test_the_trace_is_drawn_in_ink_on_a_pink_grid(tmp_path: Path) -> None:
    save(ecg_paper(ecg(leads=("II",)), seconds=3.0), tmp_path / "ecg.png")
    red, green, blue = np.moveaxis(imread(tmp_path / "ecg.png")[..., :3], -1, 0)
    assert ((red + green + blue) < 0.6).sum() > 500
    assert ((red > 0.9) & (green < 0.9) & (blue < 0.9)).sum() > 5000


def test_the_clinical_layout_shows_twelve_leads_and_the_rhythm_strip() -> None:
    figure = ecg_paper(ecg(), layout="clinical", title="Someone")
    drawn = [str(line.get_gid()).removeprefix("trace ") for line in lines(figure, "trace")]
    assert sorted(drawn) == sorted([*STANDARD_LEADS, "II"])
    lengths = [np.ptp(np.asarray(line.get_xdata())) for line in lines(figure, "trace")]
    assert lengths[-1] == pytest.approx(250, abs=0.1)
    assert lengths[:-1] == pytest.approx([62.5] * 12, abs=0.1)
    assert {"Someone", "25 mm/s    10 mm/mV"} <= set(texts(figure))


def test_arbitrary_units_have_no_scale_in_mv_and_no_pulse() -> None:
    figure = ecg_paper(ecg(unit="adu", leads=("I", "II")))
    assert not lines(figure, "calibration")
    assert "25 mm/s    arbitrary units" in texts(figure)
    assert not any("mV" in text for text in texts(figure))


def test_a_lead_name_never_covers_its_trace() -> None:
    figure = ecg_paper(ecg(leads=("V4",)))
    figure.draw_without_rendering()
    (name,) = [text for text in figure.axes[0].texts if text.get_text() == "V4"]
    (trace,) = lines(figure, "trace")
    box = name.get_window_extent()
    points = figure.axes[0].transData.transform(trace.get_xydata())
    assert not any(box.contains(x, y) for x, y in points)


def test_a_flat_lead_can_be_drawn(tmp_path: Path) -> None:
    flat = ecg(unit="adu", leads=("I",))
    flat.digital[:] = 0
    save(ecg_paper(flat), tmp_path / "flat.png")
    assert (tmp_path / "flat.png").stat().st_size > 0


def test_a_layout_that_cannot_be_drawn_is_refused() -> None:
    with pytest.raises(SettingError, match="seconds"):
        ecg_paper(ecg(), seconds=0.0)
    with pytest.raises(SettingError, match="clinical"):
        ecg_paper(ecg(), leads=["II"], layout="clinical")
    with pytest.raises(SettingError, match="no lead"):
        ecg_paper(ecg(leads=("I",)), layout="clinical")
