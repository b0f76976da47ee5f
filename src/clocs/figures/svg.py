"""Small plots as inline SVG, which scales, prints and follows light and dark mode.

Colors are the page's CSS variables.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

FONT = 12.0


@dataclass(frozen=True)
class Dot:
    """A value with its standard deviation, as a filled or hollow dot; `tooltip` names it."""

    x: float
    y: float
    spread: float | None
    color: str
    tooltip: str
    hollow: bool = False


@dataclass(frozen=True)
class Line:
    """A curve, optionally with a band around it; `name` is shown in tooltips."""

    x: Sequence[float]
    y: Sequence[float]
    color: str
    name: str
    spread: Sequence[float] | None = None
    dashed: bool = False
    marked: bool = False


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers from low to high."""
    span = max(high - low, 1e-9)
    step = 10 ** math.floor(math.log10(span / about))
    step = min((step * k for k in (1, 2, 2.5, 5, 10)), key=lambda s: abs(span / s - about))
    first = math.ceil(low / step - 1e-9)
    return [round(step * k, 10) for k in range(first, math.floor(high / step + 1e-9) + 1)]


@dataclass
class Panel:
    """One set of axes, placed in the picture's pixels."""

    left: float
    top: float
    width: float
    height: float
    x: tuple[float, float]
    y: tuple[float, float]
    parts: list[str] = field(default_factory=list)

    def at(self, x: float, y: float) -> tuple[float, float]:
        across = (x - self.x[0]) / ((self.x[1] - self.x[0]) or 1)
        up = (y - self.y[0]) / ((self.y[1] - self.y[0]) or 1)
        return self.left + across * self.width, self.top + (1 - up) * self.height

    def text(self, x: float, y: float, text: str, anchor: str = "middle", kind: str = "") -> None:
        """Text at a position in pixels."""
        cls = f' class="{kind}"' if kind else ""
        self.parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{cls}>{escape(text)}</text>'
        )

    def title(self, text: str) -> None:
        self.text(self.left, self.top - 10, text, "start", "title")

    def x_axis(self, values: Sequence[float], text: str = "", labels: Sequence[str] = ()) -> None:
        shown = labels or [f"{v:g}" for v in values]
        for value, label in zip(values, shown, strict=True):
            x, bottom = self.at(value, self.y[0])
            self._grid(x, self.top, x, bottom)
            self.text(x, bottom + 16, label)
        if text:
            self.text(self.left + self.width / 2, self.top + self.height + 34, text, kind="axis")

    def y_axis(self, values: Sequence[float], labels: Sequence[str] = ()) -> None:
        shown = labels or [f"{v:g}" for v in values]
        for value, label in zip(values, shown, strict=True):
            left, y = self.at(self.x[0], value)
            self._grid(left, y, left + self.width, y)
            self.text(left - 8, y + 4, label, "end")

    def _grid(self, x1: float, y1: float, x2: float, y2: float) -> None:
        self.parts.append(
            f'<line class="grid" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'
        )

    def dot(self, dot: Dot, *, across: bool = True) -> None:
        """A point with an error bar along x (`across`) or y."""
        x, y = self.at(dot.x, dot.y)
        lines = ""
        if dot.spread:
            low, high = (
                self.at(dot.x + s * dot.spread, dot.y)
                if across
                else self.at(dot.x, dot.y + s * dot.spread)
                for s in (-1, 1)
            )
            lines = (
                f'<line x1="{low[0]:.1f}" y1="{low[1]:.1f}" x2="{high[0]:.1f}" '
                f'y2="{high[1]:.1f}" stroke="{dot.color}" stroke-width="1.5" opacity=".55"/>'
            )
        fill = "var(--paper)" if dot.hollow else dot.color
        self.parts.append(
            f'<g class="mark">{lines}<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{fill}" '
            f'stroke="{dot.color}" stroke-width="1.6"/>'
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="9" fill="transparent"/>'
            f"<title>{escape(dot.tooltip)}</title></g>"
        )

    def line(self, line: Line) -> None:
        if line.spread is not None:
            upper = [self.at(x, y + s) for x, y, s in zip(line.x, line.y, line.spread, strict=True)]
            lower = [self.at(x, y - s) for x, y, s in zip(line.x, line.y, line.spread, strict=True)]
            ring = " ".join(f"{x:.1f},{y:.1f}" for x, y in [*upper, *reversed(lower)])
            self.parts.append(f'<polygon points="{ring}" fill="{line.color}" opacity=".15"/>')
        points = " ".join(
            "{:.1f},{:.1f}".format(*self.at(x, y)) for x, y in zip(line.x, line.y, strict=True)
        )
        dash = ' stroke-dasharray="5 4" opacity=".75"' if line.dashed else ""
        self.parts.append(
            f'<polyline points="{points}" fill="none" stroke="{line.color}" '
            f'stroke-width="1.8" stroke-linejoin="round"{dash}/>'
        )
        if line.marked:
            for x, y in zip(line.x, line.y, strict=True):
                self.dot(Dot(x, y, None, line.color, f"{line.name}: {y:.3f}", line.dashed))

    def steps(self, edges: Sequence[float], heights: Sequence[float], color: str) -> None:
        """A histogram as a filled outline."""
        points = [self.at(edges[0], 0)]
        for left, right, height in zip(edges[:-1], edges[1:], heights, strict=True):
            points += [self.at(left, height), self.at(right, height)]
        points.append(self.at(edges[-1], 0))
        ring = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self.parts.append(
            f'<polygon points="{ring}" fill="{color}" fill-opacity=".28" stroke="{color}" '
            'stroke-width="1.3"/>'
        )

    def follow(self, lines: Sequence[Line], unit: str) -> None:
        """Let the page's script show the values of all lines under the pointer."""
        data = {
            "unit": unit,
            "x": list(self.x),
            "lines": [
                {"name": line.name, "color": line.color, "x": list(line.x),
                 "y": [round(v, 4) for v in line.y]}
                for line in lines
            ],
        }  # fmt: skip
        self.parts.append(
            f'<rect class="follow" x="{self.left:.1f}" y="{self.top:.1f}" '
            f'width="{self.width:.1f}" height="{self.height:.1f}" fill="transparent" '
            f'data-plot="{escape(json.dumps(data))}"/>'
        )


def picture(width: float, height: float, panels: Sequence[Panel], alt: str) -> str:
    """The picture as SVG; `alt` describes it."""
    inside = "\n".join(part for panel in panels for part in panel.parts)
    return (
        f'<svg viewBox="0 0 {width:.0f} {height:.0f}" role="img" aria-label="{escape(alt)}" '
        f'font-size="{FONT:g}">\n{inside}\n</svg>'
    )
