"""Predictions in the terminal."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from rich.table import Table

if TYPE_CHECKING:
    import polars as pl


def predictions_table(
    rows: pl.DataFrame, in_words: Callable[[str], str] = lambda reason: reason
) -> Table:
    """What was predicted with its probability, or why not; one row each.

    Args:
        rows: What `clocs.predict` made.
        in_words: A reason as it is printed.
    """
    over_time = "start" in rows.columns
    table = Table()
    table.add_column("recording", overflow="fold")
    for name in ["from", "to"] if over_time else []:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("predicted", overflow="fold")
    for name in ("quality", "distance"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("why not", overflow="fold")
    for row in rows.iter_rows(named=True):
        times = [_clock(row["start"]), _clock(row["end"])] if over_time else []
        name = row["recording"] or row["file"]
        why = in_words(row["problem"] or row["abstained"] or "")
        numbers = ["" if row[k] is None else f"{row[k]:.2f}" for k in ("quality", "distance")]
        table.add_row(name, *times, _predicted(row), *numbers, why)
    return table


def summary(rows: pl.DataFrame) -> str:
    """How many rows were predicted, and how many were not."""
    what = "stretches" if "start" in rows.columns else "recordings"
    problems = int(rows["problem"].is_not_null().sum())
    abstained = int(rows["abstained"].is_not_null().sum())
    words = f"{rows.height - problems - abstained:,} of {rows.height:,} {what} predicted"
    words += f", {abstained:,} abstained from" if abstained else ""
    return f"{words}{f', {problems:,} without a usable signal' if problems else ''}."


def in_words(rows: pl.DataFrame, meanings: Mapping[str, str]) -> str:
    """What the labels that are predicted mean; nothing where they say it themselves."""
    labels = rows["predicted"].drop_nulls()
    found = set((labels.explode() if labels.dtype.is_nested() else labels).drop_nulls())
    told = [f"{one}: {words}." for one, words in meanings.items() if one in found and one != words]
    return " ".join(told)


def _predicted(row: dict[str, Any]) -> str:
    """Labels with their probabilities."""
    labels = row["predicted"]
    if labels is None:
        return ""
    several = labels if isinstance(labels, list) else [labels]
    return ", ".join(f"{label} ({row[f'p({label})']:.2f})" for label in several) or "none"


def _clock(seconds: float) -> str:
    whole = int(seconds)
    hours, minutes, left = whole // 3600, whole // 60 % 60, seconds - whole // 60 * 60
    return f"{hours}:{minutes:02}:{left:04.1f}"
