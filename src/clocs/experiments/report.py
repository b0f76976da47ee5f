"""`clocs.report`: a folder of runs -> one self-contained HTML page, Markdown tables and JSON.

Every table in the paper's layout, the claims in three columns, the figures, and at the end the
settings, data, versions and time. Needs jinja2 and matplotlib.
"""

from __future__ import annotations

import json
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from clocs.experiments import comparisons, paper
from clocs.experiments import grid as grids
from clocs.experiments.agreement import coverage, sentences
from clocs.experiments.claims import RULE, Claim, claims
from clocs.experiments.comparisons import Contest, contests, signed, surviving
from clocs.experiments.duel import factorial_figure, factorial_tables, forms_tables
from clocs.experiments.grid import CHAINS, Cell, Pretraining, grid
from clocs.experiments.pages import fill as fill_marked
from clocs.experiments.pages import markdown_table, write_page
from clocs.experiments.results import TWELVE, Results, open_results, write_results
from clocs.experiments.runner import duration
from clocs.experiments.tables import PROTOCOLS, TABLES, Table, efficiency_cells, small_table
from clocs.figures.canvas import COLORS, COLUMN, as_address, hide_frame, new_figure, save
from clocs.files import PUBLIC, write_atomic
from clocs.frames.splits import ValidationLabels

_HEX = (
    "#7a7f8c", "#a5a9b3", "#5b4a9c", "#b58900", "#cc79a7", "#d55e00", "#0072b2", "#009e73",
    "#56a4d9",
)  # fmt: skip
METHOD_COLORS = dict(zip(paper.METHOD_TITLES, _HEX, strict=True))
_WIDTH = 10.0  # inches
_VALIDATION: dict[ValidationLabels, str] = {"share": "", "all": ", all for validation"}


def perturbations(results: Results, cells: Sequence[Cell]) -> Figure | None:
    """Figure 3: nine perturbations of SimCLR and CMSC, alone or after Gaussian noise."""
    methods = ("simclr", "cmsc")
    if not any(results.ours(cell) for cell in cells):
        return None
    found = {m: [results.ours(grids.perturbed(m, chain)) for chain in CHAINS] for m in methods}
    figure, panels = _panels([paper.METHOD_TITLES[m] for m in methods], 3.0, sharex=True)
    for axes, (method, values) in zip(panels, found.items(), strict=True):
        for height, (chain, value) in enumerate(zip(CHAINS, values, strict=True)):
            if value is not None:
                color = METHOD_COLORS["cmlc" if ">" in chain else "cmsc"]
                ends = results.interval(grids.perturbed(method, chain)) or (value.mean, value.mean)
                error = [[value.mean - ends[0]], [ends[1] - value.mean]]
                axes.errorbar(value.mean, height, xerr=error, fmt="o", color=color)
        axes.set_ylim(len(CHAINS) - 0.4, -0.6)
        axes.set_yticks(range(len(CHAINS)), [chain.replace(">", " → ") for chain in CHAINS])
        axes.set_xlabel("test AUC, linear, F = 0.5", fontsize=9)
    return figure


def more_with_less(results: Results, cells: Sequence[Cell]) -> Figure | None:
    """Validation AUC after every epoch of fine-tuning, mean ± sd over seeds."""
    if not any(results.result(cell) for cell in cells):
        return None
    titles = [" → ".join(paper.DATASET_TITLES[d] for d in pair) for pair in grids.TRANSFERS]
    figure, panels = _panels(titles, 3.0, sharey=False)
    for axes, (dataset, downstream) in zip(panels, grids.TRANSFERS, strict=True):
        wanted: list[tuple[str, Cell, str]] = [
            (f"CMSC, F = {f:g}", Cell(Pretraining("cmsc", dataset), downstream, "curve", f), color)
            for f, color in zip(grids.FEW, ("#0072b2", "#009e73", "#56a4d9"), strict=True)
        ]
        random = Cell(Pretraining("random", downstream), downstream, "curve", 1.0)
        wanted.append(("random, F = 1", random, METHOD_COLORS["random"]))
        for name, cell, color in wanted:
            by_epoch = list(zip(*(results.result(cell) or {}).get("curve") or (), strict=True))
            if by_epoch:
                means, sds = map(fmean, by_epoch), map(pstdev, by_epoch)
                _band(axes, range(1, len(by_epoch) + 1), list(means), list(sds), color, name)
        axes.set_xlabel("epoch of fine-tuning", fontsize=9)
        if axes.lines:
            axes.legend(frameon=False, fontsize=8, loc="lower right")
    return figure


