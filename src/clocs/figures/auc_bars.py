"""AUCs as bars: one group per method, one bar per labelled fraction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from matplotlib.figure import Figure

from clocs.errors import SettingError
from clocs.figures.canvas import COLOURS, SHADES, hide_frame, new_figure

_DOTS: Final[dict[str, Any]] = {
    "markersize": 3,
    "markerfacecolor": "white",
    "markeredgecolor": COLOURS["text"],
    "markeredgewidth": 0.6,
}


def auc_bars(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw AUCs: one group per method, one bar per labelled fraction, ± one standard deviation.

    Args:
        rows: With `method`, `fraction`, `auc` (one per seed, drawn as dots), `auc_mean`, `auc_std`.
            Methods keep their order of first appearance.
    """
    if not rows:
        raise SettingError("there are no AUCs to draw; give at least one row")
    methods = list(dict.fromkeys(str(row["method"]) for row in rows))
    fractions = sorted({float(row["fraction"]) for row in rows})
    shades = dict(zip(reversed(fractions), SHADES * len(fractions), strict=False))  # all: darkest
    bar = 0.8 / len(fractions)
    figure = new_figure(min(9.5, max(5.0, 1.2 + 0.42 * len(rows))), 3.8)
    axes = figure.add_subplot()
    hide_frame(axes)
    lean = 90 if len(rows) > 24 else 0
    for row in rows:
        mean, spread = float(row["auc_mean"]), float(row["auc_std"] or 0)
        spread = spread if np.isfinite(spread) else 0.0
        rank = fractions.index(float(row["fraction"]))
        x = methods.index(str(row["method"])) + (rank - (len(fractions) - 1) / 2) * bar
        if not np.isfinite(mean):
            axes.text(x, 0.41, "n/a", ha="center", fontsize=8, color=COLOURS["quiet"])
            continue
        seeds = np.asarray(row["auc"], float)
        axes.bar(x, mean, bar * 0.9, color=shades[fractions[rank]], zorder=2)
        axes.errorbar(x, mean, spread, color=COLOURS["text"], linewidth=1, capsize=2.5, zorder=3)
        jitter = np.linspace(-0.25, 0.25, seeds.size) * bar if seeds.size > 1 else np.zeros(1)
        axes.plot(x + jitter[: seeds.size], seeds, "o", **_DOTS, zorder=4)
        top = max(mean + spread, float(np.nanmax(seeds, initial=mean)), 0.4)
        axes.text(x, top + 0.012, f"{mean:.3f}", ha="center", va="bottom", size=7.5, rotation=lean)
    axes.axhline(0.5, color=COLOURS["quiet"], linewidth=1, linestyle=(0, (4, 3)), zorder=1)
    side = axes.get_yaxis_transform()  # x in axes, y in data
    axes.text(1.005, 0.5, "chance", transform=side, va="center", size=8, color=COLOURS["quiet"])
    axes.set(ylim=(0.4, 1.0), xlim=(-0.6, len(methods) - 0.4), ylabel="AUC, mean ± sd over seeds")
    axes.set_xticks(range(len(methods)), methods)
    axes.tick_params(axis="x", length=0)
    for fraction in fractions:
        axes.bar(0, 0, color=shades[fraction], label=f"{100 * fraction:g} % of labels")
    axes.legend(
        loc="lower left", bbox_to_anchor=(0, 1), ncols=len(fractions), frameon=False, fontsize=8
    )
    return figure
