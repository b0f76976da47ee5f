"""Shipped models in the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from clocs.cli.tables import columns
from clocs.models.model_card import HEADS, cells_of


def models_table(models: Sequence[Mapping[str, Any]]) -> Table:
    """One row per model."""
    table = columns(Table(title="Shipped models"), HEADS, left=[h for h in HEADS if h != "size"])
    for one in models:
        table.add_row(*cells_of(one))
    return table
