"""How each method takes the views of one instance, as in the paper's figure 1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from clocs.errors import SettingError
from clocs.figures.canvas import COLORS, new_figure
from clocs.frames.views import frame_for
from clocs.pretraining.methods import find_method
from clocs.recording import Recording
from clocs.store.manifest import Manifest

_SEGMENTS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")
_QUIET: Final = "#b9b9b9"


def show_views(
    recording: Recording,
    *,
    dataset: Manifest,
    leads: Sequence[str],
    methods: Sequence[str] = ("cmsc", "cmlc", "cmsmlc"),
) -> Figure:
    """Draw how each method takes the views of one instance, as in the paper's figure 1.

    Each lead is scaled to the same height.

    Args:
        recording: At least as long as the views of every method.
        dataset: Its manifest, which has the frame of each method.
        leads: By name; where an instance is one lead, it is the first.
        methods: Names from `METHODS`.
    """
    found = [find_method(name) for name in methods]
    specs = [frame_for(dataset, segments=method.views.segments) for method in found]
    seconds = max(s.seconds * m.views.segments for s, m in zip(specs, found, strict=True))
    if recording.seconds < seconds - 1e-6:
        raise SettingError(
            f"recording {recording.id} of {recording.seconds:g} s is shorter than the "
            f"{seconds:g} s that these methods use; choose a longer one"
        )
    signal = recording.select(leads).signal[:, : round(seconds * recording.rate)]
    top, bottom = signal.max(axis=1, keepdims=True), signal.min(axis=1, keepdims=True)
    traces = (signal - (top + bottom) / 2) / np.maximum(top - bottom, 1e-9)
    time = np.arange(signal.shape[1]) / recording.rate
    figure = new_figure(4.3 * len(methods), 1.7 + 0.85 * len(leads))
    grid = figure.subplots(1, len(methods), squeeze=False, sharey=True)[0]
    for axes, name, method, spec in zip(grid, methods, found, specs, strict=True):
        count = method.views.segments
        own = len(leads) if method.of == "frame" else 1
        for lead, trace in enumerate(traces):
            ink = COLORS["trace"] if lead < own else COLORS["quiet"]
            axes.plot(time, 0.8 * trace - lead, color=ink, linewidth=0.7, zorder=2)
            for part in range(round(seconds / spec.seconds)):
                letter = chr(ord("A") + part * own + lead) if lead < own and part < count else ""
                _box(axes, spec.seconds, part, lead, letter)
        pairs = own * count * (own * count - 1) // 2
        of = "one lead" if method.of == "lead" else f"all {own} leads"
        axes.set_title(name.upper(), size=11, weight="bold", color=COLORS["text"])
        axes.set_xlabel(
            f"seconds\n\none instance: {of}, {count} × {spec.seconds:g} s\n"
            f"{own * count} views, {pairs} pair{'s' if pairs > 1 else ''}",
            size=9,
        )
        axes.set_yticks([-lead for lead in range(len(leads))], list(leads))
        axes.set(xlim=(-0.15, seconds + 0.15), ylim=(0.45 - len(leads), 0.55))
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.tick_params(length=2.5, labelsize=9)
        axes.tick_params(axis="y", length=0)
    figure.suptitle(
        "Views of a recording: one instance in color, the patient's other instances dashed",
        size=10,
    )
    return figure


def _box(axes: Axes, seconds: float, part: int, lead: int, letter: str) -> None:
    """A box around one view, with its letter; dashed for another instance's views."""
    color = _SEGMENTS[part % len(_SEGMENTS)] if letter else _QUIET
    left, low, width, height = part * seconds + 0.04, -lead - 0.46, seconds - 0.08, 0.92
    if letter:
        axes.add_patch(Rectangle((left, low), width, height, color=color, alpha=0.1, linewidth=0))
        place: dict[str, Any] = {"ha": "center", "va": "center", "zorder": 4}
        spot = {"boxstyle": "square,pad=0.25", "facecolor": color, "edgecolor": "none"}
        axes.text(left + 0.22, -lead + 0.34, letter, size=7.5, color="white", bbox=spot, **place)
    style: dict[str, Any] = {"linewidth": 1.5} if letter else {"linewidth": 0.9, "linestyle": "--"}
    frame = Rectangle((left, low), width, height, fill=False, edgecolor=color, zorder=3, **style)
    axes.add_patch(frame)
