"""AUCs as dots with intervals: one group per method, one dot per labeled fraction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from matplotlib.figure import Figure

from clocs.errors import SettingError
from clocs.figures.canvas import COLORS, SHADES, hide_frame, new_figure

_SEEDS: Final[dict[str, Any]] = {
    "markersize": 3,
    "markerfacecolor": "white",
    "markeredgecolor": COLORS["quiet"],
    "markeredgewidth": 0.6,
}


def auc_dots(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw AUCs: one group per method, one dot per labeled fraction, with its interval.

    Args:
        rows: With `method`, `fraction`, `auc` (one per seed, drawn as small dots), `auc_mean`,
            `auc_std`, and `ci95` if known: the line is that interval, or ± one standard deviation
            where no row has one. Methods keep their order of first appearance.
    """
    if not rows:
        raise SettingError("there are no AUCs to draw; give at least one row")
    methods = list(dict.fromkeys(str(row["method"]) for row in rows))
    fractions = sorted({float(row["fraction"]) for row in rows})
    shades = dict(zip(reversed(fractions), SHADES * len(fractions), strict=False))  # all: darkest
    known = any(row.get("ci95") for row in rows)
    slot = 0.7 / len(fractions)
    figure = new_figure(min(9.5, max(5.0, 1.2 + 0.42 * len(rows))), 3.8)
    axes = figure.add_subplot()
    hide_frame(axes)
    lean = 90 if len(rows) > 24 else 0
    for row in rows:
        rank = fractions.index(float(row["fraction"]))
        x = methods.index(str(row["method"])) + (rank - (len(fractions) - 1) / 2) * slot
        mean = float(row["auc_mean"])
        if not np.isfinite(mean):
            axes.text(x, 0.5, "n/a", ha="center", va="bottom", size=8, color=COLORS["quiet"])
            continue
        low, high = _interval(row, known)
        shade = shades[fractions[rank]]
        axes.plot([x, x], [low, high], color=shade, linewidth=2.5, zorder=2)
        axes.plot(x, mean, "o", color=shade, markersize=7, zorder=4)
        seeds = np.asarray(row["auc"], float)
        place = x + np.linspace(0.18, 0.38, seeds.size) * slot  # beside the dot, not on it
        axes.plot(place, seeds, "o", **_SEEDS, zorder=3)
        top = max(high, float(np.nanmax(seeds, initial=mean)))
        axes.text(x, top + 0.012, f"{mean:.3f}", ha="center", va="bottom", size=7.5, rotation=lean)
    axes.axhline(0.5, color=COLORS["quiet"], linewidth=1, linestyle=(0, (4, 3)), zorder=1)
    side = axes.get_yaxis_transform()  # x in axes, y in data
    axes.text(1.005, 0.5, "chance", transform=side, va="center", size=8, color=COLORS["quiet"])
    span = "95 % interval" if known else "± sd over seeds"
    axes.set(xlim=(-0.6, len(methods) - 0.4), ylabel=f"AUC: mean, {span}, seeds")
    lowest, highest = axes.get_ylim()
    axes.set_ylim(min(lowest, 0.45), min(highest + 0.03, 1.05))
    axes.set_xticks(range(len(methods)), methods)
    axes.tick_params(axis="x", length=0)
    for fraction in fractions:
        axes.plot([], [], "o", color=shades[fraction], label=f"{100 * fraction:g} % of labels")
    axes.legend(
        loc="lower left", bbox_to_anchor=(0, 1), ncols=len(fractions), frameon=False, fontsize=8
    )
    return figure


def _interval(row: Mapping[str, Any], known: bool) -> tuple[float, float]:
    """The interval to draw; of no length where nothing is known."""
    mean = float(row["auc_mean"])
    if known:
        low, high = row.get("ci95") or (mean, mean)
        return float(low), float(high)
    spread = float(row["auc_std"] or 0)
    return (mean - spread, mean + spread) if np.isfinite(spread) else (mean, mean)
