"""How a figure for a paper looks: its size, its font and the size of its text."""

from __future__ import annotations

import difflib
import itertools
import re
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from clocs.errors import ClocsWarning, SettingError

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from matplotlib.text import Text

BASE_POINTS: Final = 9.0  # of axis labels and ticks, where no style is given
_SMALLEST_POINTS: Final = 6.0  # that text shrinks to by itself
_THINNEST: Final = 0.5  # that lines and dots shrink to
_SMALLEST_SQUARES: Final = 0.5  # mm; of paper, below that only the squares of 5 are drawn
_SLACK: Final = 0.02  # inches that may hang over
_PER_INCH: Final = {"mm": 25.4, "cm": 2.54, "in": 1.0, "pt": 72.0}
_LENGTH: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(mm|cm|in|pt)?", re.IGNORECASE)
_SHORTEST, _LONGEST = 0.5, 60.0  # inches


@dataclass(frozen=True)
class FigureStyle:
    """What is changed of a figure when it is saved; None leaves it as it was drawn.

    Attributes:
        size: Such as '89mm' (the width; the height follows), '89x60mm' or '3.5in x 2.5in'.
        font: The name of an installed font, such as 'Arial'.
        font_size: Points of axis labels and ticks; other text keeps its proportion. By default 9,
            and less in a narrower figure, down to 6.
    """

    size: str | None = None
    font: str | None = None
    font_size: float | None = None

    def __post_init__(self) -> None:
        self.inches()
        if self.font_size is not None and not 1 <= self.font_size <= 72:
            raise SettingError(f"`font_size` is {self.font_size:g}; give 1 to 72 points")
        if self.font is not None:
            _family(self.font)  # known before hours of work, not after them

    def inches(self) -> tuple[float, float | None] | None:
        """Width and height, None for what is not given."""
        if self.size is None:
            return None
        parts = re.split(r"\s*[x×]\s*", self.size.strip().lower())
        found = [_LENGTH.fullmatch(part) for part in parts]
        units = {one[2] for one in found if one is not None and one[2]}
        if len(parts) > 2 or None in found or not units:
            raise SettingError(
                f"`size` is {self.size!r}; give a width such as 89mm or 3.5in, or width x height "
                "such as 89x60mm"
            )
        last = found[-1][2] if found[-1] else None
        sides = [float(one[1]) / _PER_INCH[one[2] or last or "mm"] for one in found if one]
        if not all(_SHORTEST <= side <= _LONGEST for side in sides):
            raise SettingError(f"`size` is {self.size!r}; give sides of 13 mm to 1.5 m")
        return sides[0], sides[1] if len(sides) > 1 else None

    def apply(self, figure: Figure) -> None:
        """Change the figure; paper at its true size keeps its proportions, and says the scale."""
        width, height = figure.get_size_inches()
        sides = self.inches()
        shrunk = 1.0
        if sides is not None:
            shrunk = sides[0] / width
            if figure.get_layout_engine() is None:  # every place on it is in mm
                shrunk = min(shrunk, (sides[1] or sides[0] * height / width) / height)
                figure.set_size_inches(width * shrunk, height * shrunk)
                _grid_for_scale(figure, shrunk)
            else:
                figure.set_size_inches(sides[0], sides[1] or height * shrunk)
        points = self.font_size or min(BASE_POINTS, max(_SMALLEST_POINTS, BASE_POINTS * shrunk))
        _set_text(figure, points / BASE_POINTS, None if self.font is None else _family(self.font))
        _set_lines(figure, min(1.0, max(_THINNEST, shrunk)))
        figure.draw_without_rendering()  # puts everything in its place
        _part_footer(figure)
        highest = sides[1] if sides is not None and sides[1] is not None else _LONGEST
        taller = figure.get_size_inches()[1] > highest + _SLACK
        if taller or _hangs_over(figure) or _overlaps(figure):
            warnings.warn(
                f"text of {points:g} points does not fit this figure; give a larger `size` or a "
                "smaller `font_size`",
                ClocsWarning,
                stacklevel=3,
            )


def _set_lines(figure: Figure, factor: float) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    for one in (*figure.findobj(Line2D), *figure.findobj(Patch)):
        assert isinstance(one, Line2D | Patch)
        one.set_linewidth(one.get_linewidth() * factor)
        if isinstance(one, Line2D):
            one.set_markersize(one.get_markersize() * factor)


