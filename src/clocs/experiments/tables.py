"""The report's tables: results in the paper's layout, each ours, the paper's and the difference."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

from clocs.experiments import comparisons, paper
from clocs.experiments import grid as grids
from clocs.experiments.comparisons import COLUMNS, Column, signed
from clocs.experiments.grid import Cell, CellTask, Pretraining, cell_for, cells_of, grid
from clocs.experiments.pages import markdown_table
from clocs.experiments.results import Results, Value, papers, value_of
from clocs.frames.splits import ValidationLabels

BYOL_DECAYS = (0.5, None, 0.99)  # None: 0.9, BYOL's own
PROTOCOLS = dict(zip(grids.EFFICIENCY_TASKS, ("linear", "fine-tuned"), strict=True))
VALIDATION: dict[ValidationLabels, str] = {"all": "", "share": ", few for validation too"}
_METHODS = list(paper.METHOD_TITLES.items())
_METRICS = {"auc_recording": "AUC per recording", "ap_recording": "average precision per recording"}
_EXCLUDED = [paper.METHOD_TITLES[method] for method in ("random", "random-bn", "supervised")]
_NOT_RUN = "not run"
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
    # test recordings left out because a copy is among those trained on: of earlier versions
    left_out: int = 0

    @property
    def difference(self) -> float | None:
        """By logits where those are given: as the paper computed its own."""
        ours = self.logits or self.ours
        return None if ours is None or self.paper is None else ours.mean - self.paper.mean

    def __str__(self) -> str:
        """Ours with its interval; in parentheses, ours by logits and the paper's."""
        ours = self.why_not.replace("|", "\\|") if self.ours is None else str(self.ours)
        ours = f"**{ours}**" if self.best else ours
        ours += "†" if self.ours and self.beats_random is False else ""
        ours += "‡" if self.left_out else ""
        ours += f" [{self.ci95[0]:.3f}, {self.ci95[1]:.3f}]" if self.ci95 else ""
        if self.paper is None:
            return ours
        logits = f"logits {self.logits.mean:.3f}; " if self.logits else ""
        difference = "" if self.difference is None else f", {signed(self.difference)}"
        return f"{ours} ({logits}paper {self.paper}{difference})"


Row = tuple[str, Sequence[TableEntry | None]]  # None for combinations that the paper does not have
CellRow = tuple[str, Sequence[Cell | None]]


@dataclass(frozen=True)
class Table:
    """Rows of entries under columns, which may be grouped."""

    title: str
    groups: Sequence[tuple[str, int]]  # (title, number of columns) of each
    columns: Sequence[str]
    rows: Sequence[Row]

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

    @property
    def heads(self) -> list[str]:
        """Of columns, with their groups."""
        groups = [f"{label}: " for label, count in self.groups for _ in range(count)]
        groups = groups or [""] * len(self.columns)
        return [group + column for group, column in zip(groups, self.columns, strict=True)]

    def markdown(self) -> str:
        rows = [[label, *("" if e is None else str(e) for e in row)] for label, row in self.rows]
        return f"### {self.title}\n\n{markdown_table(['', *self.heads], rows)}\n"


def score_table(
    results: Results, task: CellTask, *, title: str, cells: Iterable[Cell], **settings: Any
) -> Table:
    """Methods by dataset: pre-trained and scored on the same, or fine-tuned on another.

    settings: As for `cell_for`, such as `leads` and `fraction`.
    """
    layout = _TRANSFER if task == "finetune" else _LINEAR
    rows = [
        (label, [cell_for(task, method, *pair, **settings) for pair in layout[0]])
        for method, label in _METHODS
    ]
    return table_of(results, title, rows, cells, layout[1:])


def decay_tables(results: Results, cells: Sequence[Cell]) -> list[Table]:
    """BYOL's τ_d for each fraction, linear and transfer."""
    tables = []
    for fraction in sorted(paper.FRACTIONS, key=lambda f: f != 0.5):
        for what, (pairs, *layout) in (("Linear", _LINEAR), ("Transfer", _TRANSFER)):
            task: CellTask = "linear" if what == "Linear" else "finetune"
            rows = [
                (
                    f"τ_d = {tau or paper.TAU_D:g}",
                    [Cell(Pretraining("byol", p, tau_d=tau), d, task, fraction) for p, d in pairs],
                )
                for tau in BYOL_DECAYS
            ]
            tables.append(table_of(results, f"{what}, F = {fraction:g}", rows, cells, layout))
    return tables


