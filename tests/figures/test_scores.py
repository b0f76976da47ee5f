"""Figures of scores, and figures as files."""

from __future__ import annotations

import base64
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.patches import Rectangle
from sklearn.metrics import confusion_matrix, roc_auc_score

from clocs.errors import SettingError
from clocs.figures import scores
from clocs.figures.canvas import SUFFIXES, as_address, new_figure, save
from clocs.figures.scores import auc_dots, distance_histograms
from evaluation_parts import predictions

BEGINNINGS = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}


def rows() -> list[dict[str, Any]]:
    table = {("cmsc", 0.5): [0.8, 0.84], ("cmsc", 0.25): [0.7, 0.72], ("random", 0.5): [0.6, 0.58]}
    return [
        {
            "method": method,
            "fraction": fraction,
            "auc": auc,
            "auc_mean": float(np.mean(auc)),
            "ci95": [0.55, 0.9],
        }
        for (method, fraction), auc in table.items()
    ]


def test_means_seeds_intervals_and_chance_are_drawn_where_they_are() -> None:
    axes = auc_dots(rows()).axes[0]
    heights = [np.asarray(line.get_ydata(), float).tolist() for line in axes.lines]
    for row in rows():
        assert row["auc"] in heights and [row["auc_mean"]] in heights
    assert [0.5, 0.5] in heights
    bars = [np.asarray(path.vertices)[:, 1] for own in axes.collections for path in own.get_paths()]
    assert len(bars) == 3 and all(bar == pytest.approx([0.55, 0.9]) for bar in bars)
    assert {"0.820", "0.710", "0.590", "chance"} <= {text.get_text() for text in axes.texts}
    assert [label.get_text() for label in axes.get_xticklabels()] == ["cmsc", "random"]


def test_a_failed_save_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "old.png"
    target.write_bytes(b"old")

    def fail(*_: object, **__: object) -> None:
        raise OSError("disk full")

    figure = auc_dots(rows())
    monkeypatch.setattr(figure, "savefig", fail)
    with pytest.raises(OSError, match="disk full"):
        save(figure, target)
    assert target.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [target]


def test_a_figure_in_a_page_keeps_its_text() -> None:
    figure = new_figure(2, 1)
    figure.add_subplot().set_title("Perturbations")
    address = as_address(figure)
    kind, _, content = address.partition(",")
    assert kind == "data:image/svg+xml;base64"
    assert b"Perturbations" in base64.b64decode(content)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_the_same_figure_gives_the_same_file_in_every_format(suffix: str, tmp_path: Path) -> None:
    made = []
    for name in ("one", "two"):
        figure = new_figure(2, 1)
        figure.add_subplot().plot([1, 2])
        save(figure, tmp_path / f"{name}{suffix}")
        made.append((tmp_path / f"{name}{suffix}").read_bytes())
    assert made[0].startswith(BEGINNINGS[suffix]) and made[0] == made[1]


def test_other_formats_are_refused_and_the_command_line_knows_all(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"\.png, \.svg, \.pdf"):
        save(new_figure(1, 1), tmp_path / "figure.gif")


def test_distances_are_densities_over_shared_bins_with_their_means_marked() -> None:
    rng = np.random.default_rng(0)
    intra, inter = rng.gamma(4, 1, 500), rng.gamma(12, 1, 2000)
    axes = distance_histograms({"": (intra, inter)}, title="CMSC").axes[0]
    bars = [patch for patch in axes.patches if isinstance(patch, Rectangle)]
    assert sum(bar.get_height() * bar.get_width() for bar in bars) == pytest.approx(2.0)
    marked = [float(np.asarray(line.get_xdata())[0]) for line in axes.lines]
    assert marked == pytest.approx([intra.mean(), inter.mean()])


def test_several_methods_are_drawn_side_by_side() -> None:
    most = {"CMSC": 30.0, "CMLC": 9.0, "BYOL": 40.0}
    pairs = {name: (np.arange(1.0, 9.0), np.arange(4.0, end)) for name, end in most.items()}
    figure = distance_histograms(pairs, title="Distances")
    assert [axes.get_title() for axes in figure.axes] == ["CMSC", "CMLC", "BYOL"]
    for axes in figure.axes:  # all of each, on the same axes
        assert axes.get_xlim()[0] == 0 and 39 < axes.get_xlim()[1] < 45
        assert axes.get_ylim() == figure.axes[0].get_ylim()


def test_missing_distances_are_refused() -> None:
    for inter in ([], [float("nan")]):
        with pytest.raises(SettingError, match="finite"):
            distance_histograms({"": ([1.0], inter)})


def test_a_roc_curve_has_the_area_that_its_legend_says() -> None:
    made = predictions(seeds=1)
    (axes,) = scores.roc(made).axes
    for c, label in enumerate(made.labels):
        expected = roc_auc_score(made.targets[:, c], made.probabilities[0, :, c])
        line = next(one for one in axes.lines if str(one.get_label()).startswith(label))
        x, y = np.asarray(line.get_xdata(), float), np.asarray(line.get_ydata(), float)
        assert np.trapezoid(y, x) == pytest.approx(expected, abs=0.01)
        assert line.get_label() == f"{label}  {expected:.3f}"


def test_a_class_absent_from_the_test_set_is_named_in_the_legend() -> None:
    made = predictions()
    targets = made.targets.copy()
    targets[:, 2] = 0
    legend = scores.roc(replace(made, targets=targets)).axes[0].get_legend()
    assert legend is not None
    assert legend.get_texts()[2].get_text() == "C: not in the test set"


def test_a_calibration_curve_of_honest_probabilities_lies_on_the_diagonal() -> None:
    draw = np.random.default_rng(0)
    said = draw.dirichlet((1, 1, 1), 40_000)
    true = np.eye(3, dtype=np.uint8)[(said.cumsum(axis=1) < draw.random((40_000, 1))).sum(axis=1)]
    made = replace(
        predictions(seeds=1), probabilities=said[None], targets=true, thresholds=np.zeros((1, 3))
    )
    axes = scores.calibration(made).axes[0]
    for line in axes.lines[:3]:
        assert np.allclose(line.get_xdata(), line.get_ydata(), atol=0.03)


def test_a_confusion_matrix_counts_as_scikit_learns() -> None:
    made = predictions(seeds=1)
    (axes,) = scores.confusion(made).axes
    expected = confusion_matrix(made.targets.argmax(1), made.probabilities[0].argmax(1))
    counts = [int(text.get_text().split("\n")[1].replace(",", "")) for text in axes.texts]
    assert counts == expected.ravel().tolist()


@pytest.mark.parametrize("multilabel", [False, True])
@pytest.mark.parametrize("kind", list(scores.FIGURES))
def test_every_figure_becomes_a_png(kind: str, multilabel: bool, tmp_path: Path) -> None:
    made = replace(predictions(), multilabel=multilabel)
    save(scores.FIGURES[kind](made), tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes()[:4] == b"\x89PNG"
