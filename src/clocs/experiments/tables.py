"""The report's tables: results in the paper's layout, each ours, the paper's and the difference."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from clocs.experiments import paper
from clocs.experiments.additions import CHOSEN_SCHEDULES, SPLIT_SEEDS, on_split
from clocs.experiments.cells import encoder_for
from clocs.experiments.grid import (
    CHAINS,
    Cell,
    CellTask,
    Pretraining,
    grid,
)
from clocs.experiments.paired import above_untrained, interval_over_splits
from clocs.experiments.results import Results, Value, papers, value_of

BYOL_DECAYS = (0.5, None, 0.99)  # None: 0.9, BYOL's own


@dataclass(frozen=True)
class TableEntry:
    """One result in a table."""

    ours: Value | None = None  # of probabilities
    paper: Value | None = None
    logits: Value | None = None  # ours of logits, where the paper's is
    ci95: tuple[float, float] | None = None
    why_not: str = ""
    best: bool = False  # our best in its column, among encoders pre-trained without labels
    papers_best: bool = False
    beats_random: bool | None = None  # by the paired test; None if not tested

    @property
    def beside(self) -> Value | None:
        """Ours as the paper computed its own."""
        return self.logits or self.ours

    @property
    def difference(self) -> float | None:
        if self.beside is None or self.paper is None:
            return None
        return self.beside.mean - self.paper.mean


@dataclass(frozen=True)
class Table:
    """Rows of entries under columns, which may be grouped."""

    title: str
    groups: tuple[tuple[str, int], ...]  # (title, number of columns) of each
    columns: tuple[str, ...]
    # (title, entries) each; None for combinations that the paper does not have
    rows: tuple[tuple[str, tuple[TableEntry | None, ...]], ...]

    @property
    def entries(self) -> list[TableEntry]:
        return [entry for _, row in self.rows for entry in row if entry is not None]

    @property
    def filled(self) -> int:
        return sum(entry.ours is not None for entry in self.entries)

    @property
    def untested(self) -> int:
        """Results of methods that no test has compared with untrained encoders."""
        rows = [row for label, row in self.rows if label not in _EXCLUDED]
        known = [e for row in rows for e in row if e is not None and e.ours is not None]
        return sum(entry.beats_random is None for entry in known)


def score_table(
    results: Results,
    task: CellTask,
    *,
    title: str,
    cells: set[Cell],
    leads: int = 4,
    embedding_dim: int = 128,
    fraction: float = 0.5,
) -> Table:
    """Methods by dataset: pre-trained and scored on the same, or fine-tuned on another."""

    def at(method: str, dataset: str, downstream: str) -> Cell:
        shape = {"leads": leads, "embedding_dim": embedding_dim}
        return Cell(encoder_for(method, dataset, downstream, **shape), downstream, task, fraction)

    pairs, groups, columns = _TRANSFER if task == "finetune" else _LINEAR
    rows = [(label, [at(method, *pair) for pair in pairs]) for method, label in _METHODS]
    return looked_up(results, title, groups, columns, rows, cells)


def decay_tables(results: Results) -> list[Table]:
    """BYOL's τ_d for each fraction, linear and transfer."""
    cells = set(grid("byol-decay"))
    tables = []
    for fraction in paper.FRACTIONS:
        for what, (pairs, groups, columns) in (("Linear", _LINEAR), ("Transfer", _TRANSFER)):
            task: CellTask = "linear" if what == "Linear" else "finetune"
            rows = [
                (
                    f"τ_d = {tau or paper.TAU_D:g}",
                    [Cell(Pretraining("byol", p, tau_d=tau), d, task, fraction) for p, d in pairs],
                )
                for tau in BYOL_DECAYS
            ]
            title = f"{what}, F = {fraction:g}"
            tables.append(looked_up(results, title, groups, columns, rows, cells))
    return tables


def along_table(
    results: Results, cells: Sequence[Cell], *, title: str, place: Callable[[Cell], float]
) -> Table:
    """Methods over a setting: E or F."""
    at = {(cell.pretraining.method, place(cell)): cell for cell in cells}
    places = sorted({where for _, where in at})
    rows: list[tuple[str, list[Cell | None]]] = [
        (label, [at.get((method, where)) for where in places]) for method, label in _METHODS
    ]
    return looked_up(results, title, [], [f"{where:g}" for where in places], rows, set(cells))


