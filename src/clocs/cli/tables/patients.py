"""Patients in the terminal: neighbours, and what is in an index."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rich.table import Table

from clocs.cli.tables import escape

if TYPE_CHECKING:
    import polars as pl


def neighbours_table(rows: pl.DataFrame, title: str) -> Table:
    """Patients or recordings with their distances, as `PatientIndex.table` has them."""
    table = Table(title=escape(title))
    for name in rows.columns:
        right = name in ("age", "cosine", "euclidean")
        # An id cut short is of no use: rather more lines.
        table.add_column(name, justify="right" if right else "left", overflow="fold")
    for row in rows.iter_rows(named=True):
        row["labels"] = ", ".join(row["labels"])
        row["age"] = "" if row["age"] is None else f"{row['age']:g}"
        row |= {name: f"{row[name]:.4f}" for name in ("cosine", "euclidean")}
        table.add_row(*(escape(value or "") for value in row.values()))
    return table


def index_table(facts: Mapping[str, Any]) -> Table:
    """What `archive_facts` tells."""
    table = Table(title=escape(f"Index {facts['index']}"), show_header=False)
    for level in ("patient", "recording"):
        own = facts[level]
        replaced = f", {own['replaced']:,} replaced" if own["replaced"] else ""
        table.add_row(f"{level}s", f"{own['vectors']:,}, {own['kind']}{replaced}")
        for dataset, count in own["datasets"].items():
            table.add_row(f"  {escape(dataset)}", f"{count:,}")
    table.add_row("frame", "unknown" if facts["frame"] is None else f"{facts['frame']:g} s")
    table.add_row("dimensions", str(facts["dim"]))
    table.add_row("encoder", facts["encoder"][:12])
    return table
