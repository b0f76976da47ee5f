"""The trials of a sweep in the terminal, the best first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

from clocs.cli.tables import columns

if TYPE_CHECKING:
    from clocs.experiments.sweep.sweep import Sweep

MOST_ROWS = 30


def sweep_table(found: Sweep) -> Table:
    """One row per trial; of very many, the best."""
    from clocs.experiments.sweep.record import in_words
    from clocs.experiments.sweep.sweep import TITLES

    left = len(found.trials) - MOST_ROWS
    caption = f"and {left} more in sweep.csv" if left > 0 else None
    table = Table(title=f"{TITLES[found.score]} on validation patients", caption=caption)
    columns(table, ("trial", *found.best.values, found.score.upper(), "95 %", "s"))
    for number, trial in enumerate(found.trials[:MOST_ROWS]):
        score = "failed" if trial.score is None else f"{trial.score:.3f}"
        table.add_row(
            trial.name,
            *map(in_words, trial.values.values()),
            f"[bold]{score}[/bold]" if number == 0 else score,
            "–" if trial.ci95 is None else "{:.3f}…{:.3f}".format(*trial.ci95),
            "–" if trial.seconds is None else f"{trial.seconds:,.0f}",
        )
    return table
