"""Temperatures and what they are measured by."""

from __future__ import annotations

import numpy as np
import pytest

from clocs.models.scores import (
    brier,
    calibration,
    calibration_error,
    fit_temperature,
    nll,
    probabilities,
)


def drawn(temperature: float, *, multilabel: bool, rows: int = 20_000) -> tuple:  # type: ignore[type-arg]
    """Logits that are too far apart by this factor, and targets drawn by the honest ones."""
    draw = np.random.default_rng(1)
    honest = draw.normal(size=(rows, 3))
    chances = probabilities(honest, 1.0, multilabel=multilabel)
    if multilabel:
        targets = (draw.random(chances.shape) < chances).astype(np.uint8)
    else:
        chosen = (draw.random((rows, 1)) > chances.cumsum(axis=1)).sum(axis=1)
        targets = np.eye(3, dtype=np.uint8)[chosen]
    return honest * temperature, targets


@pytest.mark.parametrize("multilabel", [False, True])
@pytest.mark.parametrize("temperature", [0.4, 1.0, 3.0])
def test_the_temperature_of_the_lowest_loss_is_found(temperature: float, multilabel: bool) -> None:
    logits, targets = drawn(temperature, multilabel=multilabel)
    found = fit_temperature(logits, targets, multilabel=multilabel)
    assert np.allclose(found, temperature, rtol=0.06)
    lowest = nll(logits / found, targets, multilabel=multilabel)
    for other in (0.98, 1.02):
        assert nll(logits / (found * other), targets, multilabel=multilabel) > lowest


def test_a_class_that_nobody_or_everybody_has_keeps_its_logits() -> None:
    logits, targets = drawn(3.0, multilabel=True)
    targets[:, 0], targets[:, 2] = 0, 1
    found = fit_temperature(logits, targets, multilabel=True)
    assert found[0] == found[2] == 1
    assert found[1] == pytest.approx(3, rel=0.06)


@pytest.mark.parametrize("multilabel", [False, True])
def test_calibration_improves_what_it_measures(multilabel: bool) -> None:
    logits, targets = drawn(3.0, multilabel=multilabel)
    temperature = fit_temperature(logits, targets, multilabel=multilabel)
    found = calibration(logits, temperature, targets, multilabel=multilabel)
    for name in ("ece", "brier", "nll"):
        assert found["after"][name] < found["before"][name]
    assert found["after"]["ece"] < 0.02 < 0.05 < found["before"]["ece"]


def test_the_calibration_error_by_hand() -> None:
    """Two bins of two rows: promised 0.3 and seen 0.5; promised 0.8 and seen 1."""
    chances = np.array([[0.2], [0.4], [0.7], [0.9]])
    targets = np.array([[0], [1], [1], [1]], np.uint8)
    assert calibration_error(chances, targets, multilabel=True, bins=2) == pytest.approx(0.2)
    assert brier(chances, targets, multilabel=True) == pytest.approx(
        (0.04 + 0.36 + 0.09 + 0.01) / 4
    )
    both = np.hstack([chances, 1 - chances])
    classes = np.hstack([targets, 1 - targets])
    # of the predicted class: 0.6, 0.7, 0.8, 0.9, of which the first is wrong
    assert calibration_error(both, classes, multilabel=False, bins=4) == pytest.approx(
        (0.6 + 0.3 + 0.2 + 0.1) / 4
    )
