"""Distances within and between patients, as histograms."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from clocs.errors import SettingError
from clocs.figures.canvas import COLORS, hide_frame, new_figure


def distance_histograms(
    panels: Mapping[str, tuple[ArrayLike, ArrayLike]],
    *,
    title: str = "",
    metric: str = "Euclidean",
) -> Figure:
    """Draw distances within and between patients, as in the paper's figure 6.

    Args:
        panels: Side by side, with the same axes; each panel's name, and its distances between
            embeddings of one patient and of different patients.
        title: Above the figure.
        metric: The name of the distance, for the axis.
    """
    figure = new_figure(max(4.5, 3.4 * len(panels)), 3.2)
    grid = figure.subplots(1, len(panels), squeeze=False, sharex=True, sharey=True)
    for axes, (name, pair) in zip(grid[0], panels.items(), strict=True):
        hide_frame(axes)
        both = [np.asarray(values, float).ravel() for values in pair]
        if not all(values.size and np.isfinite(values).all() for values in both):
            raise SettingError(f"panel {name!r} needs finite distances of both kinds")
        bins = np.histogram_bin_edges(np.concatenate(both), bins=60)
        for kind, values in zip(("intra", "inter"), both, strict=True):
            color = COLORS[kind]
            axes.hist(values, bins=list(bins), density=True, color=color, alpha=0.55)
            mean = float(values.mean())
            label = f"{kind}-patient, mean {mean:.2f}"
            axes.axvline(
                mean, 0, 0.8, color=color, linewidth=1.6, linestyle=(0, (4, 2)), label=label
            )  # not under the legend
        axes.set(xlabel=f"{metric} distance", title=name)
        axes.legend(loc="upper right", framealpha=1, edgecolor="none", fontsize=8)
        axes.margins(y=0.28)  # space for the legend above the bars
    figure.axes[0].set(ylabel="density", xlim=(0, None))
    if title:
        figure.suptitle(title, fontsize=11)
    return figure