def along_tables(results: Results, cells: Sequence[Cell], over: str) -> list[Table]:
    """Chapman → Cardiology: methods over E or F, for each share of validation labels."""
    what = {"E": "F = 0.25, over E, embedding dimension", "F": "E = 64, over F, labeled fraction"}
    found = []
    for labels in dict.fromkeys(cell.validation_labels for cell in cells):
        at = {
            (c.pretraining.method, c.pretraining.embedding_dim if over == "E" else c.fraction): c
            for c in cells
            if c.validation_labels == labels
        }
        places = sorted({where for _, where in at})
        rows: list[CellRow] = [
            (label, [at.get((method, where)) for where in places]) for method, label in _METHODS
        ]
        title = f"Chapman → Cardiology, {what[over]}{VALIDATION[labels] if over == 'F' else ''}"
        columns = [f"{where:g}" for where in places]
        found.append(table_of(results, title, rows, cells, ([], columns)))
    return found


def perturbation_tables(results: Results, cells: Sequence[Cell]) -> list[Table]:
    """Chains of perturbations by method; SimCLR's default is Gaussian noise, CMSC's is none."""
    at = {(c.pretraining.method, c.pretraining.perturb or ""): c for c in cells}
    at["simclr", grids.CHAINS[0]] = at.pop(("simclr", ""))
    rows: list[CellRow] = [
        (chain.replace(">", " → ") or "none", [at.get((m, chain)) for m in ("simclr", "cmsc")])
        for chain in ("", *grids.CHAINS)
    ]
    columns = [paper.METHOD_TITLES[method] for method in ("simclr", "cmsc")]
    return [table_of(results, "Linear on PhysioNet 2020, F = 0.5", rows, cells, ([], columns))]


def main_tables(
    results: Results, cells: Sequence[Cell], task: CellTask, leads: int = 4
) -> list[Table]:
    """Table 1 or 2, with four leads every method in both forms; Cardiology over splits as well."""
    title = f"E = 128, F = 0.5, {'four' if leads == 4 else 'twelve'} leads"
    if task == "linear-converged":
        title = "Standardized features, solved to convergence, L2 chosen on the validation set"
    if leads != 4 or task == "linear-converged":
        return [score_table(results, task, title=title, cells=cells, leads=leads)]
    layout = _TRANSFER if task == "finetune" else _LINEAR
    every = [*cells, *grid("forms")]
    made = [table_of(results, title, _both_forms(task, layout), every, layout[1:])]
    return made if task == "linear" else [*made, split_table(results, task, _CARDIOLOGY)]


def _both_forms(task: CellTask, layout: _Layout) -> list[tuple[str, list[Cell]]]:
    """Rows of table 1 or 2: every method as in the paper, and at its best."""
    rows = []
    for method, label in _METHODS:
        own = [cell_for(task, method, *pair) for pair in layout[0]]
        rows.append((label, own))
        if method in grids.FORMS:
            rows.append((f"{label}, at its best", [grids.at_best(cell) for cell in own]))
    return rows


def appendix_tables(results: Results, cells: Sequence[Cell], task: CellTask) -> list[Table]:
    """Every number of leads, E and F."""
    known, made = set(cells), []
    for leads, e, f in product((4, 12), paper.DIMENSIONS, paper.FRACTIONS):
        title = f"{leads} leads, E = {e}, F = {f:g}"
        shape = {"leads": leads, "embedding_dim": e, "fraction": f}
        made.append(score_table(results, task, title=title, cells=known, **shape))
    return made


_CARDIOLOGY: _Layout = (
    [(dataset, "cardiology") for dataset in paper.PRETRAIN],
    [],
    [f"{paper.DATASET_TITLES[dataset]} → Cardiology" for dataset in paper.PRETRAIN],
)


def split_table(results: Results, task: CellTask, layout: _Layout | None = None) -> Table:
    """Table 1 or 2, or some columns of it, over split seeds: mean and sd over splits.

    On the splits that all have; every method as in the paper and at its best.
    """
    over = "Over" if layout is None else "Cardiology over"
    layout = layout or (_TRANSFER if task == "finetune" else _LINEAR)
    cells = set(grid("table-2" if task == "finetune" else "table-1")) | set(grid("forms"))
    rows = _both_forms(task, layout)
    known = [c for _, row in rows for c in row if c in cells and results.ours(c) is not None]
    common = [
        split
        for split in grids.SPLIT_SEEDS
        if all(results.ours(grids.on_split(cell, split)) is not None for cell in known)
    ]
    # on which all that have a result on the first have one
    splits = [0, *(common or grids.SPLIT_SEEDS)]

    def entry(cell: Cell) -> TableEntry:
        return _over_splits(results, cell, splits)

    heading = f"{over} {len(splits)} patient splits: mean ± sd over splits"
    return table_of(results, heading, rows, cells, layout[1:], entry)


def _over_splits(results: Results, cell: Cell, splits: Sequence[int]) -> TableEntry:
    cells = [grids.on_split(cell, seed) for seed in splits]
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
        ci95=comparisons.interval_over_splits(results, cell, splits),
        left_out=sum(results.left_out(one) for one in cells),
    )