def perturbation_table(results: Results, cells: Sequence[Cell]) -> Table:
    """Chains of perturbations by method; SimCLR's default is Gaussian noise, CMSC's is none."""
    at = {(c.pretraining.method, c.pretraining.perturb or ""): c for c in cells}
    at["simclr", CHAINS[0]] = at.pop(("simclr", ""))
    rows: list[tuple[str, list[Cell | None]]] = [
        (chain.replace(">", " → ") or "none", [at.get((m, chain)) for m in ("simclr", "cmsc")])
        for chain in ("", *CHAINS)
    ]
    columns = [paper.METHOD_TITLES[method] for method in ("simclr", "cmsc")]
    return looked_up(results, "Linear on PhysioNet 2020, F = 0.5", [], columns, rows, set(cells))


def appendix_tables(results: Results, name: str) -> list[Table]:
    """All of `appendix-linear` or `appendix-transfer`."""
    cells = set(grid(name))
    return [
        score_table(
            results,
            "linear" if name == "appendix-linear" else "finetune",
            title=f"{leads} leads, E = {e}, F = {fraction:g}",
            cells=cells,
            leads=leads,
            embedding_dim=e,
            fraction=fraction,
        )
        for leads in (4, 12)
        for e in paper.DIMENSIONS
        for fraction in paper.FRACTIONS
    ]


def cardiology_splits(results: Results) -> Table:
    """Cardiology over split seeds: mean and sd over splits of the mean over seeds."""
    pairs = [(dataset, "cardiology") for dataset in paper.PRETRAIN]
    titles = [f"{paper.DATASET_TITLES[d]} → Cardiology" for d in paper.PRETRAIN]
    return _split_table(results, "finetune", "Cardiology over", (pairs, [], titles))


def split_table(results: Results, task: CellTask) -> Table:
    """Table 1 or 2 over split seeds: mean and sd over splits of the mean over seeds."""
    return _split_table(results, task, "Over", _TRANSFER if task == "finetune" else _LINEAR)


def _split_table(results: Results, task: CellTask, over: str, layout: _Layout) -> Table:
    """On the splits that all have; BYOL also with its chosen schedule."""
    pairs, groups, columns = layout
    cells = set(grid("table-2" if task == "finetune" else "table-1")) | set(grid("byol-fixed"))

    def at(method: str, dataset: str, downstream: str, schedules: Mapping[str, int]) -> Cell:
        epochs = schedules.get(dataset)
        return Cell(encoder_for(method, dataset, downstream, epochs=epochs), downstream, task)

    rows: list[tuple[str, list[Cell]]] = []
    for method, label in _METHODS:
        rows.append((label, [at(method, *pair, {}) for pair in pairs]))
        if method == "byol":
            fixed = [at(method, *pair, CHOSEN_SCHEDULES) for pair in pairs]
            rows.append((f"{label}, fixed schedule", fixed))
    splits = _splits_of_all(results, [cell for _, row in rows for cell in row if cell in cells])
    filled = []
    for label, row in rows:
        above = above_untrained(results, [cell for cell in row if cell in cells])
        entries = [
            replace(_over_splits(results, cell, splits), beats_random=above.get(cell))
            if cell in cells
            else None
            for cell in row
        ]
        if any(entries):
            filled.append((label, entries))
    heading = f"{over} {len(splits)} patient splits: mean ± sd over splits"
    return _marked(heading, groups, columns, filled)


def _splits_of_all(results: Results, cells: Sequence[Cell]) -> list[int]:
    """The splits on which all that have a result on the first have one; all, if none but that."""
    known = [cell for cell in cells if results.ours(cell) is not None]
    common = [
        split
        for split in SPLIT_SEEDS
        if all(results.ours(on_split(cell, split)) is not None for cell in known)
    ]
    return [0, *(common or SPLIT_SEEDS)]


def _over_splits(results: Results, cell: Cell, splits: Sequence[int]) -> TableEntry:
    cells = [on_split(cell, seed) for seed in splits]
    found = [results.ours(one) for one in cells]
    means = [value.mean for value in found if value is not None]
    if len(means) < len(found):
        why_not = results.why_not(cells[found.index(None)])
        return TableEntry(
            paper=papers(cell), why_not=f"{len(means)} of {len(found)} splits: {why_not}"
        )
    logits = [value.mean for one in cells if (value := results.logits(one)) is not None]
    return TableEntry(
        ours=value_of(means),
        paper=papers(cell),
        logits=value_of(logits) if len(logits) == len(means) else None,
        ci95=interval_over_splits(results, cell, splits),
    )


