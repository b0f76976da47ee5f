"""Shipped models in the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.table import Table

from clocs.cli.tables import columns
from clocs.models.listing import HEADS, cells_of

if TYPE_CHECKING:
    from clocs.models.listing import Listed


def models_table(models: Sequence[Listed]) -> Table:
    """One row per model."""
    table = columns(Table(title="Shipped models"), HEADS, left=[h for h in HEADS if h != "size"])
    for one in models:
        table.add_row(*cells_of(one))
    return table