def ablation_tables(results: Results, cells: Sequence[Cell]) -> list[Table]:
    """CMSC with one thing changed at a time; in the last row, scored on frames as trained."""
    rows = [
        (
            grids.VARIANTS[v][0],
            [Cell(Pretraining("cmsc", d, variant=v), d, "linear") for d in paper.PRETRAIN],
        )
        for v in grids.ABLATIONS
    ]
    five = [Cell(Pretraining("cmsc", d), d, "linear", segment_frame=True) for d in paper.PRETRAIN]
    rows.append(("5 s throughout", five))
    columns = [paper.DATASET_TITLES[d] for d in paper.PRETRAIN]
    title = "CMSC, linear, E = 128, F = 0.5, four leads: one thing changed at a time"
    return [table_of(results, title, rows, cells, ([], columns))]


def efficiency_tables(results: Results, cells: Sequence[Cell]) -> list[Table]:
    """Methods by number of labeled patients, for each pair of datasets, protocol and metric."""
    own = [(dataset, dataset) for dataset in paper.PRETRAIN]
    found = []
    for pair in dict.fromkeys((*grids.SHOWN, *paper.PAIRS, *own)):
        counts = grids.labeled_patients(pair[1])
        columns = ["all" if count is None else f"{count:,}" for count in counts]
        where = " → ".join(paper.DATASET_TITLES[dataset] for dataset in pair)
        for (task, protocol), (metric, what), labels in product(
            PROTOCOLS.items(), _METRICS.items(), VALIDATION
        ):
            rows = []
            for method, label in _METHODS:
                listed = efficiency_cells(task, method, *pair, labels)
                entries = [entry_of(results, cell, metric) for cell in listed]
                # those of all patients are in both
                if any(entry.ours for entry in entries[:-1]):
                    rows.append((label, entries))
            if rows:
                title = f"{where}, {protocol}: {what} over labeled patients{VALIDATION[labels]}"
                found.append(Table(title, [], columns, rows))
    return found


def efficiency_cells(
    task: CellTask, method: str, dataset: str, downstream: str, labels: ValidationLabels
) -> list[Cell]:
    """One per number of labeled patients; with all labels, validation patients have all, too."""
    every = cell_for(task, method, dataset, downstream, 1.0)
    few = replace(every, validation_labels=labels)
    counts = grids.labeled_patients(downstream)
    return [replace(few, patients=count) if count else every for count in counts]


def distance_tables(results: Results, cells: Sequence[Cell]) -> list[Table]:
    """Mean distances within and between patients, and how separable these are."""
    rows = []
    for cell in cells:
        p = cell.pretraining
        keys = ("intra_mean", "inter_mean", "separability")
        entries = [TableEntry(ours=results.over_seeds(cell, key)) for key in keys]
        if results.result(cell) is not None:
            rows.append((f"{paper.METHOD_TITLES[p.method]}, E = {p.embedding_dim}", entries))
    columns = ("mean within patients", "mean between patients", "separability")
    title = "Euclidean distances between embeddings, mean ± sd over seeds"
    return [Table(title, [], columns, rows)]


def entry_of(results: Results, cell: Cell, metric: str) -> TableEntry:
    value = results.over_seeds(cell, metric)
    why_not = "" if value else results.why_not(cell)
    return TableEntry(ours=value, why_not=why_not, left_out=results.left_out(cell))


def table_of(
    results: Results,
    title: str,
    rows: Sequence[CellRow],
    cells: Iterable[Cell],
    layout: Sequence[Sequence[object]],
    entry: Callable[[Cell], TableEntry] | None = None,
) -> Table:
    """Look up every cell of the grid; rows without any are left out.

    Marks the best of each column, ours and the paper's, of those pre-trained without labels.
    """
    known, groups, columns = set(cells), *layout

    def looked_up(cell: Cell) -> TableEntry:
        ours = results.ours(cell)
        return TableEntry(
            ours,
            papers(cell),
            results.logits(cell),
            results.interval(cell),
            why_not="" if ours else results.why_not(cell),
            left_out=results.left_out(cell),
        )

    found: list[tuple[str, list[TableEntry | None]]] = []
    for label, row in rows:
        above = comparisons.above_untrained(results, [cell for cell in row if cell in known])
        entries = [
            replace((entry or looked_up)(cell), beats_random=above.get(cell))
            if cell in known
            else None
            for cell in row
        ]
        if any(entries):
            found.append((label, entries))
    for column in range(len(columns)):
        marked = [entries for label, entries in found if label not in _EXCLUDED]
        listed = [own for entries in marked if (own := entries[column]) is not None]
        ours = max((e.ours.mean for e in listed if e.ours), default=None)
        theirs = max((e.paper.mean for e in listed if e.paper), default=None)
        for entries in marked:
            if (own := entries[column]) is not None:
                best = own.ours is not None and own.ours.mean == ours
                papers_best = own.paper is not None and own.paper.mean == theirs
                entries[column] = replace(own, best=best, papers_best=papers_best)
    return Table(title, groups, columns, found)  # type: ignore[arg-type]


