from __future__ import annotations

import numpy as np
import pytest
from matplotlib.patches import Rectangle

from clocs.errors import SettingError
from clocs.figures.distances import distance_histograms


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
