"""Figures are at scale, hold what they claim, and appear on disk whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from clocs.errors import SettingError
from clocs.figures.auc_bars import auc_bars
from clocs.figures.canvas import save
from clocs.figures.distances import distance_histograms
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


def test_a_saved_page_has_as_many_pixels_as_its_millimetres_at_150_dpi(tmp_path: Path) -> None:
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


def test_arbitrary_units_claim_no_millivolts_and_have_no_pulse() -> None:
    figure = ecg_paper(ecg(unit="adu", leads=("I", "II")))
    assert not lines(figure, "calibration")
    assert "25 mm/s    arbitrary units" in texts(figure)
    assert not any("mV" in text for text in texts(figure))


def test_a_lead_name_never_lies_on_its_trace() -> None:
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


def test_senseless_requests_are_refused() -> None:
    with pytest.raises(SettingError, match="seconds"):
        ecg_paper(ecg(), seconds=0.0)
    with pytest.raises(SettingError, match="clinical"):
        ecg_paper(ecg(), leads=["II"], layout="clinical")
    with pytest.raises(SettingError, match="no lead"):
        ecg_paper(ecg(leads=("I",)), layout="clinical")
    with pytest.raises(SettingError, match="no AUCs"):
        auc_bars([])
    with pytest.raises(SettingError, match="inter"):
        distance_histograms([1.0])
    with pytest.raises(SettingError, match="finite"):
        distance_histograms([1.0], [float("nan")])


def rows() -> list[dict[str, Any]]:
    table = {("cmsc", 0.5): [0.8, 0.84], ("cmsc", 0.25): [0.7, 0.72], ("random", 0.5): [0.6, 0.58]}
    return [
        {
            "method": method,
            "fraction": fraction,
            "auc": auc,
            "auc_mean": float(np.mean(auc)),
            "auc_std": float(np.std(auc, ddof=1)),
        }
        for (method, fraction), auc in table.items()
    ]


def test_auc_bars_have_the_means_as_heights_every_seed_as_a_dot_and_the_chance_line() -> None:
    axes = auc_bars(rows()).axes[0]
    heights = [p.get_height() for p in axes.patches if isinstance(p, Rectangle) and p.get_height()]
    assert heights == pytest.approx([0.82, 0.71, 0.59])
    dots = [line for line in axes.lines if line.get_marker() == "o"]
    assert sorted(y for line in dots for y in np.asarray(line.get_ydata())) == pytest.approx(
        [0.58, 0.6, 0.7, 0.72, 0.8, 0.84]
    )
    assert any(np.allclose(np.asarray(line.get_ydata()), 0.5) for line in axes.lines)
    assert axes.get_ylim() == (0.4, 1.0)
    assert {"0.820", "0.710", "0.590", "chance"} <= {text.get_text() for text in axes.texts}
    assert [label.get_text() for label in axes.get_xticklabels()] == ["cmsc", "random"]


def test_one_seed_without_a_spread_and_a_missing_auc_are_drawn_as_such(tmp_path: Path) -> None:
    nan = float("nan")
    one = {"method": "cmsc", "fraction": 1.0, "auc": [0.9], "auc_mean": 0.9, "auc_std": nan}
    none = {"method": "byol", "fraction": 1.0, "auc": [nan], "auc_mean": nan, "auc_std": nan}
    figure = auc_bars([one, none])
    assert {"0.900", "n/a"} <= set(texts(figure))
    save(figure, tmp_path / "auc.png")


def test_distances_are_densities_over_shared_bins_with_their_means_marked() -> None:
    rng = np.random.default_rng(0)
    intra, inter = rng.gamma(4, 1, 500), rng.gamma(12, 1, 2000)
    axes = distance_histograms(intra, inter, title="CMSC").axes[0]
    bars = [patch for patch in axes.patches if isinstance(patch, Rectangle)]
    assert sum(bar.get_height() * bar.get_width() for bar in bars) == pytest.approx(2.0)
    marked = [float(np.asarray(line.get_xdata())[0]) for line in axes.lines]
    assert marked == pytest.approx([intra.mean(), inter.mean()])


def test_several_methods_stand_side_by_side() -> None:
    pairs = {name: (np.arange(1.0, 9.0), np.arange(4.0, 30.0)) for name in ("CMSC", "CMLC", "BYOL")}
    figure = distance_histograms(pairs, title="Distances")
    assert [axes.get_title() for axes in figure.axes] == ["CMSC", "CMLC", "BYOL"]


def test_a_failed_save_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "old.png"
    target.write_bytes(b"old")

    def fail(*_: object, **__: object) -> None:
        raise OSError("disk full")

    figure = auc_bars(rows())
    monkeypatch.setattr(figure, "savefig", fail)
    with pytest.raises(OSError, match="disk full"):
        save(figure, target)
    assert target.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [target]
