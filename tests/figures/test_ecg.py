"""ECGs are drawn to scale, and explanations on them."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread
from matplotlib.lines import Line2D

import clocs
from clocs.figures.canvas import save
from clocs.figures.ecg import ecg_paper, explanation_paper
from clocs.recording import STANDARD_LEADS, Recording
from clocs.store.store import Store
from clocs.training.checkpoint import Checkpoint
from command_line import as_json
from command_line import clocs as command
from some_classifier import some_classifier


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


def test_a_saved_page_has_as_many_pixels_as_its_millimeters_at_300_dpi(tmp_path: Path) -> None:
    figure = ecg_paper(ecg())
    width, height = figure.axes[0].get_xlim()[1], figure.axes[0].get_ylim()[1]
    save(figure, tmp_path / "ecg.png")
    pixels = imread(tmp_path / "ecg.png").shape
    assert pixels[1] == pytest.approx(width / 25.4 * 300, abs=1)
    assert pixels[0] == pytest.approx(height / 25.4 * 300, abs=1)
    assert [path.name for path in tmp_path.iterdir()] == ["ecg.png"]


def test_a_second_is_25_mm_and_a_millivolt_10_mm() -> None:
    (trace,) = lines(ecg_paper(ecg(seconds=4.0, leads=("II",))), "trace II")
    x, y = np.asarray(trace.get_xdata()), np.asarray(trace.get_ydata())
    assert x[500] - x[0] == pytest.approx(25.0)
    assert y.max() - np.median(y) == pytest.approx(10.0)
    assert x[-1] - x[0] == pytest.approx(100.0, abs=0.1)


def test_the_calibration_pulse_is_1_mv_for_200_ms_on_every_row() -> None:
    figure = ecg_paper(ecg(leads=("II", "V2", "aVL")), title="Someone")
    pulses = lines(figure, "calibration")
    assert len(pulses) == 3 and "Someone" in texts(figure)
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
    save(ecg_paper(ecg(seconds=3.0, leads=("II",))), tmp_path / "ecg.png")
    red, green, blue = np.moveaxis(imread(tmp_path / "ecg.png")[..., :3], -1, 0)
    assert ((red + green + blue) < 0.6).sum() > 500
    assert ((red > 0.9) & (green < 0.9) & (blue < 0.9)).sum() > 5000


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


@pytest.fixture(scope="module")
def model(checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("model") / "rhythm.safetensors"
    some_classifier(checkpoint).save(file)
    return file


def test_shading_is_orange_where_positive_and_blue_where_negative(small_store: Store) -> None:
    one = small_store.recording(0).select(["II"])
    values = np.zeros(one.samples)
    values[1000:2000], values[3000:4000], values[4500:] = 1, -1, np.nan
    figure = ecg_paper(one, shading={"II": values})
    (image,) = figure.axes[0].images
    made = np.asarray(image.get_array())[0]
    red, blue, opacity = made[..., 0], made[..., 2], made[..., 3]
    assert (red[1000:2000] > blue[1000:2000]).all() and (red[3000:4000] < blue[3000:4000]).all()
    assert (opacity > 0.5).sum() == 2000 and (opacity == 0).sum() == one.samples - 2000
    left, right, low, high = image.get_extent()
    assert right - left == pytest.approx(25 * one.seconds) and high > low


def test_the_page_names_leads_label_probability_and_that_it_is_no_diagnosis(
    model: Path, small_store: Store
) -> None:
    made = clocs.explain(model, small_store.recording(0))
    words = [text.get_text() for text in explanation_paper(made).axes[0].texts]
    assert {*made.leads} <= {*words}
    assert any(made.label in text and f"{made.probability:.2f}" in text for text in words)
    assert any("Not a diagnosis." in text for text in words)


@pytest.mark.parametrize("suffix", ["png", "svg", "json"])
def test_the_command_writes_a_picture_or_numbers(
    suffix: str, model: Path, small_store: Store, tmp_path: Path
) -> None:
    name, out = small_store.table["id"][0], tmp_path / "new" / f"explanation.{suffix}"
    asked = ("--recording", name, "--label", "AF", "--start", "1")
    facts = as_json("predict", model, small_store.path, *asked, "--explain", out)
    assert facts["label"] == "AF" and facts["recording"] == name and facts["file"] == str(out)
    assert facts["logit_without"] < facts["logit"]
    if suffix == "png":
        assert imread(out).shape[1] > 500
    elif suffix == "svg":
        assert out.read_text("utf-8").startswith("<?xml")
    else:
        found = json.loads(out.read_text("utf-8"))
        assert {len(values) for values in found["attribution"].values()} == {
            round(found["seconds"] * found["rate"])
        }


def test_the_command_refuses_other_files_and_unknown_labels(
    model: Path, small_store: Store, tmp_path: Path
) -> None:
    store = (small_store.path, "--recording", small_store.table["id"][0])
    said = command("predict", model, *store, "--explain", tmp_path / "a.gif", code=1).stderr
    assert ".svg" in said
    unknown = ("--label", "X", "--explain", tmp_path / "a.png")
    said = command("predict", model, *store, *unknown, code=1).stderr
    assert "choose a --label from AF, N, O" in said
    assert not list(tmp_path.iterdir())
