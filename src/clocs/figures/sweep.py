"""The scores of a sweep: one panel per option that was varied, one dot and interval per trial."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullLocator

from clocs.errors import SettingError
from clocs.figures.canvas import COLOURS, hide_frame, new_figure

_COLUMNS: Final = 3
_SPREAD: Final = 0.3  # of the least step between values: trials of one value are spread over it
_LONG: Final = 26  # characters of all values, more than fit side by side
_BEST, _OTHER = COLOURS["inter"], COLOURS["intra"]


@dataclass(frozen=True)
class ScoredTrial:
    """One trial: its value of an option, its score or None where it failed, and the interval."""

    value: Any
    score: float | None
    ci95: Sequence[float] | None
    best: bool


@dataclass(frozen=True)
class SweepPanel:
    """One option; `log` says that its axis is logarithmic."""

    name: str
    trials: Sequence[ScoredTrial]
    values: Sequence[Any] = ()  # that were listed, in order; none of a range
    log: bool = False


def sweep_figure(panels: Sequence[SweepPanel], ylabel: str) -> Figure:
    """Score against value, one panel per option; all panels share the y axis.

    Where values repeat, a line joins the means over all trials of each value.
    """
    if not panels or not any(trial.score is not None for trial in panels[0].trials):
        raise SettingError("there are no scores to draw; give at least one trial that has one")
    columns = min(_COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    figure = new_figure(3.4 * columns + 0.6, 3.0 * rows + 0.5)
    shared: Axes | None = None
    joined = False
    for place, panel in enumerate(panels):
        axes = figure.add_subplot(rows, columns, place + 1, sharey=shared)
        shared = shared or axes
        hide_frame(axes)
        axes.grid(axis="y", color="#e6e8ec", linewidth=0.7)
        axes.set_axisbelow(True)
        joined = _draw(axes, panel) or joined
        axes.set_xlabel(panel.name, fontsize=10)
        if place % columns == 0:
            axes.set_ylabel(ylabel, fontsize=9)
        else:
            axes.tick_params(labelleft=False)
    kinds = {"best trial": _BEST, "other trials": _OTHER}
    marks = [Line2D([], [], marker="o", color=colour, linewidth=0) for colour in kinds.values()]
    names = [*kinds, "mean of each value"] if joined else [*kinds]
    marks += [Line2D([], [], color=COLOURS["quiet"], linewidth=1)] if joined else []
    figure.legend(marks, names, loc="outside upper right", ncols=3, frameon=False, fontsize=9)
    return figure


def _draw(axes: Axes, panel: SweepPanel) -> bool:
    """Draw a panel; whether it has a line of means."""
    names = list(dict.fromkeys(_words(value) for value in panel.values)) or sorted(
        {_words(trial.value) for trial in panel.trials}, key=float
    )
    numeric = all(_is_number(trial.value) for trial in panel.trials)
    log = numeric and panel.log

    def place(value: Any) -> float:
        if not numeric:
            return float(names.index(_words(value)))
        return math.log10(value) if log else float(value)

    def at(places: float) -> float:
        return 10**places if log else places

    together: dict[float, list[ScoredTrial]] = defaultdict(list)
    for trial in panel.trials:
        if trial.score is None:
            axes.plot(
                at(place(trial.value)), 0.02, "x", color=COLOURS["quiet"], markersize=5,
                clip_on=False, transform=axes.get_xaxis_transform(),
            )  # fmt: skip
        else:
            together[place(trial.value)].append(trial)
    places = sorted(together)
    gap = min((b - a for a, b in pairwise(places)), default=1.0)
    joined = bool(panel.values) and max(map(len, together.values())) > 1
    if joined:
        means = [fmean(trial.score or 0 for trial in together[one]) for one in places]
        axes.plot([at(one) for one in places], means, color=COLOURS["quiet"], linewidth=1, zorder=1)
    for one, trials in together.items():
        for number, trial in enumerate(sorted(trials, key=lambda trial: trial.score or 0)):
            share = (number + 0.5) / len(trials) - 0.5
            _dot(axes, at(one + share * _SPREAD * gap), trial)
    if log:
        axes.set_xscale("log")
    if panel.values:
        ticks = [at(place(value)) for value in panel.values]
        lean = sum(map(len, names)) > _LONG
        axes.set_xticks(ticks, names, rotation=30 * lean, ha="right" if lean else "center")
        axes.xaxis.set_minor_locator(NullLocator())
    if panel.values and not numeric:
        axes.set_xlim(-0.5, len(names) - 0.5)
    else:
        axes.margins(x=0.1)
    return joined


def _dot(axes: Axes, x: float, trial: ScoredTrial) -> None:
    score = float(trial.score or 0)
    colour, above = (_BEST, 4) if trial.best else (_OTHER, 3)
    if trial.ci95 is not None:
        axes.plot([x, x], trial.ci95, color=colour, linewidth=1.3, alpha=0.5, zorder=above)
    axes.plot(x, score, "o", color=colour, markersize=6 if trial.best else 4.5, zorder=above)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _words(value: Any) -> str:
    if _is_number(value):
        return f"{value:g}"
    return "none" if value is None else "+".join(value) if isinstance(value, tuple) else str(value)