def distances(results: Results, cells: Sequence[Cell]) -> Figure | None:
    """Histograms of distances within and between patients, all on the same axes.

    Bins differ in width between encoders, so shares become densities.
    """
    found = [(c.pretraining, r) for c in cells if (r := results.result(c)) is not None]
    if not found:
        return None
    titles = [
        f"{paper.METHOD_TITLES[p.method]}, E = {p.embedding_dim}: "
        f"separability {fmean(result['separability']):.3f}"
        for p, result in found
    ]
    figure, panels = _panels(titles, 1.9, sharex=True)
    for axes, (_, result) in zip(panels, found, strict=True):
        edges = result["edges"]
        for kind, label in (("inter", "different patients"), ("intra", "same patient")):
            density = [share / edges[1] for share in result["histogram"][kind]]
            color = COLORS[kind]
            axes.stairs(density, edges, fill=True, color=color, alpha=0.3)
            axes.stairs(density, edges, color=color, linewidth=1.2, label=label)
        axes.set_xlabel("Euclidean distance", fontsize=9)
    farthest = [  # but for 1 %, so that a few do not stretch the axis
        result["edges"][int(np.searchsorted(np.cumsum(shares), 0.99 * sum(shares))) + 1]
        for _, result in found
        for shares in result["histogram"].values()
    ]
    panels[0].set_xlim(0, max(farthest))
    panels[0].legend(frameon=False, fontsize=8)
    return figure


def forest(made: Sequence[Contest]) -> Figure | None:
    """The best of CLOCS against each rival: differences in AUC with their intervals, by column.

    Blue and orange are above and below the rival by test.
    """
    own = [one for one in made if one.primary]
    rivals = list(dict.fromkeys(one.rival for one in own))
    if not own:
        return None
    titles = list(dict.fromkeys(one.where for one in own))
    figure = new_figure(_WIDTH, 0.9 + 0.24 * len(titles))
    panels = figure.subplots(1, len(rivals), sharex=True, sharey=True, squeeze=False)[0]
    paints = {"above": "#0072b2", "below": "#d55e00"}
    for axes, rival in zip(panels, rivals, strict=True):
        hide_frame(axes)
        axes.axvline(0, color="#7a7f8c", linewidth=1)
        for one in own:
            if one.rival == rival:
                c = one.comparison
                around = [[c.difference - c.ci95[0]], [c.ci95[1] - c.difference]]
                axes.errorbar(
                    c.difference, titles.index(one.where), xerr=around, fmt="o", markersize=5,
                    color=paints.get(c.verdict, "#7a7f8c"), linewidth=1.6,
                )  # fmt: skip
        axes.set_title(f"against {rival}", fontsize=9.5, loc="left")
        axes.grid(axis="x", color="#e6e8ec", linewidth=0.7)
        axes.set_axisbelow(True)
    panels[0].set_yticks(range(len(titles)), titles)
    panels[0].set_ylim(len(titles) - 0.4, -0.6)
    figure.supxlabel("difference in test AUC, with its 95 % interval", fontsize=9)
    return figure


def label_efficiency(results: Results, cells: Sequence[Cell]) -> Figure | None:
    """AUC per recording over labeled patients: a panel per dataset and protocol, a line per method.

    It is as wide as a column of a journal. The two protocols of a dataset share their y axis.
    """
    figure = new_figure(COLUMN, 1.35 * len(grids.SHOWN) + 0.9)
    grid = figure.subplots(len(grids.SHOWN), len(PROTOCOLS), sharey="row", squeeze=False).T
    legend = {}
    few = [cell for cell in cells if cell.validation_labels == "share"]
    labels: ValidationLabels = "share" if any(results.result(cell) for cell in few) else "all"
    for row, (task, protocol) in enumerate(PROTOCOLS.items()):
        for axes, (dataset, downstream) in zip(grid[row], grids.SHOWN, strict=True):
            hide_frame(axes)
            facts = results.facts.get(f"counts of {downstream}") or {}
            every = int(facts.get("patients_by_part", [0])[0])
            counts = grids.labeled_patients(downstream)
            for method, title in paper.METHOD_TITLES.items():
                own = efficiency_cells(task, method, dataset, downstream, labels)
                values = [results.over_seeds(cell, "auc_recording") for cell in own]
                known = [(c or every, v) for c, v in zip(counts, values, strict=True) if v]
                if known:
                    means, sds = [v.mean for _, v in known], [v.std or 0.0 for _, v in known]
                    x, color = [count for count, _ in known], METHOD_COLORS[method]
                    legend[title] = _band(axes, x, means, sds, color, title, marker="o")
            marks = [count or every for count in counts]
            axes.set_xscale("log")
            axes.set_xticks(marks, [f"{mark:,}" for mark in marks], rotation=40)
            axes.tick_params(axis="x", which="minor", length=0)
            axes.tick_params(labelsize=6, pad=1.5)
            title = f"{paper.DATASET_TITLES[downstream]}, {protocol}"
            axes.set_title(title, fontsize=6.5, loc="left")
            axes.grid(color="#e6e8ec", linewidth=0.7)
            axes.set_axisbelow(True)
    figure.supylabel("test AUC per recording", fontsize=7)
    figure.supxlabel(f"labeled patients{_VALIDATION[labels]}", fontsize=7)
    figure.legend(
        legend.values(), legend.keys(), loc="outside upper center", ncols=3, frameon=False,
        fontsize=6.5,
    )  # fmt: skip
    return figure if legend else None


