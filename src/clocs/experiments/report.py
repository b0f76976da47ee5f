"""`clocs.report`: a folder of runs -> one self-contained HTML page, Markdown tables and JSON.

Every table in the paper's layout, the claims in three columns, the figures, and at the end the
settings, data, versions and time. Needs jinja2 and matplotlib.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from clocs.experiments import comparisons, paper
from clocs.experiments.agreement import coverage, sentences
from clocs.experiments.claims import RULE, Claim, claims
from clocs.experiments.comparisons import contests, signed, surviving
from clocs.experiments.duel import factorial_tables, forms_tables
from clocs.experiments.grid import grid
from clocs.experiments.pages import fill as fill_marked
from clocs.experiments.pages import markdown_table, write_page
from clocs.experiments.report_figures import FIGURES, forest
from clocs.experiments.results import TWELVE, Results, open_results, write_results
from clocs.experiments.runner import duration
from clocs.experiments.tables import TABLES, Table, small_table
from clocs.figures.canvas import as_address, save
from clocs.files import PUBLIC, write_atomic

PAGE, COVERAGE = "index.html", "coverage.json"
_TABLES = TABLES | {"factorial": factorial_tables, "forms": forms_tables}
_FOLDED = ("label-efficiency", "appendix-linear", "appendix-transfer")  # shown on request
_TEXTS = paper.read_toml("report.toml")
# title, content and caption of each section, in the order of the page
SECTIONS: dict[str, dict[str, str]] = _TEXTS["sections"]


@dataclass(frozen=True)
class Section:
    """One table or figure of the paper on the page."""

    name: str
    cells: int
    done: int
    missing: dict[str, int]  # number of missing results by reason
    tables: list[Table]
    figure: Figure | None
    title: str
    about: str
    caption: str = ""

    @property
    def picture(self) -> bool:
        """Whether its figure is written as a file, too, for the pages to show."""
        return self.name == "factorial" and self.figure is not None

    def is_folded(self, table: Table) -> bool:
        """Whether the page shows a table on request alone."""
        other = self.name == "byol-decay" and not table.title.endswith("F = 0.5")
        return other or self.name in _FOLDED

    def markdown(self) -> str:
        lines = [f"# {self.title}", "", f"{self.about[0].upper()}{self.about[1:]}.", ""]
        lines.append(f"{self.done:,} of {self.cells:,} results computed.")
        lines += [f"{count} missing: {why}." for why, count in self.missing.items()]
        shown = [table for table in self.tables if table.filled]
        if shown and self.name != "patient-distances":
            lines += ["", _TEXTS["legend"]]
            if untested := sum(table.untested for table in shown):
                words = "they have no draws, or no untrained encoder beside them"
                lines += ["", f"{untested:,} results are not tested: {words}."]
        if self.picture:
            lines += ["", f"![{self.title}]({self.name}.png)"]
        return "\n".join([*lines, ""]) + "\n" + "\n".join(table.markdown() for table in shown)


def report(
    runs: Path | str,
    out: Path | str | None = None,
    *,
    earlier: Sequence[Path | str] = (),
    fill: Sequence[Path | str] = (),
) -> Path:
    """Write the report of a folder of runs: one HTML page, Markdown tables, JSON.

    Args:
        runs: The folder of the runs, or of an earlier report.
        out: The folder for the report; `report` inside `runs` by default.
        earlier: More folders of runs or reports, to include what `runs` lacks.
        fill: Markdown files to bring up to date: what stands between `<!-- clocs:NAME -->` and
            `<!-- /clocs -->` is replaced. The README.md in `out` is, too, where there is one.

    Returns:
        The page.
    """
    results = open_results(Path(runs), *map(Path, earlier))
    out = Path(runs) / "report" if out is None else Path(out)
    out.mkdir(parents=True, exist_ok=True)
    sections = [section_of(results, name) for name in SECTIONS]
    found, made = claims(results), contests(results)
    counts = coverage(results, found)
    for section in sections:
        write_atomic(out / f"{section.name}.md", section.markdown().encode(), mode=PUBLIC)
        if section.picture and section.figure is not None:
            save(section.figure, out / f"{section.name}.png", mode=PUBLIC)
    write_atomic(out / "claims.md", _claims_markdown(found).encode(), mode=PUBLIC)
    write_atomic(out / COVERAGE, (json.dumps(counts, indent=2) + "\n").encode(), mode=PUBLIC)
    write_results(results, out)
    comparisons.write_comparisons(made, out)
    parts = {
        "coverage": "\n".join(f"- {line}" for line in sentences(counts)),
        "table": small_table(results),
        "surviving": comparisons.surviving_markdown(made),
        "verdicts": comparisons.verdicts_markdown(made),
    }
    readme = out / "README.md"
    for path in (*map(Path, fill), *([readme] if readme.is_file() else [])):
        fill_marked(path, parts)
    write_page(
        out / PAGE,
        "report.html",
        made=time.strftime("%Y-%m-%d"),
        simulated=results.simulated,
        surviving=surviving(made),
        forest=forest(made),
        counts=counts,
        counted=sentences(counts),
        seconds=sum(run.seconds or 0 for run in results.runs.values()),
        sections=sections,
        claims=found,
        rule=RULE,
        signed=signed,
        as_address=as_address,
        facts=_facts(results),
        failures=[run for run in results.runs.values() if run.state == "failed"],
        duration=duration,
    )
    return out / PAGE


def section_of(results: Results, name: str) -> Section:
    """One table or figure, with what is missing."""
    cells = grid(name)
    without = [cell for cell in cells if results.result(cell) is None]
    missing = Counter(results.why_not(cell).partition(":")[0] for cell in without)
    shown = _TABLES[name](results, cells) if name in _TABLES else []
    figure = FIGURES[name](results, cells) if name in FIGURES else None
    return Section(
        name,
        len(cells),
        len(cells) - len(without),
        missing,
        shown,
        figure,
        **SECTIONS[name],
    )


def _facts(results: Results) -> dict[str, Any]:
    """Settings, data and versions."""
    datasets = {
        name: {
            "title": title,
            "content": results.facts.get(f"data of {name}"),
            "leads": results.facts.get(f"leads of {name}") or [],
            **(results.facts.get(f"counts of {name}") or {}),
        }
        for dataset, title in paper.DATASET_TITLES.items()
        for name in (dataset, dataset + TWELVE)
        if f"data of {name}" in results.facts
    }
    profile = results.facts.get("profile") or {}
    facts = {"profile": profile, "seeds": results.seeds, "versions": results.versions}
    return {**facts, "datasets": datasets}


def _claims_markdown(found: Sequence[Claim]) -> str:
    heads = ["claim", "paper's text", "paper's tables, recounted", "ours", "by test"]
    heads += ["if methods were exchangeable", "verdict"]
    shown = ("about", "text", "recount", "ours", "tested", "exchangeable", "verdict")
    rows = [[getattr(one, name) or "–" for name in shown] for one in found]
    table = markdown_table(heads, rows, words=len(heads))
    return f"# The paper's claims\n\n{RULE}\n\n{table}\n"
