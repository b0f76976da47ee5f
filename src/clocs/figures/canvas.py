"""What all matplotlib figures share: colours, an empty figure, and saving it.

Figures are made as objects and drawn by Agg, never through pyplot: nothing global changes, no
display is needed, and threads do not interfere.
"""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Final

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from clocs.files import PRIVATE, write_atomic

DPI: Final = 150

# The categorical colours are Okabe and Ito's, chosen for colour-blind readers; labelled fractions,
# which are ordered, are shades of one blue.
COLOURS: Final = {
    "trace": "#111111",
    "minor": "#f9dcdc",
    "major": "#efb0b0",
    "text": "#333333",
    "quiet": "#8a8a8a",
    "intra": "#0072b2",
    "inter": "#e69f00",
    "for": "#f0a01e",  # what speaks for a label
    "against": "#5aa9dd",
}
SHADES: Final = ("#1f6fa8", "#6aaed6", "#abd0e6", "#d6e6f4")


def new_figure(width: float, height: float) -> Figure:
    """An empty figure, sizes in inches."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def hide_frame(axes: Axes) -> None:
    """Leave only the left and bottom axis lines."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=9)


def save(figure: Figure, path: str | os.PathLike[str], *, mode: int = PRIVATE) -> None:
    """Write a figure as PNG at 150 dpi, or as SVG; on any interruption the old file stays.

    Figures may show patients: only their owner can read them, unless `mode` says more.
    """
    buffer = io.BytesIO()
    svg = Path(path).suffix.lower() == ".svg"
    # without a date or version, so that the same figure gives the same file
    about = {"Date": None, "Creator": None} if svg else {"Software": None}
    with matplotlib.rc_context({"svg.hashsalt": "clocs"}):
        figure.savefig(buffer, dpi=DPI, format="svg" if svg else "png", metadata=about)
    write_atomic(Path(path), buffer.getbuffer(), mode=mode)