_METHODS = list(paper.METHOD_TITLES.items())
# (pre-trained on, scored on) of each column; groups of columns; their titles
_Layout = tuple[Sequence[tuple[str, str]], Sequence[tuple[str, int]], Sequence[str]]
_LINEAR: _Layout = (
    [(dataset, dataset) for dataset in paper.PRETRAIN],
    [],
    [paper.DATASET_TITLES[dataset] for dataset in paper.PRETRAIN],
)
_TRANSFER: _Layout = (
    paper.PAIRS,
    [(f"Pre-trained on {paper.DATASET_TITLES[p]}", len(d)) for p, d in paper.DOWNSTREAM.items()],
    [paper.DATASET_TITLES[d] for _, d in paper.PAIRS],
)


def looked_up(
    results: Results,
    title: str,
    groups: Sequence[tuple[str, int]],
    columns: Sequence[str],
    rows: Sequence[tuple[str, Sequence[Cell | None]]],
    cells: set[Cell],
) -> Table:
    """Look up every cell; rows without any of the grid's cells are left out."""

    def entry(cell: Cell | None, above: Mapping[Cell, bool]) -> TableEntry | None:
        if cell is None or cell not in cells:
            return None
        ours, theirs = results.ours(cell), papers(cell)
        result = results.result(cell) or {}
        return TableEntry(
            ours,
            theirs,
            results.logits(cell),
            tuple(result["ci95"]) if result.get("ci95") else None,
            why_not="" if ours else results.why_not(cell),
            beats_random=above.get(cell),
        )

    found = []
    for label, row in rows:
        above = above_untrained(results, [cell for cell in row if cell is not None])
        found.append((label, [entry(cell, above) for cell in row]))
    return _marked(title, groups, columns, [row for row in found if any(row[1])])


def _marked(
    title: str,
    groups: Sequence[tuple[str, int]],
    columns: Sequence[str],
    rows: Sequence[tuple[str, Sequence[TableEntry | None]]],
) -> Table:
    """Mark the best of each column, ours and the paper's, of those pre-trained without labels."""
    trained = [i for i, (label, _) in enumerate(rows) if label not in _EXCLUDED]
    marked = [[*row] for _, row in rows]
    for column in range(len(columns)):
        entries = {i: entry for i in trained if (entry := marked[i][column]) is not None}
        ours = max((e.ours.mean for e in entries.values() if e.ours), default=None)
        theirs = max((e.paper.mean for e in entries.values() if e.paper), default=None)
        for i, entry in entries.items():
            best = entry.ours is not None and entry.ours.mean == ours
            papers_best = entry.paper is not None and entry.paper.mean == theirs
            marked[i][column] = replace(entry, best=best, papers_best=papers_best)
    return Table(
        title,
        tuple(groups),
        tuple(columns),
        tuple((label, tuple(row)) for (label, _), row in zip(rows, marked, strict=True)),
    )


_EXCLUDED = [paper.METHOD_TITLES[method] for method in ("random", "random-bn", "supervised")]


def markdown(table: Table) -> str:
    """A table as Markdown: ours with its interval; in parentheses, ours by logits, the paper's."""
    groups = [label for label, count in table.groups for _ in range(count)]
    heads = [
        f"{group}: {column}" if group else column
        for group, column in zip(groups or [""] * len(table.columns), table.columns, strict=True)
    ]
    lines = [
        f"### {table.title}",
        "",
        f"| | {' | '.join(heads)} |",
        f"| --- |{' ---: |' * len(heads)}",
    ]
    for label, row in table.rows:
        lines.append(f"| {label} | {' | '.join(_plain(entry) for entry in row)} |")
    return "\n".join(lines) + "\n"


def _plain(entry: TableEntry | None) -> str:
    if entry is None:
        return ""
    ours = entry.why_not.replace("|", "\\|") if entry.ours is None else str(entry.ours)
    ours = f"**{ours}**" if entry.best else ours
    ours += "†" if entry.beats_random is False else ""
    ours += f" [{entry.ci95[0]:.3f}, {entry.ci95[1]:.3f}]" if entry.ci95 else ""
    if entry.paper is None:
        return ours
    logits = f"logits {entry.logits.mean:.3f}; " if entry.logits else ""
    difference = "" if entry.difference is None else f", {signed(entry.difference)}"
    return f"{ours} ({logits}paper {entry.paper}{difference})"


def signed(difference: float) -> str:
    """+0.012, −0.003."""
    return f"{difference:+.3f}".replace("-", "−")
