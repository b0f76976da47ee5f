"""Figures: an ECG on ECG paper, AUCs as bars, distances between patients as histograms.

Figures are made as objects and drawn by Agg, never through pyplot: nothing global changes, no
display is needed, threads do not meet. Knows nothing about stores, training or how the numbers
came about.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from numpy.typing import ArrayLike, NDArray

from clocs.errors import SettingError
from clocs.recording import STANDARD_LEADS, Recording

DPI: Final = 150

# All colours live here. The categorical ones are Okabe and Ito's, which the colour-blind can tell
# apart; fractions, which have an order, are shades of one blue.
COLOURS: Final = {
    "trace": "#111111",
    "minor": "#f9dcdc",
    "major": "#efb0b0",
    "text": "#333333",
    "quiet": "#8a8a8a",
    "intra": "#0072b2",
    "inter": "#e69f00",
}
SHADES: Final = ("#1f6fa8", "#6aaed6", "#abd0e6", "#d6e6f4")

_DOTS: Final[dict[str, Any]] = {
    "markersize": 3,
    "markerfacecolor": "white",
    "markeredgecolor": COLOURS["text"],
    "markeredgewidth": 0.6,
}
_MM_PER_SECOND = 25.0
_MM_PER_MV = 10.0
_MARGIN = 10.0  # mm of paper left and right
_HEAD, _FOOT = 12.0, 8.0  # mm for the title and for the scale
_PULSE = 15.0  # mm for the calibration pulse and the space around it
_CLINICAL = (("I", "aVR", "V1", "V4"), ("II", "aVL", "V2", "V5"), ("III", "aVF", "V3", "V6"))

# A stretch of one lead on paper: row, first second, last second, lead.
_Strip = tuple[int, float, float, str]


def ecg_paper(
    recording: Recording,
    *,
    leads: Sequence[str] | None = None,
    seconds: float | None = None,
    title: str | None = None,
    layout: Literal["stacked", "clinical"] = "stacked",
) -> Figure:
    """Draw an ECG on paper at its true size: 25 mm/s and 10 mm/mV, on a grid of 1 and 5 mm.

    Each lead is shifted by its median, so that its baseline lies on its row; nothing is filtered.
    Where the unit is unknown ('adu'), each lead is scaled to fit and no mV are claimed.

    Args:
        recording: What to draw.
        leads: Which, in this order; all by default. Not with the clinical layout.
        seconds: How much from its beginning; all of it (clinical: at most 10 s) by default.
        title: Above the paper; the recording's id by default.
        layout: 'stacked', a row a lead, or 'clinical', three rows of four leads and lead II below.
    """
    if seconds is not None and not seconds > 0:
        raise SettingError(f"seconds is {seconds}; give more than 0")
    shown = min(recording.seconds, seconds or recording.seconds)
    if layout == "clinical":
        if leads is not None:
            raise SettingError("the clinical layout has its own leads; use layout 'stacked'")
        recording = recording.select(STANDARD_LEADS)
        shown = min(shown, 10.0)
        strips: list[_Strip] = [
            (row, column * shown / 4, (column + 1) * shown / 4, lead)
            for row, names in enumerate(_CLINICAL)
            for column, lead in enumerate(names)
        ]
        strips.append((3, 0.0, shown, "II"))
    else:
        recording = recording if leads is None else recording.select(leads)
        strips = [(row, 0.0, shown, lead) for row, lead in enumerate(recording.leads)]

    millimetres = _millimetres(recording, shown)
    traces = [millimetres[recording.leads.index(lead)] for *_, lead in strips]
    baselines, paper = _rows(strips, traces)
    width = 2 * _MARGIN + _PULSE + shown * _MM_PER_SECOND
    figure, axes = _page(width, _HEAD + paper + _FOOT, paper)
    left = _MARGIN + _PULSE
    physical = recording.unit == "mV"
    for (row, start, stop, lead), trace in zip(strips, traces, strict=True):
        first, last = (round(second * recording.rate) for second in (start, stop))
        time = np.arange(first, min(last + 1, trace.size)) / recording.rate
        base = baselines[row]
        axes.plot(
            left + time * _MM_PER_SECOND,
            base + trace[first : first + time.size],
            color=COLOURS["trace"],
            linewidth=0.75,
            solid_joinstyle="round",
            gid=f"trace {lead}",
        )
        x = left + start * _MM_PER_SECOND
        under = trace[first:][: round((3 + 2 * len(lead)) / _MM_PER_SECOND * recording.rate)]
        above = max(7.5, float(np.nanmax(under)) + 1)  # a name never hides a QRS
        _write(axes, x + 1.2, base + above, lead, weight="bold")
        if start > 0:
            axes.plot([x, x], [base - 3, base + 3], color=COLOURS["trace"], linewidth=0.9)
        elif physical:
            pulse = left - 11 + np.array([0.0, 2, 2, 7, 7, 9])  # 1 mV for 200 ms
            height = base + np.array([0.0, 0, 10, 10, 0, 0])
            axes.plot(pulse, height, color=COLOURS["trace"], linewidth=0.75, gid="calibration")
    scale = "25 mm/s    10 mm/mV" if physical else "25 mm/s    arbitrary units"
    _write(axes, _MARGIN, _FOOT / 2, scale, va="center", size=8)
    heading = recording.id if title is None else title
    _write(axes, _MARGIN, _FOOT + paper + _HEAD / 2, heading, va="center", size=10, weight="bold")
    return figure


def auc_bars(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw AUCs: a group a method, a bar a labelled fraction, ± one standard deviation.

    Args:
        rows: With `method`, `fraction`, `auc` (one a seed, drawn as dots), `auc_mean`, `auc_std`.
            Methods keep the order in which they first come.
    """
    if not rows:
        raise SettingError("there are no AUCs to draw; give at least one row")
    methods = list(dict.fromkeys(str(row["method"]) for row in rows))
    fractions = sorted({float(row["fraction"]) for row in rows})
    shades = dict(zip(reversed(fractions), SHADES * len(fractions), strict=False))  # all: darkest
    bar = 0.8 / len(fractions)
    figure = Figure(figsize=(min(9.5, max(5.0, 1.2 + 0.42 * len(rows))), 3.8), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    _bare(axes)
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


def patient_distances(
    intra: ArrayLike | Mapping[str, tuple[ArrayLike, ArrayLike]],
    inter: ArrayLike | None = None,
    *,
    title: str = "",
    metric: str = "Euclidean",
) -> Figure:
    """Draw distances within and between patients, as in the paper's figure 6.

    Args:
        intra: Distances between embeddings of one patient; or, for panels side by side, a mapping
            from the panel's name to its (intra, inter).
        inter: Distances between embeddings of different patients.
        title: Above the figure.
        metric: Its name, for the axis.
    """
    if isinstance(intra, Mapping):
        panels = dict(intra)
    elif inter is not None:
        panels = {"": (intra, inter)}
    else:
        raise SettingError("distances between patients are missing; give inter as well as intra")
    figure = Figure(figsize=(max(4.5, 3.4 * len(panels)), 3.2), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, (name, pair) in zip(
        figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True
    ):
        _bare(axes)
        both = [np.asarray(values, float).ravel() for values in pair]
        if not all(values.size and np.isfinite(values).all() for values in both):
            raise SettingError(f"panel {name!r} needs finite distances of both kinds")
        bins = np.histogram_bin_edges(np.concatenate(both), bins=60)
        for kind, values in zip(("intra", "inter"), both, strict=True):
            colour = COLOURS[kind]
            axes.hist(values, bins=list(bins), density=True, color=colour, alpha=0.55)
            mean = float(values.mean())
            label = f"{kind}-patient, mean {mean:.2f}"
            axes.axvline(mean, color=colour, linewidth=1.6, linestyle=(0, (4, 2)), label=label)
        axes.set(xlabel=f"{metric} distance", title=name, xlim=(0, None))
        axes.legend(loc="upper right", framealpha=1, edgecolor="none", fontsize=8)
        axes.margins(y=0.28)  # room for the legend above the bars
    figure.axes[0].set_ylabel("density")
    if title:
        figure.suptitle(title, fontsize=11)
    return figure


def save(figure: Figure, path: str | os.PathLike[str]) -> None:
    """Write a figure as PNG at 150 dots an inch; the file is there whole or not at all."""
    target = Path(path)
    handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            figure.savefig(file, dpi=DPI, format="png")
        Path(name).chmod(0o644)  # mkstemp makes it private
        Path(name).replace(target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _millimetres(recording: Recording, seconds: float) -> NDArray[np.float64]:
    """(leads, samples) deflection on paper, about each lead's median."""
    signal = recording.signal[:, : max(2, round(seconds * recording.rate))]
    signal = signal - np.nanmedian(signal, axis=1, keepdims=True)
    if recording.unit == "mV":
        return np.asarray(signal * _MM_PER_MV)
    reach = np.nanpercentile(np.abs(signal), 99.8, axis=1, keepdims=True)
    return np.asarray(signal / np.where(reach > 0, reach, 1.0) * 12.0)


def _rows(
    strips: Sequence[_Strip], traces: Sequence[NDArray[np.float64]]
) -> tuple[list[float], float]:
    """Where each row's baseline lies and how high the paper is, mm; rows as high as they need."""
    count = max(row for row, *_ in strips) + 1
    above, below = [11.0] * count, [6.0] * count
    for (row, *_), trace in zip(strips, traces, strict=True):
        above[row] = max(above[row], min(float(np.nanmax(trace)), 30.0) + 4)
        below[row] = max(below[row], min(float(-np.nanmin(trace)), 30.0) + 2)
    height = 5 * np.ceil((sum(above) + sum(below)) / 5)
    baselines, y = [], _FOOT + height
    for up, down in zip(above, below, strict=True):
        baselines.append(y - up)
        y -= up + down
    return baselines, float(height)


def _page(width: float, height: float, paper: float) -> tuple[Figure, Axes]:
    """A figure whose axes are the page and whose unit is the millimetre, with the grid on it."""
    figure = Figure(figsize=(width / 25.4, height / 25.4), dpi=DPI, facecolor="white")
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(0, height))
    axes.set_axis_off()
    right = _MARGIN + 5 * np.floor((width - 2 * _MARGIN) / 5)
    for step, name, line in ((1, "minor", 0.35), (5, "major", 0.6)):
        x = np.arange(_MARGIN, right + 0.5, step)
        y = np.arange(_FOOT, _FOOT + paper + 0.5, step)
        segments = [[(at, _FOOT), (at, _FOOT + paper)] for at in x]
        segments += [[(_MARGIN, at), (right, at)] for at in y]
        axes.add_collection(
            LineCollection(segments, colors=COLOURS[name], linewidths=line, zorder=0.5, gid=name)
        )
    return figure, axes


def _bare(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=9)


def _write(axes: Axes, x: float, y: float, text: str, **style: Any) -> None:
    axes.text(x, y, text, **{"size": 8, "color": COLOURS["text"], **style})
