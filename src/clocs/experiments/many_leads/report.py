"""The report of the comparison: one JSON file, and the tables of a Markdown page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from clocs.experiments.many_leads.results import read_runs, write
from clocs.experiments.many_leads.tables import parts
from clocs.experiments.marked import fill as fill_marked


def report(runs: Sequence[Path], out: Path, *, fill: Sequence[Path] = ()) -> Path:
    """Write `many-leads.json` into `out`, and bring pages up to date.

    Args:
        runs: Folders of runs.
        out: The folder of the JSON file.
        fill: Markdown files whose parts between `<!-- clocs:NAME -->` and `<!-- /clocs -->` are
            replaced.

    Returns:
        The JSON file.
    """
    results = read_runs(runs)
    path = write(results, out)
    for page in fill:
        fill_marked(page, parts(results))
    return path
