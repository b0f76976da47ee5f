from __future__ import annotations

import numpy as np
import pytest
from matplotlib.colors import to_hex

from clocs.errors import SettingError
from clocs.figures.sweep import ScoredTrial, SweepPanel, sweep_figure

LR = (1e-4, 1e-3, 1e-2)
SCORES = (0.70, 0.80, None)


def panel(*values: object, log: bool = False, listed: bool = True) -> SweepPanel:
    trials = [
        ScoredTrial(
            value, score, None if score is None else (score - 0.1, score + 0.1), score == 0.8
        )
        for value, score in zip(values, SCORES, strict=True)
    ]
    return SweepPanel(
        "option", trials, values=tuple(dict.fromkeys(values)) if listed else (), log=log
    )


def test_each_trial_is_a_dot_at_its_value_with_its_interval_and_the_best_stands_out() -> None:
    (axes,) = sweep_figure([panel(*LR, log=True)], "AUC").axes
    dots = [line for line in axes.lines if line.get_marker() == "o"]
    found = {(float(np.ravel(d.get_xdata())[0]), float(np.ravel(d.get_ydata())[0])) for d in dots}
    assert {(round(x, 9), y) for x, y in found} == {(1e-4, 0.7), (1e-3, 0.8)}
    assert len({to_hex(dot.get_color()) for dot in dots}) == 2
    heights = [np.ravel(np.asarray(line.get_ydata(), float)) for line in axes.lines]
    ends = sorted(tuple(own) for own in heights if len(own) == 2)
    assert np.allclose(ends, [(0.6, 0.8), (0.7, 0.9)])
    (failed,) = [line for line in axes.lines if line.get_marker() == "x"]
    assert np.ravel(failed.get_xdata())[0] == pytest.approx(1e-2)


def test_axes_are_logarithmic_or_name_the_values_and_are_shared_from_side_to_side() -> None:
    first, second, third = sweep_figure(
        [
            panel(*LR, log=True),
            panel("adam", None, ("II", "V2")),
            panel(1, 2, 3, listed=False),
        ],
        "AUC",
    ).axes
    assert (first.get_xscale(), second.get_xscale(), third.get_xscale()) == ("log", *["linear"] * 2)
    assert [one.get_text() for one in first.get_xticklabels()] == ["0.0001", "0.001", "0.01"]
    assert [one.get_text() for one in second.get_xticklabels()] == ["adam", "none", "II+V2"]
    assert first.get_ylim() == second.get_ylim() == third.get_ylim()


def test_trials_of_one_value_stand_side_by_side_on_the_line_of_their_means() -> None:
    trials = [ScoredTrial(v, s, None, False) for v, s in ((1, 0.5), (1, 0.7), (2, 0.8))]
    (axes,) = sweep_figure([SweepPanel("segments", trials, values=(1, 2))], "AUC").axes
    dots = [line for line in axes.lines if line.get_marker() == "o"]
    assert len({float(np.ravel(dot.get_xdata())[0]) for dot in dots}) == 3
    (line,) = [line for line in axes.lines if len(np.ravel(line.get_xdata())) == 2]
    assert np.allclose(np.asarray(line.get_ydata(), float), [0.6, 0.8])


def test_without_a_score_there_is_nothing_to_draw() -> None:
    with pytest.raises(SettingError, match="no scores to draw"):
        sweep_figure([SweepPanel("lr", [ScoredTrial(1.0, None, None, False)])], "AUC")
