"""Figures of scores: AUCs, distances, ROC curves, calibration, confusion matrices."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from numpy.typing import ArrayLike, NDArray

from clocs.errors import SettingError
from clocs.figures.canvas import COLORS, SHADES, hide_frame, new_figure

if TYPE_CHECKING:
    from clocs.evaluation.result import Predictions

# Okabe and Ito's, then the same dashed: enough for fourteen classes.
_LINES: Final = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8a8a8a")
_DASHES: Final = ("-", (0, (4, 1.5)))
_BLUES: Final = LinearSegmentedColormap.from_list("blues", ["#ffffff", SHADES[1], "#0b3d63"])
_GRID: Final = np.linspace(0, 1, 201)
_BINS: Final = 10


def auc_dots(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw AUCs: one group per method, one dot per labeled fraction, with its interval.

    Args:
        rows: With `method`, `fraction`, `auc` (one per seed, drawn as small dots), `auc_mean` and
            `ci95`. Methods keep their order of first appearance.
    """
    methods = list(dict.fromkeys(str(row["method"]) for row in rows))
    fractions = sorted({float(row["fraction"]) for row in rows})
    shades = dict(zip(reversed(fractions), SHADES, strict=False))  # all labels: darkest
    slot = 0.7 / len(fractions)
    figure = new_figure(max(5.0, 1.2 + 0.42 * len(rows)), 3.8)
    axes = figure.add_subplot()
    hide_frame(axes)
    labeled = set()
    for row in rows:
        fraction, mean = float(row["fraction"]), float(row["auc_mean"])
        rank = fractions.index(fraction)
        x = methods.index(str(row["method"])) + (rank - (len(fractions) - 1) / 2) * slot
        low, high = row.get("ci95") or (mean, mean)
        label = None if fraction in labeled else f"{100 * fraction:g} % of labels"
        labeled.add(fraction)
        style: dict[str, Any] = {"color": shades[fraction], "fmt": "o", "markersize": 7}
        axes.errorbar(x, mean, [[mean - low], [high - mean]], linewidth=2.5, label=label, **style)
        place = x + np.linspace(0.18, 0.38, len(row["auc"])) * slot  # beside the dot, not on it
        axes.plot(place, row["auc"], "o", color=COLORS["quiet"], fillstyle="none", markersize=3)
        axes.text(x, high + 0.012, f"{mean:.3f}", ha="center", va="bottom", size=7.5)
    axes.axhline(0.5, color=COLORS["quiet"], linewidth=1, linestyle=(0, (4, 3)), zorder=1)
    side = axes.get_yaxis_transform()  # x in axes, y in data
    axes.text(1.005, 0.5, "chance", transform=side, va="center", size=8, color=COLORS["quiet"])
    axes.set(xlim=(-0.6, len(methods) - 0.4), ylabel="AUC: mean, 95 % interval, seeds")
    axes.set_ylim(min(axes.get_ylim()[0], 0.45), 1.05)
    axes.set_xticks(range(len(methods)), methods)
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=4, frameon=False, fontsize=8)
    return figure


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


def roc(predictions: Predictions) -> Figure:
    """One curve per class against the rest, per frame and lead, the mean over seeds."""
    from clocs.evaluation.metrics import auc_per_class

    figure, axes = _unit_square(f"ROC, {_title(predictions)}")
    axes.set(xlim=(-0.005, 1), ylim=(0, 1.005), aspect="equal")
    auc = np.stack([auc_per_class(s, predictions.targets) for s in predictions.probabilities])
    for c, label in enumerate(predictions.labels):
        if np.isnan(auc[:, c]).all():
            axes.plot([], [], color="none", label=f"{label}: not in the test set")
            continue
        target = predictions.targets[:, c].astype(bool)
        curves = [_roc(s[:, c], target) for s in predictions.probabilities]
        text = f"{label}  {auc[:, c].mean():.3f}"
        axes.plot(_GRID, np.mean(curves, axis=0), **_style(c), label=text)
    axes.set(xlabel="1 − specificity", ylabel="sensitivity")
    _legend(axes, "AUC")
    return figure


def calibration(predictions: Predictions) -> Figure:
    """Observed frequency over predicted probability, one curve per class, all seeds together.

    Ten bins with equally many rows, so that no point rests on a few.
    """
    figure, axes = _unit_square(f"Calibration, {_title(predictions)}")
    for c, label in enumerate(predictions.labels):
        predicted = predictions.probabilities[:, :, c].ravel()
        true = np.tile(predictions.targets[:, c], len(predictions.seeds)).astype(bool)
        if not true.any():
            continue
        order = np.argsort(predicted, kind="stable")
        bins = np.array_split(order, _BINS)
        x, y = (np.array([values[rows].mean() for rows in bins]) for values in (predicted, true))
        off = float(sum(abs(a - b) * len(rows) for a, b, rows in zip(x, y, bins, strict=True)))
        text = f"{label}  {off / len(predicted):.3f}"
        axes.plot(x, y, marker="o", markersize=3.5, **_style(c), label=text)
    axes.set(xlabel="predicted probability", ylabel="observed frequency", xlim=(0, 1), ylim=(0, 1))
    _legend(axes, "mean error")
    return figure


