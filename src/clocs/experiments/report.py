"""`clocs.report`: a folder of runs -> one self-contained HTML page, Markdown tables and JSON.

Every table in the paper's layout, the claims in three columns, the figures, and at the end the
settings, data, versions and time. Needs jinja2.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from clocs.experiments import addition_sections, paper, report_figures, tables
from clocs.experiments.claims import DISTINGUISHABLE, Claim, claims
from clocs.experiments.comparisons import surviving, write_comparisons
from clocs.experiments.coverage import COVERAGE, coverage, sentences
from clocs.experiments.exports import open_results, write_exports
from clocs.experiments.findings import findings, small_table
from clocs.experiments.grid import ABOUT, Cell, grid
from clocs.experiments.ledger import Run
from clocs.experiments.marked import fill as fill_marked
from clocs.experiments.page import write_page
from clocs.experiments.pricing import duration
from clocs.experiments.report_figures import ReportFigure
from clocs.experiments.results import TWELVE, Results, value_of
from clocs.experiments.retrieval_parts import retrieval_parts
from clocs.experiments.tables import Table, markdown, signed
from clocs.files import PUBLIC, write_atomic

PAGE = "index.html"
_OF_LOGITS = "of logits, as in the paper, unless the labels are independent (PhysioNet 2020)"
TITLES = {
    "table-1": "Table 1: linear evaluation",
    "table-2": "Table 2: transfer",
    **addition_sections.TITLES,
    "linear-converged": "Table 1, solved to convergence",
    "more-with-less": "Doing more with fewer labels",
    "patient-distances": "Distances between patients",
    "perturbations": "Perturbations",
    "byol-decay": "BYOL's decay rate",
    "embedding-dim": "Embedding dimension",
    "labelled-fraction": "Labeled fraction",
    "appendix-linear": "Appendix: linear evaluation",
    "appendix-transfer": "Appendix: transfer",
}


@dataclass(frozen=True)
class Section:
    """One table or figure of the paper on the page."""

    name: str
    title: str
    about: str
    cells: int
    done: int
    missing: dict[str, int]  # number of missing results by reason
    tables: list[Table] = field(default_factory=list)
    folded: list[Table] = field(default_factory=list)  # shown on request
    figures: list[ReportFigure] = field(default_factory=list)


def report(
    runs: Path | str,
    out: Path | str | None = None,
    *,
    earlier: Sequence[Path | str] = (),
    keep_earlier: bool = False,
    fill: Sequence[Path | str] = (),
) -> Path:
    """Write the report of a folder of runs: one HTML page, Markdown tables, JSON.

    Args:
        runs: The folder of the runs, or of an earlier report.
        out: The folder for the report; `report` inside `runs` by default.
        earlier: More folders of runs or reports, to include what `runs` lacks.
        keep_earlier: Keep the earlier result of a cell that has two, unless only the new one has
            draws to compare it by; without, two results are an error.
        fill: Markdown files to bring up to date: what stands between `<!-- clocs:NAME -->` and
            `<!-- /clocs -->` is replaced. The README.md in `out` is, too, where there is one.

    Returns:
        The page.
    """
    results = open_results(Path(runs), *map(Path, earlier), keep_earlier=keep_earlier)
    out = Path(runs) / "report" if out is None else Path(out)
    out.mkdir(parents=True, exist_ok=True)
    sections = [_section(results, name) for name in TITLES]
    found = claims(results)
    counts = coverage(results, found)
    for section in sections:
        write_atomic(out / f"{section.name}.md", _markdown(section).encode(), mode=PUBLIC)
    write_atomic(out / "claims.md", _claims_markdown(found).encode(), mode=PUBLIC)
    write_atomic(out / COVERAGE, (json.dumps(counts, indent=2) + "\n").encode(), mode=PUBLIC)
    addition_sections.efficiency_image(results, out / addition_sections.IMAGE)
    write_exports(results, out)
    write_comparisons(results, out)
    parts = generated_parts(results, out)
    readme = out / "README.md"
    for path in (*map(Path, fill), *([readme] if readme.is_file() else [])):
        fill_marked(path, parts)
    write_page(
        out / PAGE,
        "report.html",
        made=time.strftime("%Y-%m-%d"),
        simulated=results.simulated,
        findings=findings(results, found),
        surviving=surviving(results),
        counted=sentences(counts),
        summary=_summary(results, counts),
        sections=sections,
        claims=found,
        distinguishable=DISTINGUISHABLE,
        signed=signed,
        facts=_facts(results),
        failures=[run for run in results.runs.values() if run.state == "failed"],
        duration=duration,
    )
    return out / PAGE


def generated_parts(results: Results, folder: Path) -> dict[str, str]:
    """What `fill` can put into a Markdown file, by the name of the part.

    `folder` is that of the report, where scores of the search may lie as well.
    """
    found = claims(results)
    return {
        "coverage": "\n".join(f"- {line}" for line in sentences(coverage(results, found))),
        "findings": "\n".join(f"- {line}" for line in findings(results, found)),
        "table": small_table(results),
        "surviving": surviving(results).markdown(),
        **retrieval_parts(folder),
    }


def _section(results: Results, name: str) -> Section:
    cells = grid(name)
    without = [cell for cell in cells if results.result(cell) is None]
    missing = Counter(results.why_not(cell).partition(":")[0] for cell in without)
    done = len(cells) - len(without)
    section = Section(name, TITLES[name], ABOUT[name], len(cells), done, missing)
    drawn: list[ReportFigure | None] = []
    table = partial(tables.score_table, results, cells=set(cells))
    usual = "E = 128, F = 0.5, four leads"
    match name:
        case "table-1":
            section.tables.append(table("linear", title=usual))
            caption = f"Test AUC of a linear layer on frozen embeddings; {_OF_LOGITS}."
            drawn.append(report_figures.dots(section.tables[0], caption))
        case "linear-converged":
            title = "Standardized features, solved to convergence, L2 chosen on the validation set"
            section.tables.append(table("linear-converged", title=title))
        case "table-2":
            section.tables.extend(
                [table("finetune", title=usual), tables.cardiology_splits(results)]
            )
            caption = f"Test AUC after fine-tuning on another dataset; {_OF_LOGITS}."
            drawn.append(report_figures.dots(section.tables[0], caption))
        case "perturbations":
            section.tables.append(tables.perturbation_table(results, cells))
            drawn.append(report_figures.perturbations(results))
        case "more-with-less":
            drawn.append(report_figures.more_with_less(results))
        case "patient-distances":
            section.tables.extend(_distance_table(results, cells))
            drawn.append(report_figures.distances(results, cells))
        case "embedding-dim":
            _add_along(results, section, cells, "E, embedding dimension", "F = 0.25")
        case "labelled-fraction":
            _add_along(results, section, cells, "F, labeled fraction", "E = 64")
        case "byol-decay":
            for one in tables.decay_tables(results):
                (section.tables if one.title.endswith("F = 0.5") else section.folded).append(one)
        case _ if name in addition_sections.TITLES:
            content = addition_sections.content(results, name, cells)
            section.tables.extend(content.tables)
            section.folded.extend(content.folded)
            drawn.append(content.figure)
        case _:
            section.folded.extend(tables.appendix_tables(results, name))
    section.figures.extend(figure for figure in drawn if figure is not None)
    return section


def _add_along(
    results: Results, section: Section, cells: Sequence[Cell], over: str, fixed: str
) -> None:
    """A figure over E or F, and its table."""
    caption = (
        f"Chapman → Cardiology, {fixed}, AUC of logits; solid lines ours, dashed lines the paper's."
    )
    if figure := report_figures.along(results, cells, over=over, caption=caption):
        section.figures.append(figure)
    title = f"Chapman → Cardiology, {fixed}, over {over}"
    place = partial(report_figures.place, over=over)
    section.tables.append(tables.along_table(results, cells, title=title, place=place))


def _distance_table(results: Results, cells: Sequence[Cell]) -> list[Table]:
    rows = []
    for cell in cells:
        result = results.result(cell)
        if result is not None:
            p = cell.pretraining
            entries = tuple(
                tables.TableEntry(ours=value_of(result[key]))
                for key in ("intra_mean", "inter_mean", "separability")
            )
            rows.append((f"{paper.METHOD_TITLES[p.method]}, E = {p.embedding_dim}", entries))
    columns = ("mean within patients", "mean between patients", "separability")
    title = "Euclidean distances between embeddings, mean ± sd over seeds"
    return [Table(title, (), columns, tuple(rows))] if rows else []


def _summary(results: Results, counts: Mapping[str, Mapping[str, int]]) -> dict[str, Any]:
    """The key figures at the top of the page."""
    cells = dict.fromkeys((*grid("table-1"), *grid("table-2")))
    differences = [d for cell in cells if (d := results.difference(cell)) is not None]
    return {
        **counts,
        "compared": len(differences),
        "mean_difference": fmean(differences) if differences else None,
        "above": sum(d > 0 for d in differences),
        "seconds": sum(run.seconds or 0 for run in results.runs.values()),
    }


def _facts(results: Results) -> dict[str, Any]:
    """Settings, data, versions and time."""
    done = [run for run in results.runs.values() if run.state == "done"]
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
    return {
        "profile": results.facts.get("profile") or {},
        "seeds": results.seeds,
        "datasets": datasets,
        "versions": results.versions,
        "times": _times(done),
        "pretrainings": [run for run in done if run.kind == "pretrain"],
    }


def _times(done: Sequence[Run]) -> list[tuple[str, int, float]]:
    """(kind, runs, seconds), longest first."""
    kinds: dict[str, list[float]] = {}
    for run in done:
        what = f"pre-training {run.settings['method']}" if run.kind == "pretrain" else run.kind
        kinds.setdefault(what, []).append(run.seconds or 0.0)
    sums = [(what, len(seconds), sum(seconds)) for what, seconds in kinds.items()]
    return sorted(sums, key=lambda row: -row[2])


def _markdown(section: Section) -> str:
    lines = [f"# {section.title}", "", f"{section.about[0].upper()}{section.about[1:]}.", ""]
    lines.append(f"{section.done:,} of {section.cells:,} results computed.")
    lines += [f"{count} missing: {why}." for why, count in section.missing.items()]
    shown = [t for t in (*section.tables, *section.folded) if t.filled]
    if shown and section.name != "patient-distances":
        lines += ["", _LEGEND]
        if untested := sum(table.untested for table in shown):
            words = "they have no draws, or no untrained encoder beside them"
            lines += ["", f"{untested:,} results are not tested: {words}."]
    return "\n".join([*lines, ""]) + "\n" + "\n".join(markdown(table) for table in shown)


_LEGEND = (
    "Test AUC per frame, of probabilities, mean ± sd over seeds; its 95 % interval in brackets. "
    "In parentheses: the AUC of logits, where the paper's is of logits; the paper's; and the "
    "difference from it, by logits where those are given. † not above the stronger untrained "
    "encoder: paired test over seeds and patients, and patient splits where there are several, "
    "with Holm's correction over the columns of the row. Intervals are over seeds and patients, in "
    "tables over splits over those, too; of results without draws, over patients alone."
)


def _claims_markdown(found: Sequence[Claim]) -> str:
    lines = [
        "# The paper's claims",
        "",
        DISTINGUISHABLE,
        "",
        "| claim | paper's text | paper's tables, recounted | ours |",
        "| --- | --- | --- | --- |",
    ]
    for claim in found:
        mark = {True: " ✓", False: " ✗", None: ""}[claim.holds]
        lines.append(
            f"| {claim.about} | {claim.text} | {claim.recount or '–'} | {claim.ours}{mark} |"
        )
    return "\n".join(lines) + "\n"
