"""The report of the comparison: one JSON file, and the tables of a Markdown page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from clocs.experiments.pages import fill as fill_marked
from clocs.training.checkpoint import load_checkpoint
from research.many_leads.model_card import ship
from research.many_leads.results import added, read, read_runs, write
from research.many_leads.tables import parts


def report(
    runs: Sequence[Path],
    out: Path,
    *,
    earlier: Path | None = None,
    fill: Sequence[Path] = (),
    shipped: Mapping[str, Path] | None = None,
    weights: Path = Path("weights"),
    pages: Path = Path("docs/models"),
) -> list[Path]:
    """Write `many-leads.json` into `out`, bring pages up to date, and write encoders for others.

    Args:
        runs: Folders of runs.
        out: The folder of the JSON file.
        earlier: Such a file, to which the runs are added.
        fill: Markdown files whose parts between `<!-- clocs:NAME -->` and `<!-- /clocs -->` are
            replaced.
        shipped: Folders of encoders to write for others, by the names that they get.
        weights: Folder of their weights.
        pages: Folder of their model cards.

    Returns:
        The JSON file, and what was written of the encoders.
    """
    results = read_runs(runs)
    if earlier is not None:
        results = added(read(earlier), results)
    written = [write(results, out)]
    for page in fill:
        fill_marked(page, parts(results))
    for name, folder in (shipped or {}).items():
        made = ship(name, load_checkpoint(folder), results, weights=weights, pages=pages)
        written += made
    return written