def confusion(predictions: Predictions) -> Figure:
    """Single-label: true against predicted class; multi-label: yes or no, class by class.

    Per frame and lead, the mean over seeds; percentages are per row.
    """
    if not predictions.multilabel:
        return _confusion(predictions)
    labels = predictions.labels
    columns = min(5, len(labels))
    lines = -(-len(labels) // columns)
    figure = new_figure(1.9 * columns + 0.6, 2.1 * lines + 0.5)
    panels = figure.subplots(lines, columns, squeeze=False)
    for axes in panels.flat[len(labels) :]:
        axes.set_axis_off()
    for c, label in enumerate(labels):
        truth = predictions.targets[:, c].astype(int)
        cut = predictions.thresholds[:, c]
        predicted = (predictions.probabilities[:, :, c] >= cut[:, None]).astype(int)
        axes = panels.flat[c]
        _matrix(axes, _counts(truth, predicted, 2), ("no", "yes"))
        axes.set_title(label if not np.isnan(cut).all() else f"{label} (no threshold)", fontsize=9)
    figure.suptitle(f"Confusion, {_title(predictions)}", fontsize=10, x=0.01, ha="left")
    figure.supxlabel("predicted", fontsize=9)
    figure.supylabel("true", fontsize=9)
    return figure


FIGURES: Final[dict[str, Callable[[Predictions], Figure]]] = {
    "roc": roc,
    "calibration": calibration,
    "confusion": confusion,
}


def _confusion(predictions: Predictions) -> Figure:
    labels = predictions.labels
    size = max(3.6, 0.62 * len(labels) + 1.6)
    figure = new_figure(size + 0.6, size)
    axes = figure.add_subplot()
    predicted = predictions.probabilities.argmax(axis=2)
    counts = _counts(predictions.targets.argmax(axis=1), predicted, len(labels))
    _matrix(axes, counts, labels)
    if len(labels) > 5:
        axes.tick_params(axis="x", rotation=60)
    axes.set(xlabel="predicted", ylabel="true")
    axes.set_title(f"Confusion, {_title(predictions)}", fontsize=10, loc="left")
    return figure


def _counts(
    truth: NDArray[np.int64], predicted: NDArray[np.int64], size: int
) -> NDArray[np.float64]:
    """truth: (rows,), predicted: (seeds, rows) -> (size, size) rows, the mean over seeds."""
    cells = np.bincount((truth * size + predicted).ravel(), minlength=size * size)
    return cells.reshape(size, size) / len(predicted)


def _matrix(axes: Axes, counts: NDArray[np.float64], labels: tuple[str, ...]) -> None:
    total = counts.sum(axis=1, keepdims=True)
    share = np.divide(counts, total, out=np.zeros_like(counts), where=total > 0)
    axes.imshow(share, cmap=_BLUES, vmin=0, vmax=1)
    for (i, j), part in np.ndenumerate(share):
        color = "white" if part > 0.55 else COLORS["text"]
        text = f"{100 * part:.0f} %\n{counts[i, j]:,.0f}" if total[i, 0] else "–"
        axes.text(j, i, text, ha="center", va="center", fontsize=7, color=color)
    axes.set_xticks(range(len(labels)), labels, fontsize=8)
    axes.set_yticks(range(len(labels)), labels, fontsize=8)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def _roc(score: NDArray[np.float64], target: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Sensitivity at each point of the grid; tied scores are one straight line."""
    order = np.argsort(-score, kind="stable")
    last = np.append(np.flatnonzero(np.diff(score[order])), len(score) - 1)
    hits, false = np.cumsum(target[order])[last], np.cumsum(~target[order])[last]
    x, y = np.append(0, false / false[-1]), np.append(0, hits / hits[-1])
    return np.asarray(np.interp(_GRID, x, y))


def _unit_square(title: str) -> tuple[Figure, Axes]:
    """From 0 to 1, with a dashed diagonal."""
    figure = new_figure(6.4, 4.6)
    axes = figure.add_subplot()
    hide_frame(axes)
    axes.set_title(title, fontsize=10, loc="left")
    axes.plot([0, 1], [0, 1], color=COLORS["quiet"], linewidth=1, linestyle=(0, (4, 3)))
    return figure, axes


def _legend(axes: Axes, title: str) -> None:
    axes.legend(
        loc="upper left",
        bbox_to_anchor=(1.01, 1),
        frameon=False,
        fontsize=8,
        title=title,
        title_fontsize=8,
        alignment="left",
    )


def _style(c: int) -> dict[str, Any]:
    dash = _DASHES[c // len(_LINES) % len(_DASHES)]
    return {"color": _LINES[c % len(_LINES)], "linestyle": dash, "linewidth": 1.5}


def _title(predictions: Predictions) -> str:
    seeds = len(predictions.seeds)
    return (
        f"{predictions.name} → {predictions.downstream}, {predictions.protocol}, "
        f"{seeds} seed{'s' if seeds > 1 else ''}"
    )
