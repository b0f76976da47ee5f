"""Tables printed to a terminal, one module per subject; here is what they share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.table import Table
from rich.text import Text


def facts_table(title: str, rows: Iterable[tuple[str, str | Text]]) -> Table:
    """One row per fact: its name and its value."""
    table = Table(title=title, show_header=False)
    for name, value in rows:
        table.add_row(name, value)
    return table


def columns(table: Table, names: Iterable[str], *, left: Sequence[str] = ()) -> Table:
    """Add columns to a table: numbers to the right, those in `left` to the left and never cut."""
    for name in names:
        if name in left:
            table.add_column(name, overflow="fold")
        else:
            table.add_column(name, justify="right", no_wrap=True)
    return table


def plus_minus(mean: float, std: float | None, digits: int = 3) -> str:
    """'0.910 ± 0.022', or the mean alone where there is no spread."""
    spread = "" if std is None else f" ± {std:.{digits}f}"
    return f"{mean:.{digits}f}{spread}"