def _panels(
    titles: Sequence[str], height: float, *, sharex: bool = False, sharey: bool = True
) -> tuple[Figure, list[Axes]]:
    """At most three panels in a row, each so many inches high."""
    across = min(3, len(titles))
    down = -(-len(titles) // across)
    figure = new_figure(_WIDTH, height * down + 0.4)
    grid = figure.subplots(down, across, squeeze=False, sharex=sharex, sharey=sharey)
    for axes in grid.flat[len(titles) :]:
        axes.set_axis_off()
    for axes, title in zip(grid.flat, titles, strict=False):
        hide_frame(axes)
        axes.set_title(title, fontsize=10, loc="left")
        axes.grid(color="#e6e8ec", linewidth=0.7)
        axes.set_axisbelow(True)
    return figure, list(grid.flat[: len(titles)])


def _band(
    axes: Axes,
    x: Sequence[float],
    mean: Sequence[float],
    sd: Sequence[float],
    color: str,
    label: str,
    marker: str = "",
) -> Any:
    """A line in a band of one standard deviation."""
    low, high = ([m + sign * s for m, s in zip(mean, sd, strict=True)] for sign in (-1, 1))
    axes.fill_between(x, low, high, color=color, alpha=0.13, linewidth=0)
    style: dict[str, Any] = {"marker": marker, "markersize": 3, "linewidth": 1.4}
    return axes.plot(x, mean, color=color, label=label, **style)[0]


FIGURES: dict[str, Callable[[Results, Sequence[Cell]], Figure | None]] = {
    "label-efficiency": label_efficiency,
    "more-with-less": more_with_less,
    "patient-distances": distances,
    "perturbations": perturbations,
}


PAGE, COVERAGE = "index.html", "coverage.json"
_TABLES = TABLES | {"factorial": factorial_tables, "forms": forms_tables}
_FIGURES = FIGURES | {"factorial": factorial_figure}
_FOLDED = ("label-efficiency", "appendix-linear", "appendix-transfer")  # shown on request
_LEGEND = (
    "Test AUC per frame, of probabilities, mean ± sd over seeds; its 95 % interval in brackets. "
    "In parentheses: the AUC of logits, where the paper's is of logits; the paper's; and the "
    "difference from it, by logits where those are given. † not above the stronger untrained "
    "encoder: paired test over seeds and patients, and patient splits where there are several, "
    "with Holm's correction over the columns of the row. ‡ of an earlier version, which left out "
    "the test recordings that have a copy among those trained on. Intervals are over seeds and "
    "patients, in tables over splits over those, too; those of earlier versions were over patients "
    "alone, and have the spread of the seeds added, as if it were independent."
)


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
            lines += ["", _LEGEND]
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
    sections = [section_of(results, name) for name in section_texts()]
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


@cache
def section_texts() -> dict[str, dict[str, str]]:
    """Title, content and caption of each section, in the order of the page."""
    text = files("clocs.experiments").joinpath("sections.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def section_of(results: Results, name: str) -> Section:
    """One table or figure, with what is missing."""
    cells = grid(name)
    without = [cell for cell in cells if results.result(cell) is None]
    missing = Counter(results.why_not(cell).partition(":")[0] for cell in without)
    shown = _TABLES[name](results, cells) if name in _TABLES else []
    figure = _FIGURES[name](results, cells) if name in _FIGURES else None
    return Section(
        name,
        len(cells),
        len(cells) - len(without),
        missing,
        shown,
        figure,
        **section_texts()[name],
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
