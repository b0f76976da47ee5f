"""The report's figures, drawn from results; None where there is nothing to draw."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, pstdev
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from clocs.evaluation.bootstrap import Comparison
from clocs.experiments import grid as grids
from clocs.experiments import paper
from clocs.experiments.comparisons import Contest
from clocs.experiments.duel import Effect, drawn_in, effects
from clocs.experiments.grid import CHAINS, Cell, Pretraining
from clocs.experiments.results import Results
from clocs.experiments.tables import PROTOCOLS, efficiency_cells
from clocs.figures.canvas import COLORS, COLUMN, hide_frame, new_figure
from clocs.frames.splits import ValidationLabels

_HEX = (
    "#7a7f8c", "#a5a9b3", "#5b4a9c", "#b58900", "#cc79a7", "#d55e00", "#0072b2", "#009e73",
    "#56a4d9",
)  # fmt: skip
METHOD_COLORS = dict(zip(paper.METHOD_TITLES, _HEX, strict=True))
_WIDTH = 10.0  # inches
_Mark = tuple[str, Comparison, dict[str, Any]]  # its row, its place and interval, its style
_VALIDATION: dict[ValidationLabels, str] = {"share": "", "all": ", all for validation"}


def perturbations(results: Results, cells: Sequence[Cell]) -> Figure | None:
    """Figure 3: nine perturbations of SimCLR and CMSC, alone or after Gaussian noise."""
    methods = ("simclr", "cmsc")
    if not any(results.ours(cell) for cell in cells):
        return None
    found = {m: [results.ours(grids.perturbed(m, chain)) for chain in CHAINS] for m in methods}
    figure, panels = _panels([paper.METHOD_TITLES[m] for m in methods], 3.0, sharex=True)
    for axes, (method, values) in zip(panels, found.items(), strict=True):
        for height, (chain, value) in enumerate(zip(CHAINS, values, strict=True)):
            if value is not None:
                color = METHOD_COLORS["cmlc" if ">" in chain else "cmsc"]
                ends = results.interval(grids.perturbed(method, chain)) or (value.mean, value.mean)
                error = [[value.mean - ends[0]], [ends[1] - value.mean]]
                axes.errorbar(value.mean, height, xerr=error, fmt="o", color=color)
        axes.set_ylim(len(CHAINS) - 0.4, -0.6)
        axes.set_yticks(range(len(CHAINS)), [chain.replace(">", " → ") for chain in CHAINS])
        axes.set_xlabel("test AUC, linear, F = 0.5", fontsize=9)
    return figure


def more_with_less(results: Results, cells: Sequence[Cell]) -> Figure | None:
    """Validation AUC after every epoch of fine-tuning, mean ± sd over seeds."""
    if not any(results.result(cell) for cell in cells):
        return None
    titles = [" → ".join(paper.DATASET_TITLES[d] for d in pair) for pair in grids.TRANSFERS]
    figure, panels = _panels(titles, 3.0, sharey=False)
    for axes, (dataset, downstream) in zip(panels, grids.TRANSFERS, strict=True):
        wanted: list[tuple[str, Cell, str]] = [
            (f"CMSC, F = {f:g}", Cell(Pretraining("cmsc", dataset), downstream, "curve", f), color)
            for f, color in zip(grids.FEW, ("#0072b2", "#009e73", "#56a4d9"), strict=True)
        ]
        random = Cell(Pretraining("random", downstream), downstream, "curve", 1.0)
        wanted.append(("random, F = 1", random, METHOD_COLORS["random"]))
        for name, cell, color in wanted:
            by_epoch = list(zip(*(results.result(cell) or {}).get("curve") or (), strict=True))
            if by_epoch:
                means, sds = map(fmean, by_epoch), map(pstdev, by_epoch)
                _band(axes, range(1, len(by_epoch) + 1), list(means), list(sds), color, name)
        axes.set_xlabel("epoch of fine-tuning", fontsize=9)
        if axes.lines:
            axes.legend(frameon=False, fontsize=8, loc="lower right")
    return figure


def distances(results: Results, cells: Sequence[Cell]) -> Figure | None:
    """Histograms of distances within and between patients, all on the same axes.

    Bins differ in width between encoders, so shares become densities.
    """
    found = [(c.pretraining, r) for c in cells if (r := results.result(c)) is not None]
    if not found:
        return None
    titles = [
        f"{paper.METHOD_TITLES[p.method]}, E = {p.embedding_dim}: "
        f"separability {fmean(result['separability']):.3f}"
        for p, result in found
    ]
    figure, panels = _panels(titles, 1.9, sharex=True)
    for axes, (_, result) in zip(panels, found, strict=True):
        edges = result["edges"]
        for kind, label in (("inter", "different patients"), ("intra", "same patient")):
            density = [share / edges[1] for share in result["histogram"][kind]]
            color = COLORS[kind]
            axes.stairs(density, edges, fill=True, color=color, alpha=0.3)
            axes.stairs(density, edges, color=color, linewidth=1.2, label=label)
        axes.set_xlabel("Euclidean distance", fontsize=9)
    farthest = [  # but for 1 %, so that a few do not stretch the axis
        result["edges"][int(np.searchsorted(np.cumsum(shares), 0.99 * sum(shares))) + 1]
        for _, result in found
        for shares in result["histogram"].values()
    ]
    panels[0].set_xlim(0, max(farthest))
    panels[0].legend(frameon=False, fontsize=8)
    return figure


def forest(made: Sequence[Contest]) -> Figure | None:
    """The best of CLOCS against each rival: differences in AUC with their intervals, by column.

    Blue and orange are above and below the rival by test.
    """
    own = [one for one in made if one.primary]
    paints = {"above": "#0072b2", "below": "#d55e00"}
    marks: dict[str, list[_Mark]] = {f"against {one.rival}": [] for one in own}
    for one in own:
        color = paints.get(one.comparison.verdict, "#7a7f8c")
        style = {"markersize": 5, "linewidth": 1.6, "color": color}
        marks[f"against {one.rival}"].append((one.where, one.comparison, style))
    return _forest(_WIDTH, list(dict.fromkeys(one.where for one in own)), marks) if own else None


def factorial(results: Results, cells: Sequence[Cell]) -> Figure | None:
    return effects_forest(effects(drawn_in(results)))


def effects_forest(found: Sequence[Effect]) -> Figure | None:
    """Each effect with its interval, a panel per dataset."""
    if not found:
        return None
    marks: dict[str, list[_Mark]] = {}
    for one in found:
        c, size = one.comparison, (6, 2) if one.main else (3.5, 1)
        color = "#0072b2" if one.main and c.p_holm < 0.05 else "#7a7f8c"
        style = {"markersize": size[0], "linewidth": size[1], "color": color}
        marks.setdefault(paper.DATASET_TITLES[one.dataset], []).append((one.title, c, style))
    figure = _forest(9.0, list(dict.fromkeys(one.title for one in found)), marks)
    parts = {one.title for one in found if not one.main}
    for label in figure.axes[0].get_yticklabels():
        label.set_fontsize(8 if label.get_text() in parts else 9)
    return figure


def _forest(width: float, rows: Sequence[str], marks: Mapping[str, Sequence[_Mark]]) -> Figure:
    """Differences with their intervals: a panel per heading, a row per title."""
    figure = new_figure(width, 0.9 + 0.24 * len(rows))
    panels = figure.subplots(1, len(marks), sharex=True, sharey=True, squeeze=False)[0]
    for axes, (heading, own) in zip(panels, marks.items(), strict=True):
        hide_frame(axes)
        axes.axvline(0, color="#7a7f8c", linewidth=1)
        for title, c, style in own:
            around = [[c.difference - c.ci95[0]], [c.ci95[1] - c.difference]]
            axes.errorbar(c.difference, rows.index(title), xerr=around, fmt="o", **style)
        axes.set_title(heading, fontsize=9.5, loc="left")
        axes.grid(axis="x", color="#e6e8ec", linewidth=0.7)
        axes.set_axisbelow(True)
    panels[0].set_yticks(range(len(rows)), rows)
    panels[0].set_ylim(len(rows) - 0.4, -0.6)
    figure.supxlabel("difference in test AUC, with its 95 % interval", fontsize=9)
    return figure


def label_efficiency(results: Results, cells: Sequence[Cell]) -> Figure | None:
    """AUC per recording over labeled patients: a panel per dataset and protocol, a line per method.

    It is as wide as a column of a journal. The two protocols of a dataset share their y axis.
    """
    figure = new_figure(COLUMN, 1.35 * len(grids.SHOWN) + 0.9)
    grid = figure.subplots(len(grids.SHOWN), len(PROTOCOLS), sharey="row", squeeze=False).T
    legend = {}
    few = [cell for cell in cells if cell.validation_labels == "share"]
    labels: ValidationLabels = "share" if any(results.result(cell) for cell in few) else "all"
    for row, (task, protocol) in enumerate(PROTOCOLS.items()):
        for axes, (dataset, downstream) in zip(grid[row], grids.SHOWN, strict=True):
            hide_frame(axes)
            facts = results.facts.get(f"counts of {downstream}") or {}
            every = int(facts.get("patients_by_part", [0])[0])
            counts = grids.labeled_patients(downstream)
            for method, title in paper.METHOD_TITLES.items():
                own = efficiency_cells(task, method, dataset, downstream, labels)
                values = [results.over_seeds(cell, "auc_recording") for cell in own]
                known = [(c or every, v) for c, v in zip(counts, values, strict=True) if v]
                if known:
                    means, sds = [v.mean for _, v in known], [v.std or 0.0 for _, v in known]
                    x, color = [count for count, _ in known], METHOD_COLORS[method]
                    legend[title] = _band(axes, x, means, sds, color, title, marker="o")
            marks = [count or every for count in counts]
            axes.set_xscale("log")
            axes.set_xticks(marks, [f"{mark:,}" for mark in marks], rotation=40)
            axes.tick_params(axis="x", which="minor", length=0)
            axes.tick_params(labelsize=6, pad=1.5)
            title = f"{paper.DATASET_TITLES[downstream]}, {protocol}"
            axes.set_title(title, fontsize=6.5, loc="left")
            axes.grid(color="#e6e8ec", linewidth=0.7)
            axes.set_axisbelow(True)
    figure.supylabel("test AUC per recording", fontsize=7)
    figure.supxlabel(f"labeled patients{_VALIDATION[labels]}", fontsize=7)
    figure.legend(
        legend.values(), legend.keys(), loc="outside upper center", ncols=3, frameon=False,
        fontsize=6.5,
    )  # fmt: skip
    return figure if legend else None


def _panels(
    titles: Sequence[str], height: float, *, sharex: bool = False, sharey: bool = True
) -> tuple[Figure, list[Axes]]:
    """At most three panels in a row, each so many inches high."""
    across = min(3, len(titles))
    down = -(-len(titles) // across)
    figure = new_figure(_WIDTH, height * down + 0.4)
    grid = figure.subplots(down, across, squeeze=False, sharex=sharex, sharey=sharey)
    for axes in grid.flat[len(titles) :]:
        axes.set_axis_off()
    for axes, title in zip(grid.flat, titles, strict=False):
        hide_frame(axes)
        axes.set_title(title, fontsize=10, loc="left")
        axes.grid(color="#e6e8ec", linewidth=0.7)
        axes.set_axisbelow(True)
    return figure, list(grid.flat[: len(titles)])


def _band(
    axes: Axes,
    x: Sequence[float],
    mean: Sequence[float],
    sd: Sequence[float],
    color: str,
    label: str,
    marker: str = "",
) -> Any:
    """A line in a band of one standard deviation."""
    low, high = ([m + sign * s for m, s in zip(mean, sd, strict=True)] for sign in (-1, 1))
    axes.fill_between(x, low, high, color=color, alpha=0.13, linewidth=0)
    style: dict[str, Any] = {"marker": marker, "markersize": 3, "linewidth": 1.4}
    return axes.plot(x, mean, color=color, label=label, **style)[0]


FIGURES: dict[str, Callable[[Results, Sequence[Cell]], Figure | None]] = {
    "factorial": factorial,
    "label-efficiency": label_efficiency,
    "more-with-less": more_with_less,
    "patient-distances": distances,
    "perturbations": perturbations,
}
