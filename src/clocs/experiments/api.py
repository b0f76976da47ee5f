"""The paper's tables and figures, from Python: what the commands of `cli_experiments` call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from clocs.training.device import pick_device

if TYPE_CHECKING:
    from clocs.experiments.runner import Outcome, Progress


def reproduce(
    *names: str,
    out: Path | str,
    stores: Path | str | None = None,
    dataset: str | None = None,
    seeds: int | None = None,
    only: Sequence[str] = (),
    device: str | None = None,
    seconds: float | None = None,
    parallel: int = 1,
    retry: bool = False,
    on_progress: Callable[[Progress], None] = lambda progress: None,
) -> Outcome:
    """Run tables and figures of the paper, as far as they are not done.

    Args:
        names: 'table-1', 'table-2', … or 'all'; see `clocs.experiments.grid.NAMES`.
        out: The folder of the runs.
        stores: The folder of stores (or saved frames), named by dataset.
        dataset: 'synthetic' instead of stores.
        seeds: How many; five as in the paper by default.
        only: Wishes such as 'cmsc' or 'downstream=cardiology'.
        device: 'cpu', 'cuda' …; the best at hand by default.
        seconds: After which no new work begins; the next call goes on.
        parallel: Threads at work on the grid, for a GPU.
        retry: Try again what failed before.
        on_progress: Called after each piece of work.
    """
    from clocs.experiments import reproduce as room

    return room.reproduce(
        names,
        out=Path(out),
        stores=None if stores is None else Path(stores),
        dataset=dataset,
        seeds=seeds,
        wishes=only,
        device=pick_device(device),
        seconds=seconds,
        parallel=parallel,
        retry=retry,
        on_progress=on_progress,
    )


def report(
    runs: Path | str, out: Path | str | None = None, *, earlier: Sequence[Path | str] = ()
) -> Path:
    """Write the report of a folder of runs: one HTML page, Markdown tables, JSON.

    Args:
        runs: The folder of the runs, or of an earlier report.
        out: The report's folder; `report` inside the runs' by default.
        earlier: More folders of runs or reports, to include what `runs` lacks.

    Returns:
        The page.
    """
    from clocs.experiments.report import write_report

    return write_report(
        Path(runs), None if out is None else Path(out), earlier=[Path(folder) for folder in earlier]
    )
