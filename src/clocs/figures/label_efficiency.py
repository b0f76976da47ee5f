"""AUC over the number of labeled patients: one panel per dataset and protocol, a line per method.

Drawn twice from the same values: with matplotlib for a PNG, and as SVG for the report.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clocs.errors import SettingError
from clocs.figures.svg import Line, Panel, picture, ticks

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLORS = {  # those of the report's page in light mode
    "random": "#7a7f8c",
    "random-bn": "#a5a9b3",
    "supervised": "#5b4a9c",
    "mtssl": "#b58900",
    "byol": "#cc79a7",
    "simclr": "#d55e00",
    "cmsc": "#0072b2",
    "cmlc": "#009e73",
    "cmsmlc": "#56a4d9",
}
_AXIS = "labeled patients"


@dataclass(frozen=True)
class EfficiencyLine:
    """One method: mean and standard deviation over seeds for each number of labeled patients."""

    method: str
    title: str
    patients: Sequence[int]
    mean: Sequence[float]
    spread: Sequence[float]


@dataclass(frozen=True)
class EfficiencyPanel:
    """One dataset and protocol; `column` is its place among the datasets, `row` its protocol's."""

    title: str
    row: int
    column: int
    lines: Sequence[EfficiencyLine]


def label_efficiency(panels: Sequence[EfficiencyPanel], ylabel: str) -> Figure:
    """The figure, for a PNG; the two protocols of a dataset share their y axis."""
    from clocs.figures.canvas import hide_frame, new_figure

    if not panels:
        raise SettingError("there are no results to draw; give at least one panel")
    rows, columns = (1 + max(getattr(p, name) for p in panels) for name in ("row", "column"))
    figure = new_figure(3.1 * columns + 0.4, 2.7 * rows + 0.5)
    legend = {}
    for panel in panels:
        axes = figure.add_subplot(rows, columns, panel.row * columns + panel.column + 1)
        hide_frame(axes)
        for line in panel.lines:
            low, high = ([m + s * d for m, d in _values(line)] for s in (-1, 1))
            color = COLORS[line.method]
            axes.fill_between(line.patients, low, high, color=color, alpha=0.13, linewidth=0)
            (legend[line.title],) = axes.plot(
                line.patients, line.mean, "o-", color=color, markersize=3, linewidth=1.4
            )
        marks = _marks(panel)
        axes.set_xscale("log")
        axes.set_xticks(marks, [f"{mark:,}" for mark in marks], rotation=40)
        axes.tick_params(axis="x", which="minor", length=0)
        axes.set_ylim(_limits(panels, panel.column))
        axes.set_title(panel.title, fontsize=9.5, loc="left")
        axes.set_xlabel(_AXIS if panel.row == rows - 1 else "", fontsize=9)
        axes.set_ylabel(ylabel if panel.column == 0 else "", fontsize=9)
        axes.grid(color="#e6e8ec", linewidth=0.7)
        axes.set_axisbelow(True)
    figure.legend(
        legend.values(), legend.keys(), loc="outside upper center", ncols=9, frameon=False,
        fontsize=9,
    )  # fmt: skip
    return figure


def label_efficiency_svg(panels: Sequence[EfficiencyPanel], width: float, alt: str) -> str:
    """The same as SVG in the page's colors."""
    rows, columns = (1 + max(getattr(p, name) for p in panels) for name in ("row", "column"))
    left, gap, tall = 46.0, 44.0, 170.0
    wide = (width - left - gap * (columns - 1) - 8) / columns
    drawn = []
    for panel in panels:
        marks = _marks(panel)
        x = math.log10(marks[0]) - 0.08, math.log10(marks[-1]) + 0.08
        place = left + panel.column * (wide + gap), 40 + panel.row * (tall + 84)
        axes = Panel(*place, wide, tall, x, _limits(panels, panel.column))
        axes.title(panel.title)
        axes.x_axis([math.log10(m) for m in marks], _AXIS, [_short(m) for m in marks])
        axes.y_axis(ticks(*axes.y, about=4))
        for line in panel.lines:
            at = [math.log10(count) for count in line.patients]
            color = f"var(--{line.method})"
            axes.line(Line(at, line.mean, color, line.title, line.spread, marked=True))
        drawn.append(axes)
    return picture(width, rows * (tall + 84), drawn, alt)


def _values(line: EfficiencyLine) -> list[tuple[float, float]]:
    return list(zip(line.mean, line.spread, strict=True))


def _marks(panel: EfficiencyPanel) -> list[int]:
    return sorted({count for line in panel.lines for count in line.patients})


def _short(count: int) -> str:
    return f"{count / 1000:.2g}k" if count >= 1000 else str(count)


def _limits(panels: Sequence[EfficiencyPanel], column: int) -> tuple[float, float]:
    """The range of all values of a dataset, under both protocols."""
    lines = [line for panel in panels if panel.column == column for line in panel.lines]
    ends = [
        mean + sign * spread for li in lines for mean, spread in _values(li) for sign in (-1, 1)
    ]
    margin = max(0.05 * (max(ends) - min(ends)), 0.005)
    return min(ends) - margin, max(ends) + margin
