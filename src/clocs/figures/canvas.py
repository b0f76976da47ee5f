"""What all figures share: colors, an empty figure, and saving it as PNG, SVG or PDF.

Figures are made as objects and drawn by Agg, never through pyplot: nothing global changes, no
display is needed, and threads do not interfere. Fonts are those of
matplotlib's own settings (`matplotlibrc`).
"""

from __future__ import annotations

import base64
import io
import os
from pathlib import Path
from typing import Any, Final

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from clocs.errors import SettingError
from clocs.files import PRIVATE, write_atomic

DPI: Final = 300  # which journals ask for
COLUMN: Final = 89 / 25.4  # inches: the width of a column of a journal
# Formats by suffix, each with what leaves out date and version: the same figure, the same file.
_METADATA: Final[dict[str, dict[str, None]]] = {
    ".png": {"Software": None},
    ".svg": {"Date": None, "Creator": None},
    ".pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}
SUFFIXES: Final = tuple(_METADATA)
# Text in a PDF stays text (TrueType), which journals ask for.
_FILES: Final[dict[Any, Any]] = {"svg.hashsalt": "clocs", "pdf.fonttype": 42}

# The categorical colors are Okabe and Ito's, chosen for color-blind readers; labeled fractions,
# which are ordered, are shades of one blue.
COLORS: Final = {
    "trace": "#111111",
    "minor": "#f9dcdc",
    "major": "#efb0b0",
    "text": "#333333",
    "quiet": "#8a8a8a",
    "intra": "#0072b2",
    "inter": "#e69f00",
    "for": "#f0a01e",  # what speaks for a label
    "against": "#5aa9dd",
    "p": "#0072b2",
    "qrs": "#d55e00",
    "t": "#009e73",
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


def save(
    figure: Figure, path: str | os.PathLike[str], *, dpi: int = DPI, mode: int = PRIVATE
) -> None:
    """Write a figure as PNG, as SVG or as PDF, by the suffix of its name.

    On any interruption the old file stays. Figures may show patients: only their owner can read
    them, unless `mode` says more.

    Raises:
        SettingError: If the name has another suffix, or `dpi` is none of a picture.
    """
    if not 50 <= dpi <= 1200:
        raise SettingError(f"`dpi` is {dpi}; give 50 to 1200 dots per inch")
    suffix = Path(path).suffix.lower()
    if suffix not in _METADATA:
        raise SettingError(f"{path} is no figure; give a name that ends in {', '.join(SUFFIXES)}")
    write_atomic(Path(path), _drawn(figure, suffix, dpi), mode=mode)


def as_address(figure: Figure) -> str:
    """The figure as SVG in a `data:` address, for the `src` of a page's image."""
    with matplotlib.rc_context({"svg.fonttype": "none"}):  # text as text: a tenth of the size
        return f"data:image/svg+xml;base64,{base64.b64encode(_drawn(figure, '.svg')).decode()}"


def _drawn(figure: Figure, suffix: str, dpi: int = DPI) -> bytes:
    buffer = io.BytesIO()
    with matplotlib.rc_context(_FILES):
        figure.savefig(buffer, dpi=dpi, format=suffix[1:], metadata=_METADATA[suffix])
    return buffer.getvalue()