# columns of the README's table: the best and the worst transfer of CMSC, CMLC and CMSMLC
_SMALL: tuple[Column, ...] = (
    *COLUMNS[:2],
    ("finetune", "chapman", "physionet2017"),
    ("finetune", "physionet2020", "cardiology"),
)


def small_table(results: Results) -> str:
    """The README's table, as Markdown: some columns of tables 1 and 2, by probabilities.

    The last two rows are CMSC's as the paper computes it, and as printed.
    """

    def cell(method: str, column: Column) -> Cell:
        return cell_for(column[0], method, *column[1:])

    rows: dict[str, list[Value | None]] = {"untrained (the better of two)": []}
    for column in _SMALL:
        found = [results.ours(cell(method, column)) for method in paper.UNTRAINED]
        known = [value for value in found if value is not None]
        best = max(known, key=lambda v: v.mean) if len(known) == len(found) else None
        rows["untrained (the better of two)"].append(best)
    for method in ("mtssl", "byol", "simclr", *paper.CLOCS):
        own, title = [cell(method, column) for column in _SMALL], paper.METHOD_TITLES[method]
        rows[title] = [results.ours(one) for one in own]
        rows[f"{title}, at its best"] = [results.ours(grids.at_best(one)) for one in own]
    columns = zip(*rows.values(), strict=True)
    tops = [max((value.mean for value in own if value), default=0.0) for own in columns]
    lines = []
    for title, values in rows.items():
        pairs = zip(values, tops, strict=True)
        shown = [f"**{v}**" if v and v.mean == top else str(v or _NOT_RUN) for v, top in pairs]
        lines.append([title, *shown])
    cmsc = [cell("cmsc", column) for column in _SMALL]
    lines.append(["CMSC, AUC of logits", *(str(results.beside(c) or _NOT_RUN) for c in cmsc)])
    lines.append(["CMSC, as printed in the paper", *(str(papers(c) or _NOT_RUN) for c in cmsc)])
    titles = paper.DATASET_TITLES
    heads = [
        f"linear layer, {titles[d]}" if t == "linear" else f"fine-tuned, {titles[p]} → {titles[d]}"
        for t, p, d in _SMALL
    ]
    return markdown_table(["", *heads], lines)


TABLES: dict[str, Callable[[Results, Sequence[Cell]], list[Table]]] = {
    "table-1": partial(main_tables, task="linear"),
    "table-2": partial(main_tables, task="finetune"),
    "table-1-splits": lambda results, cells: [split_table(results, "linear")],
    "table-2-splits": lambda results, cells: [split_table(results, "finetune")],
    "label-efficiency": efficiency_tables,
    "ablations": ablation_tables,
    "table-1-12": partial(main_tables, task="linear", leads=12),
    "table-2-12": partial(main_tables, task="finetune", leads=12),
    "linear-converged": partial(main_tables, task="linear-converged"),
    "patient-distances": distance_tables,
    "perturbations": perturbation_tables,
    "byol-decay": decay_tables,
    "embedding-dim": partial(along_tables, over="E"),
    "labelled-fraction": partial(along_tables, over="F"),
    "appendix-linear": partial(appendix_tables, task="linear"),
    "appendix-transfer": partial(appendix_tables, task="finetune"),
}


def brief_tables(
    results: Results, names: Sequence[str], only: Sequence[str]
) -> list[tuple[str, list[str], list[list[str | None]]]]:
    """Title, heads and rows of what has results: ours and, in parentheses, the paper's.

    Whole tables, of those that have a cell that passes the filters `only`.
    """
    shown, kept = [], set(cells_of(names, only))
    for name in (name for name in names if name in TABLES):
        some = TABLES[name](results, [cell for cell in grid(name) if cell in kept])
        titles = {table.title for table in some if _brief_rows(table)}
        whole = [one for one in TABLES[name](results, grid(name)) if one.title in titles]
        shown += [(one.title, ["encoder", *one.heads], _brief_rows(one)) for one in whole]
    return shown


def _brief_rows(table: Table) -> list[list[str | None]]:
    return [[label, *map(_brief, row)] for label, row in table.rows if any(map(_brief, row))]


def _brief(entry: TableEntry | None) -> str | None:
    if entry is None or entry.ours is None:
        return None
    return str(entry.ours) + (f" ({entry.paper.mean:.3f})" if entry.paper else "")
