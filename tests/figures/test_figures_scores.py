from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import confusion_matrix, roc_auc_score

from clocs.figures import scores
from clocs.figures.canvas import save
from evaluation_parts import predictions


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
