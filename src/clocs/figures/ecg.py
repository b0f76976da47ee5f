"""An ECG on ECG paper, at its true size; with an explanation's shading, or the marks of waves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from numpy.typing import NDArray

from clocs.figures.canvas import COLORS, DPI
from clocs.recording import Recording

if TYPE_CHECKING:
    from clocs.measurements.intervals import Measure
    from clocs.measurements.waves import Waves
    from clocs.models.explain import Explanation
    from clocs.models.measure import Measurements

_MM_PER_SECOND = 25.0
_MM_PER_MV = (10.0, 5.0, 2.5)  # the first at which every complex fits, as printers choose it
_TALLEST = 30.0  # mm above or below the baseline; what exceeds it at 2.5 mm/mV is cut off there
_MARGIN = 10.0  # mm of paper left and right
_HEAD, _FOOT = 12.0, 8.0  # mm for the title and for the scale
_PULSE = 15.0  # mm for the calibration pulse and the space around it
_STRONGEST = 0.75  # opacity of shading
_MARKED = 10.0  # s that are drawn with marks
_LABELS = {
    "heart_rate": ("Heart rate", "/min"),
    "pr": ("PR", " ms"),
    "qrs": ("QRS", " ms"),
    "qt": ("QT", " ms"),
    "qtc_bazett": ("QTc", " ms (Bazett)"),
    "qrs_axis": ("Axis", "°"),
}
_BRIGHTEST = 99.5  # percentile of an explanation's contributions that has the full color


def ecg_paper(
    recording: Recording,
    *,
    title: str = "",
    shading: Mapping[str, NDArray[np.floating]] | None = None,
    waves: Mapping[str, Waves] | None = None,
    note: str = "",
) -> Figure:
    """Draw an ECG on paper at its true size: 25 mm/s and 10 mm/mV, one row per lead.

    Where complexes are taller than 3 mV, the gain is 5 mm/mV, or 2.5 mm/mV above 6 mV, and stated
    below the paper; what exceeds 12 mV is cut off at the edge of its row. Each lead is shifted by
    its median, so that its baseline is on its row; nothing is filtered. If the unit is unknown
    ('adu'), each lead is scaled to fit and the scale is not given in mV.

    Args:
        recording: What to draw.
        title: Above the paper.
        shading: By lead, (samples,) from -1 (blue) over 0 and nan (the paper's white) to 1
            (orange), as a band behind the trace.
        waves: By lead, P, QRS and T, as colored parts of the trace with a tick at each peak.
        note: Below the paper, on the right.
    """
    traces, gain, is_cut = _millimeters(recording)
    rows, paper = _rows(traces)
    width = 2 * _MARGIN + _PULSE + recording.seconds * _MM_PER_SECOND
    figure, axes = _page(width, _HEAD + paper + _FOOT, paper)
    left = _MARGIN + _PULSE
    physical = recording.unit == "mV"
    time = np.arange(traces.shape[1]) / recording.rate
    for lead, trace, (low, base, high) in zip(recording.leads, traces, rows, strict=True):
        if shading is not None and lead in shading:
            end = left + recording.seconds * _MM_PER_SECOND
            _shade(axes, shading[lead], (left, end, low, high))
        axes.plot(
            left + time * _MM_PER_SECOND,
            base + trace,
            color=COLORS["trace"],
            linewidth=0.75,
            solid_joinstyle="round",
            gid=f"trace {lead}",
        )
        if waves is not None and lead in waves:
            _mark(axes, waves[lead], time, trace, (left, base))
        under = trace[: round((3 + 2 * len(lead)) / _MM_PER_SECOND * recording.rate)]
        above = max(7.5, float(np.nanmax(under)) + 1)  # the label never covers a QRS complex
        _write(axes, left + 1.2, base + above, lead, weight="bold")
        if physical:
            pulse = left - 11 + np.array([0.0, 2, 2, 7, 7, 9])  # 1 mV for 200 ms
            height = base + np.array([0.0, 0, gain, gain, 0, 0])
            axes.plot(pulse, height, color=COLORS["trace"], linewidth=0.75, gid="calibration")
    scale = f"25 mm/s    {gain:g} mm/mV" if physical else "25 mm/s    arbitrary units"
    scale += f"    cut off at ±{_TALLEST:g} mm" if is_cut else ""
    _write(axes, _MARGIN, _FOOT / 2, scale, va="center", size=8, gid="scale")
    _write(axes, width - _MARGIN, _FOOT / 2, note, va="center", ha="right", size=8, gid="note")
    _write(axes, _MARGIN, _FOOT + paper + _HEAD / 2, title, va="center", size=10, weight="bold")
    return figure


def explanation_paper(explanation: Explanation) -> Figure:
    """Draw the explained stretch: orange speaks for the label, blue against it.

    The title is the label and its probability. Figures are passed on, so they name no recording.
    """
    one = explanation
    first = round(one.start * one.recording.rate)
    shown = one.recording.select(one.leads).between(first, first + one.attribution.shape[1])
    size = np.abs(one.attribution[np.isfinite(one.attribution)])
    brightest = float(np.percentile(size, _BRIGHTEST)) if size.size else 0.0
    whole = shown.samples == one.recording.samples
    where = "" if whole else f" ({one.start:.1f} to {one.start + one.seconds:.1f} s)"
    against = "The classifier abstains. " if one.abstained else ""
    return ecg_paper(
        shown,
        title=f"{one.label}, probability {one.probability:.2f}{where}",
        shading={
            lead: values / (brightest or 1.0)
            for lead, values in zip(one.leads, one.attribution, strict=True)
        },
        note=f"{against}Orange speaks for {one.label}, blue against it. Not a diagnosis.",
    )


def measured_paper(recording: Recording, measured: Measurements) -> Figure:
    """Draw a recording with its marks: P is blue, QRS vermilion, T green; values are above it.

    The first 10 s of a longer one. Figures are passed on, so they name no recording.
    """
    shown = recording.between(0, min(recording.samples, round(_MARKED * recording.rate)))
    names = ("heart_rate", "pr", "qrs", "qt", "qtc_bazett", "qrs_axis")
    words = (_in_words(name, measured.values[name]) for name in names)
    return ecg_paper(
        shown,
        title="   ".join(words),
        waves=measured.waves,
        note="P blue, QRS vermilion, T green. For research, no medical device.",
    )


def _in_words(name: str, one: Measure) -> str:
    label, unit = _LABELS[name]
    return f"{label} {'–' if one.value is None else f'{one.value:.0f}{unit}'}"


def _mark(
    axes: Axes,
    waves: Waves,
    time: NDArray[np.float64],
    trace: NDArray[np.float64],
    place: tuple[float, float],
) -> None:
    """Color the waves of a trace whose row begins at `place`, and tick their peaks."""
    left, base = place
    for name in ("p", "qrs", "t"):
        own = getattr(waves, name)
        own = own[own[:, 0] < time[-1]]
        parts, peaks = [], []
        for onset, peak, offset in own:
            inside = (time >= onset) & (time <= offset)
            x = left + time[inside] * _MM_PER_SECOND
            parts.append(np.column_stack([x, base + trace[inside]]))
            if peak <= time[-1]:
                x_peak = left + peak * _MM_PER_SECOND
                y_peak = base + float(np.interp(peak, time, trace))
                peaks.append([(x_peak, y_peak + 0.8), (x_peak, y_peak + 2.3)])
        color = COLORS[name]
        axes.add_collection(
            LineCollection(parts, colors=color, linewidths=1.6, zorder=3, gid=f"waves {name}")
        )
        axes.add_collection(LineCollection(peaks, colors=color, linewidths=0.8, zorder=3))


def _millimeters(recording: Recording) -> tuple[NDArray[np.float64], float, bool]:
    """(leads, samples) deflection on paper, about each lead's median; mm/mV; whether cut off."""
    signal = recording.signal
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


def _rows(traces: NDArray[np.float64]) -> tuple[list[tuple[float, float, float]], float]:
    """Each row's lower end, baseline and upper end, and the paper's height, in mm.

    Rows are as high as their traces.
    """
    above = [max(11.0, float(np.nanmax(trace)) + 4) for trace in traces]
    below = [max(6.0, float(-np.nanmin(trace)) + 2) for trace in traces]
    height = 5 * np.ceil((sum(above) + sum(below)) / 5)
    rows, y = [], _FOOT + float(height)
    for up, down in zip(above, below, strict=True):
        rows.append((y - up - down, y - up, y))
        y -= up + down
    return rows, float(height)


def _shade(
    axes: Axes, values: NDArray[np.floating], place: tuple[float, float, float, float]
) -> None:
    """A band: orange where values are positive, blue where negative, more of it towards ±1."""
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