def _set_text(figure: Figure, factor: float, family: str | None) -> None:
    from matplotlib.text import Text

    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):  # ticks to come are made from these
            for which in ("major", "minor"):
                labels = axis.get_ticklabels(minor=which == "minor")
                if labels:
                    axis.set_tick_params(which=which, labelsize=_points(labels[0]) * factor)
                    if family:
                        axis.set_tick_params(which=which, labelfontfamily=family)
    ticks = {id(label) for label in _tick_labels(figure)}
    for text in figure.findobj(Text):
        assert isinstance(text, Text)
        if id(text) not in ticks:
            text.set_fontsize(_points(text) * factor)
        if family:
            text.set_fontfamily(family)


def _points(text: Text) -> float:
    return float(text.get_fontsize())


def _tick_labels(figure: Figure) -> list[Text]:
    return [
        label
        for axes in figure.axes
        for axis in (axes.xaxis, axes.yaxis)
        for label in (*axis.get_ticklabels(), *axis.get_ticklabels(minor=True))
    ]


def _grid_for_scale(figure: Figure, shrunk: float) -> None:
    """Millimeters no longer hold; the squares of the paper do."""
    import numpy as np
    from matplotlib.collections import LineCollection
    from matplotlib.text import Text

    small = shrunk >= _SMALLEST_SQUARES
    for lines in figure.findobj(LineCollection):
        assert isinstance(lines, LineCollection)
        lines.set_visible(small or lines.get_gid() != "minor")
        widths = np.atleast_1d(lines.get_linewidth()) * min(1.0, shrunk)
        lines.set_linewidth(widths.tolist())
    for text in figure.findobj(lambda one: one.get_gid() == "scale"):
        assert isinstance(text, Text)
        squares = ("small squares: 40 ms", "0.1 mV") if small else ("squares: 200 ms", "0.5 mV")
        known = "mV" in text.get_text()
        text.set_text(" and ".join(squares) if known else f"{squares[0]}, arbitrary units")


def _part_footer(figure: Figure) -> None:
    """Give the paper's note a line of its own, on a longer page, if it would meet the scale."""
    from matplotlib.text import Text

    foot = {
        one.get_gid(): one
        for one in figure.findobj(Text)
        if isinstance(one, Text) and one.get_gid() in ("scale", "note") and one.get_text()
    }
    if len(foot) < 2:
        return
    scale, note = foot["scale"], foot["note"]
    line = note.get_window_extent().height * 1.3 / figure.dpi
    if scale.get_window_extent().x1 + line * figure.dpi < note.get_window_extent().x0:
        return
    width, height = figure.get_size_inches()
    axes = figure.axes[0]
    low, high = axes.get_ylim()
    more = (high - low) * line / height
    axes.set_ylim(low - more, high)
    note.set(x=scale.get_position()[0], y=note.get_position()[1] - more, ha="left")
    figure.set_size_inches(width, height + line)


def _hangs_over(figure: Figure) -> bool:
    drawn, page = figure.get_tightbbox(), figure.bbox_inches
    return bool(drawn.x0 < -_SLACK or drawn.x1 > page.x1 + _SLACK or drawn.y1 > page.y1 + _SLACK)


def _overlaps(figure: Figure) -> bool:
    """Whether two texts lie on each other, or side by side without a space.

    Ticks are matplotlib's to thin out.
    """
    from matplotlib.text import Text

    ticks = {id(label) for label in _tick_labels(figure)}
    boxes = [
        one.get_window_extent().padded(_SLACK * figure.dpi, -_SLACK * figure.dpi)
        for one in figure.findobj(Text)
        if isinstance(one, Text) and one.get_visible() and one.get_text().strip()
        if id(one) not in ticks
    ]
    return any(one.overlaps(other) for one, other in itertools.combinations(boxes, 2))


def _family(name: str) -> str:
    """The font's name as it is installed."""
    from matplotlib import font_manager

    installed = {one.name.lower(): one.name for one in font_manager.fontManager.ttflist}
    if name.lower() in installed:
        return installed[name.lower()]
    near = difflib.get_close_matches(name.lower(), installed, n=3, cutoff=0.3)
    choice = ", ".join(installed[one] for one in near) or "DejaVu Sans"
    raise SettingError(f"`font` is {name!r}, which is not installed; choose from {choice} …")
