"""An ECG on ECG paper, at its true size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from numpy.typing import NDArray

from clocs.errors import SettingError
from clocs.figures.canvas import COLORS, DPI
from clocs.recording import STANDARD_LEADS, Recording

_MM_PER_SECOND = 25.0
_MM_PER_MV = (10.0, 5.0, 2.5)  # the first at which every complex fits, as printers choose it
_TALLEST = 30.0  # mm above or below the baseline; what exceeds it at 2.5 mm/mV is cut off there
_MARGIN = 10.0  # mm of paper left and right
_HEAD, _FOOT = 12.0, 8.0  # mm for the title and for the scale
_PULSE = 15.0  # mm for the calibration pulse and the space around it
_STRONGEST = 0.75  # opacity of shading
_CLINICAL = (("I", "aVR", "V1", "V4"), ("II", "aVL", "V2", "V5"), ("III", "aVF", "V3", "V6"))

# A stretch of one lead on paper: row, first second, last second, lead.
_Strip = tuple[int, float, float, str]


def ecg_paper(
    recording: Recording,
    *,
    leads: Sequence[str] | None = None,
    seconds: float | None = None,
    title: str = "",
    layout: Literal["stacked", "clinical"] = "stacked",
    shading: Mapping[str, NDArray[np.floating]] | None = None,
    note: str = "",
) -> Figure:
    """Draw an ECG on paper at its true size: 25 mm/s and 10 mm/mV, on a grid of 1 and 5 mm.

    Where complexes are taller than 3 mV, the gain is 5 mm/mV, or 2.5 mm/mV above 6 mV, and stated
    below the paper; what exceeds 12 mV is cut off at the edge of its row. Each lead is shifted by
    its median, so that its baseline is on its row; nothing is filtered. If the unit is unknown
    ('adu'), each lead is scaled to fit and the scale is not given in mV.

    Args:
        recording: What to draw.
        leads: Which, in this order; all by default. Not with the clinical layout.
        seconds: How much from its beginning; all of it (clinical: at most 10 s) by default.
        title: Above the paper.
        layout: 'stacked', one row per lead, or 'clinical', three rows of four leads and lead II
            below.
        shading: By lead, (samples,) from -1 (blue) over 0 and nan (the paper's white) to 1
            (orange), as a band behind the trace.
        note: Below the paper, on the right.
    """
    if seconds is not None and not seconds > 0:
        raise SettingError(f"`seconds` is {seconds}; give more than 0")
    shown = min(recording.seconds, seconds or recording.seconds)
    if layout == "clinical":
        if leads is not None:
            raise SettingError("the clinical layout has its own leads; give 'stacked' as `layout`")
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

    millimeters, gain, is_cut = _millimeters(recording, shown)
    traces = [millimeters[recording.leads.index(lead)] for *_, lead in strips]
    rows, paper = _rows(strips, traces)
    width = 2 * _MARGIN + _PULSE + shown * _MM_PER_SECOND
    figure, axes = _page(width, _HEAD + paper + _FOOT, paper)
    left = _MARGIN + _PULSE
    physical = recording.unit == "mV"
    for (row, start, stop, lead), trace in zip(strips, traces, strict=True):
        first, last = (round(second * recording.rate) for second in (start, stop))
        time = np.arange(first, min(last + 1, trace.size)) / recording.rate
        low, base, high = rows[row]
        ends = (left + start * _MM_PER_SECOND, left + stop * _MM_PER_SECOND)
        if shading is not None and lead in shading:
            _shade(axes, shading[lead][first : first + time.size], (*ends, low, high))
        axes.plot(
            left + time * _MM_PER_SECOND,
            base + trace[first : first + time.size],
            color=COLORS["trace"],
            linewidth=0.75,
            solid_joinstyle="round",
            gid=f"trace {lead}",
        )
        x = left + start * _MM_PER_SECOND
        under = trace[first:][: round((3 + 2 * len(lead)) / _MM_PER_SECOND * recording.rate)]
        above = max(7.5, float(np.nanmax(under)) + 1)  # the label never covers a QRS complex
        _write(axes, x + 1.2, base + above, lead, weight="bold")
        if start > 0:
            axes.plot([x, x], [base - 3, base + 3], color=COLORS["trace"], linewidth=0.9)
        elif physical:
            pulse = left - 11 + np.array([0.0, 2, 2, 7, 7, 9])  # 1 mV for 200 ms
            height = base + np.array([0.0, 0, gain, gain, 0, 0])
            axes.plot(pulse, height, color=COLORS["trace"], linewidth=0.75, gid="calibration")
    scale = f"25 mm/s    {gain:g} mm/mV" if physical else "25 mm/s    arbitrary units"
    scale += f"    cut off at ±{_TALLEST:g} mm" if is_cut else ""
    _write(axes, _MARGIN, _FOOT / 2, scale, va="center", size=8, gid="scale")
    _write(axes, width - _MARGIN, _FOOT / 2, note, va="center", ha="right", size=8, gid="note")
    _write(axes, _MARGIN, _FOOT + paper + _HEAD / 2, title, va="center", size=10, weight="bold")
    return figure


def _millimeters(recording: Recording, seconds: float) -> tuple[NDArray[np.float64], float, bool]:
    """(leads, samples) deflection on paper, about each lead's median; mm/mV; whether cut off."""
    signal = recording.signal[:, : max(2, round(seconds * recording.rate))]
    signal = signal - np.nanmedian(signal, axis=1, keepdims=True)
    gain = _MM_PER_MV[0]
    if recording.unit == "mV":
        tallest = float(np.nanmax(np.abs(signal)))
        gain = next((one for one in _MM_PER_MV if tallest * one <= _TALLEST), _MM_PER_MV[-1])
        signal = signal * gain
    else:
        usual = np.nanpercentile(np.abs(signal), 99.8, axis=1, keepdims=True)
        reach = np.maximum(usual / 12, np.nanmax(np.abs(signal), axis=1, keepdims=True) / _TALLEST)
        signal = signal / np.where(reach > 0, reach, 1.0)
    is_cut = bool((np.abs(signal) > _TALLEST).any())
    return np.clip(signal, -_TALLEST, _TALLEST), gain, is_cut


def _rows(
    strips: Sequence[_Strip], traces: Sequence[NDArray[np.float64]]
) -> tuple[list[tuple[float, float, float]], float]:
    """Each row's lower end, baseline and upper end, and the paper's height, in mm.

    Rows are as high as their traces.
    """
    count = max(row for row, *_ in strips) + 1
    above, below = [11.0] * count, [6.0] * count
    for (row, *_), trace in zip(strips, traces, strict=True):
        above[row] = max(above[row], float(np.nanmax(trace)) + 4)
        below[row] = max(below[row], float(-np.nanmin(trace)) + 2)
    height = 5 * np.ceil((sum(above) + sum(below)) / 5)
    rows, y = [], _FOOT + float(height)
    for up, down in zip(above, below, strict=True):
        rows.append((y - up - down, y - up, y))
        y -= up + down
    return rows, float(height)


def _shade(
    axes: Axes, values: NDArray[np.floating], place: tuple[float, float, float, float]
) -> None:
    """A band: orange where values are positive, blue where negative, more of it toward ±1."""
    values = np.clip(np.nan_to_num(values), -1, 1)
    image = np.empty((1, values.size, 4))
    for name, sign in (("for", 1), ("against", -1)):
        image[0, values * sign > 0, :3] = to_rgb(COLORS[name])
    image[0, values == 0, :3] = 1
    image[..., 3] = _STRONGEST * np.abs(values)
    axes.imshow(image, extent=place, aspect="auto", interpolation="none", zorder=0.3, gid="shading")


def _page(width: float, height: float, paper: float) -> tuple[Figure, Axes]:
    """A figure with axes over the whole page, in millimeters, and the grid on it."""
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
            LineCollection(segments, colors=COLORS[name], linewidths=line, zorder=0.5, gid=name)
        )
    return figure, axes


def _write(axes: Axes, x: float, y: float, text: str, **style: Any) -> None:
    axes.text(x, y, text, **{"size": 8, "color": COLORS["text"], **style})
