"""The report's figures: which results to draw; `clocs.figures.svg` draws them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev
from typing import Any

from clocs.experiments import paper
from clocs.experiments.grid import CHAINS, FEW, TRANSFERS, Cell, Pretraining, perturbed
from clocs.experiments.results import Results, Value, papers
from clocs.experiments.tables import Table
from clocs.figures.svg import Dot, Line, Panel, picture, ticks

WIDTH = 960.0


@dataclass(frozen=True)
class ReportFigure:
    """A plot with its caption and legend: (name, color, hollow) per entry."""

    svg: str
    caption: str
    legend: tuple[tuple[str, str, bool], ...] = ()


COLORS = {method: f"var(--{method})" for method in paper.METHOD_TITLES}
OURS_AND_PAPERS = (("ours ± sd", "var(--ink)", False), ("paper ± sd", "var(--ink)", True))


def dots(table: Table, caption: str) -> ReportFigure | None:
    """Every entry of a table on its own line: ours filled, the paper's hollow, like with like."""
    if not table.filled:
        return None
    colors = {title: COLORS[method] for method, title in paper.METHOD_TITLES.items()}
    per_row = 3 if len(table.columns) > 2 else len(table.columns)
    lines = len(table.rows)
    left, gap, tall = 130.0, 26.0, 21.0 * lines
    wide = (WIDTH - left - gap * per_row) / per_row
    panels = []
    groups = [group for group, count in table.groups for _ in range(count)]
    for column, title in enumerate(table.columns):
        entries = [row[column] for _, row in table.rows]
        known = [
            (v.mean - (v.std or 0), v.mean + (v.std or 0))
            for entry in entries
            if entry is not None
            for v in (entry.beside, entry.paper)
            if v is not None
        ]
        if not known:
            continue
        limits = _limits([low for low, _ in known] + [high for _, high in known])
        across, down = column % per_row, column // per_row
        panel = Panel(
            left + across * (wide + gap), 40 + down * (tall + 84), wide, tall, limits, (lines, 0)
        )
        pretrained = groups[column].removeprefix("Pre-trained on ") + " → " if groups else ""
        panel.title(pretrained + title)
        panel.x_axis(ticks(*limits, about=4), "test AUC")
        heights = [i + 0.5 for i in range(lines)]
        panel.y_axis(heights, [row for row, _ in table.rows] if across == 0 else [""] * lines)
        for height, (name, _), entry in zip(heights, table.rows, entries, strict=True):
            if entry is None:
                continue
            for value, hollow in ((entry.paper, True), (entry.beside, False)):
                if value is not None:
                    source = "paper" if hollow else "ours"
                    panel.dot(
                        Dot(
                            value.mean,
                            height + (0.18 if hollow else -0.12),
                            value.std,
                            colors[name],
                            f"{name}, {title}, {source}: {value}",
                            hollow,
                        )
                    )
        panels.append(panel)
    rows = -(-len(table.columns) // per_row)
    svg = picture(WIDTH, rows * (tall + 84), panels, caption)
    return ReportFigure(svg, caption, OURS_AND_PAPERS)


def perturbations(results: Results) -> ReportFigure | None:
    """Figure 3: nine perturbations of SimCLR and CMSC."""
    found: dict[str, list[Value | None]] = {}
    for method in ("simclr", "cmsc"):
        found[method] = [results.ours(perturbed(method, chain)) for chain in CHAINS]
    known = [v for values in found.values() for v in values if v is not None]
    if not known:
        return None
    limits = _limits([v.mean + s * (v.std or 0) for v in known for s in (-1, 1)])
    lines, tall = len(CHAINS), 23.0 * len(CHAINS)
    panels = []
    for i, (method, values) in enumerate(found.items()):
        panel = Panel(150 + i * 410, 40, 380, tall, limits, (lines, 0))
        panel.title(paper.METHOD_TITLES[method])
        panel.x_axis(ticks(*limits), "test AUC, linear, F = 0.5")
        names = [chain.replace(">", " → ") for chain in CHAINS]
        panel.y_axis([k + 0.5 for k in range(lines)], names if i == 0 else [""] * lines)
        for k, value in enumerate(values):
            if value is not None:
                single = ">" not in CHAINS[k]
                color = "var(--cmsc)" if single else "var(--cmlc)"
                tooltip = f"{paper.METHOD_TITLES[method]}, {names[k]}: {value}"
                panel.dot(Dot(value.mean, k + 0.5, value.std, color, tooltip))
        panels.append(panel)
    return ReportFigure(
        picture(WIDTH, tall + 90, panels, "AUC under each perturbation"),
        "Linear evaluation on PhysioNet 2020 after pre-training with each perturbation, alone or "
        "after Gaussian noise.",
        (("one perturbation", "var(--cmsc)", False), ("two in sequence", "var(--cmlc)", False)),
    )


def more_with_less(results: Results) -> ReportFigure | None:
    """Validation AUC over epochs of fine-tuning."""
    shades = dict(zip(FEW, ("var(--cmsc)", "var(--cmlc)", "var(--cmsmlc)"), strict=True))
    panels = []
    for i, (dataset, downstream) in enumerate(TRANSFERS):
        wanted = [
            (f"CMSC, F = {f:g}", Cell(Pretraining("cmsc", dataset), downstream, "curve", f), c)
            for f, c in shades.items()
        ]
        random = Cell(Pretraining("random", downstream), downstream, "curve", 1.0)
        wanted.append(("random, F = 1", random, "var(--random)"))
        lines = [
            line for name, cell, c in wanted if (line := _curve(results.result(cell), name, c))
        ]
        if not lines:
            continue
        heights = [
            y + sign * s
            for line in lines
            for y, s in zip(line.y, line.spread or [], strict=True)
            for sign in (-1, 1)
        ]
        last = max(len(line.x) for line in lines)
        panel = Panel(60 + i * 470, 40, 410, 260, (1, max(last, 2)), _limits(heights))
        panel.title(f"{paper.DATASET_TITLES[dataset]} → {paper.DATASET_TITLES[downstream]}")
        whole = [tick for tick in ticks(1, last) if tick == int(tick)]
        panel.x_axis(whole, "epoch of fine-tuning")
        panel.y_axis(ticks(*panel.y))
        for line in lines:
            panel.line(line)
        panel.follow(lines, "epoch")
        panels.append(panel)
    if not panels:
        return None
    legend = [(f"CMSC, F = {f:g}", c, False) for f, c in shades.items()]
    return ReportFigure(
        picture(WIDTH, 350, panels, "Validation AUC over epochs"),
        "Validation AUC after every epoch, mean ± sd over seeds; no early stopping.",
        (*legend, ("random, F = 1", "var(--random)", False)),
    )


def _curve(result: dict[str, Any] | None, name: str, color: str) -> Line | None:
    if result is None or not result.get("curve"):
        return None
    by_epoch = list(zip(*result["curve"], strict=True))
    epochs = list(range(1, len(by_epoch) + 1))
    spread = [pstdev(values) for values in by_epoch]
    return Line(epochs, [fmean(values) for values in by_epoch], color, name, spread)


def along(
    results: Results, cells: Sequence[Cell], *, over: str, caption: str
) -> ReportFigure | None:
    """Chapman → Cardiology over E or F: ours as solid lines, the paper's dashed; both of logits."""
    methods = [m for m in paper.METHOD_TITLES if any(c.pretraining.method == m for c in cells)]
    lines: list[Line] = []
    marks: list[Dot] = []
    places = sorted({place(cell, over) for cell in cells})
    ordered = sorted(cells, key=lambda cell: place(cell, over))
    for method in methods:
        own = [c for c in ordered if c.pretraining.method == method]
        for look, dashed in ((papers, True), (results.beside, False)):
            known = [(places.index(place(c, over)), v) for c in own if (v := look(c))]
            if known:
                title = paper.METHOD_TITLES[method] + (", paper" if dashed else "")
                x, y = [k for k, _ in known], [v.mean for _, v in known]
                lines.append(Line(x, y, COLORS[method], title, dashed=dashed, marked=True))
                if not dashed:
                    marks += [
                        Dot(k, v.mean, v.std, COLORS[method], f"{title}: {v}") for k, v in known
                    ]
    if not any(not line.dashed for line in lines):
        return None
    heights = [v for line in lines for v in line.y]
    heights += [mark.y + sign * (mark.spread or 0) for mark in marks for sign in (-1, 1)]
    panel = Panel(60, 20, WIDTH - 90, 300, (-0.3, len(places) - 0.7), _limits(heights))
    panel.x_axis(range(len(places)), over, [f"{where:g}" for where in places])
    panel.y_axis(ticks(*panel.y))
    for line in lines:
        panel.line(line)
    for mark in marks:
        panel.dot(mark, across=False)
    legend = [(paper.METHOD_TITLES[m], COLORS[m], False) for m in methods]
    return ReportFigure(picture(WIDTH, 370, [panel], caption), caption, tuple(legend))


def distances(results: Results, cells: Sequence[Cell]) -> ReportFigure | None:
    """Distances within and between patients, all on the same axes."""
    found = [(c, r) for c in cells if (r := results.result(c)) is not None]
    if not found:
        return None
    panels = []
    per_row, wide, tall = 3, 275.0, 130.0
    bars = [  # bins differ in width between encoders, so shares become densities
        {
            kind: [share / result["edges"][1] for share in shares]
            for kind, shares in result["histogram"].items()
        }
        for _, result in found
    ]
    right = max(
        _most(result["edges"], s) for _, result in found for s in result["histogram"].values()
    )
    top = 1.05 * max(max(*own["intra"], *own["inter"]) for own in bars) or 1.0
    for i, ((cell, result), own) in enumerate(zip(found, bars, strict=True)):
        edges = [edge for edge in result["edges"] if edge <= right]
        across, down = i % per_row, i // per_row
        left, above = 50 + across * (wide + 20), 40 + down * (tall + 80)
        panel = Panel(left, above, wide, tall, (0, right), (0, top))
        p = cell.pretraining
        name = f"{paper.METHOD_TITLES[p.method]}, E = {p.embedding_dim}"
        panel.title(f"{name}: separability {fmean(result['separability']):.3f}")
        panel.x_axis(ticks(0, right), "Euclidean distance")
        heights = ticks(0, top, about=3)
        panel.y_axis(heights, [f"{y:g}" if across == 0 else "" for y in heights])
        for kind in ("inter", "intra"):
            panel.steps(edges, own[kind][: len(edges) - 1], f"var(--{kind})")
        panels.append(panel)
    rows = -(-len(found) // per_row)
    return ReportFigure(
        picture(WIDTH, rows * (tall + 80), panels, "Histograms of distances"),
        "Distances between embeddings (not normalized) of validation patients of PhysioNet 2020, "
        "same lead; heights are shares per unit of distance; the farthest 1 % are not drawn. "
        "Separability: the probability that two embeddings of one patient are closer than two of "
        "different patients; 0.5 is chance. "
        "Every patient has one recording, so those of one patient are parts of the same recording.",
        (("same patient", "var(--intra)", False), ("different patients", "var(--inter)", False)),
    )


def _most(edges: Sequence[float], shares: Sequence[float]) -> float:
    """The edge below which 99 % of a histogram lie, so that a few do not stretch the axis."""
    reached = 0.0
    for edge, share in zip(edges[1:], shares, strict=True):
        reached += share
        if reached >= 0.99 * sum(shares):
            return edge
    return edges[-1]


def place(cell: Cell, over: str) -> float:
    return float(cell.pretraining.embedding_dim) if over.startswith("E") else cell.fraction


def _limits(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    margin = max(0.08 * (high - low), 0.005)
    return low - margin, high + margin
