"""Options of every command that draws: the size of the figure and its font."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from clocs.cli.options import presented

_FIGURES_PANEL = "Figures for papers"
Size = Annotated[
    str | None,
    typer.Option(
        help="Width such as 89mm or 3.5in (the height follows), or width x height: 89x60mm.",
        rich_help_panel=_FIGURES_PANEL,
    ),
]
Font = Annotated[
    str | None,
    typer.Option(help="Name of an installed font.", rich_help_panel=_FIGURES_PANEL),
]
FontSize = Annotated[
    float | None,
    typer.Option(
        help="Points of axis labels; other text in proportion. 9, and less in narrow figures.",
        rich_help_panel=_FIGURES_PANEL,
    ),
]


def with_figure_style(command: Callable[..., None]) -> Callable[..., None]:
    """The command with `--size`, `--font` and `--font-size`, which it gets as `style`."""

    def run(*, size: str | None, font: str | None, font_size: float | None, **given: Any) -> None:
        from clocs.figures.style import FigureStyle

        style = FigureStyle(size, font, font_size)
        command(**given, style=None if style == FigureStyle() else style)

    signature = inspect.signature(command, eval_str=True)
    own = [one for name, one in signature.parameters.items() if name != "style"]
    more = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
        for name, kind in (("size", Size), ("font", Font), ("font_size", FontSize))
    ]
    varied = [one for one in own if one.kind is one.VAR_KEYWORD]
    plain = [one for one in own if one.kind is not one.VAR_KEYWORD]
    return presented(run, command, [*plain, *more, *varied])
