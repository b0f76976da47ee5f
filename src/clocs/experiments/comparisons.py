"""Paired tests of results, from their stored draws: which differences are more than chance.

One test for wins and losses, linear and fine-tuned: paired draws over seeds, patients and, where
there are several, patient splits. One family is primary: the best of CMSC, CMLC and CMSMLC, chosen
on validation patients, against MT-SSL, BYOL, SimCLR and untrained encoders in the eight columns of
tables 1 and 2 (two linear, six fine-tuned), with Holm's correction over all of them. There, every
method has the form that is best on validation patients. All others are exploratory, of methods as
in the paper; the correction is then over the columns, separately for each pair of a method and a
rival. Of the two untrained encoders, the one with the higher test AUC counts, in its favor.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import hypot
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from scipy.special import ndtr, ndtri

from clocs.evaluation.bootstrap import Comparison, Sampled, correct, interval, more_draws, paired
from clocs.experiments import grid as grids
from clocs.experiments import paper
from clocs.experiments.grid import Cell, CellTask, cell_for, grid
from clocs.experiments.ledger import Draws
from clocs.experiments.pages import markdown_table
from clocs.experiments.results import Results
from clocs.files import PUBLIC, write_atomic

FAMILY = "best of CMSC, CMLC and CMSMLC"
_UNTRAINED = "stronger untrained"
_PRIMARY = ("mtssl", "byol", "simclr", "untrained")
_RIVALS = (*_PRIMARY, "supervised")
Column = tuple[CellTask, str, str]  # task, pre-trained on, scored on
BySplit = dict[int, tuple[dict[str, Any], Draws]]  # result and draws, by patient split
COLUMNS: tuple[Column, ...] = (  # of tables 1 and 2: E = 128, F = 0.5, four leads
    *(("linear", dataset, dataset) for dataset in paper.PRETRAIN),
    *(("finetune", *pair) for pair in paper.PAIRS),
)
RULE: str = paper.read_toml("report.toml")["comparisons"]


def signed(difference: float) -> str:
    """+0.012, −0.003."""
    return f"{difference:+.3f}".replace("-", "−")


def compare_cells(results: Results, a: Cell, b: Cell) -> Comparison | None:
    """Cell a against cell b by the AUC per frame, without correction; None without draws in common.

    On the patient splits that both have with as many seeds as their first: three seeds leave a test
    two degrees of freedom. The mean over splits is compared.
    """
    first, second = (_by_split(results, cell) for cell in (a, b))
    splits = [split for split in first if split in second]
    for own in (first, second):
        seeds = {split: len(own[split][0]["auc"]) for split in splits}
        splits = [split for split in splits if seeds[split] >= seeds[splits[0]]]
    if not splits:
        return None
    found = paired(_sampled(a, first, splits, second), _sampled(b, second, splits, first))
    return None if np.isnan(found.ci95).any() else found


def apart(a: tuple[float, float, float], b: tuple[float, float, float]) -> Comparison:
    """Two results, each a mean and the ends of its 95 % interval, as if they were independent.

    For results without draws, and cautious: two methods share their patients.
    """
    difference = a[0] - b[0]
    low = difference - hypot(a[0] - a[1], b[2] - b[0])
    high = difference + hypot(a[2] - a[0], b[0] - b[1])
    half = difference - low if difference > 0 else high - difference
    p = float(2 * ndtr(ndtri(0.025) * abs(difference) / half)) if half else float(not difference)
    return Comparison("", "", a[0], b[0], difference, [low, high], p, p, 0, 0)


def strongest(results: Results, cells: Iterable[Cell]) -> Cell | None:
    """The cell with the highest test AUC, as a mean over the patient splits that all of them have.

    Cells without a result are left out; of equals the first.
    """
    by_split: dict[Cell, dict[int, float]] = {}
    for cell in cells:
        found = {seed: results.result(own) for seed, own in _on_every_split(cell).items()}
        means = {seed: float(one["auc_mean"]) for seed, one in found.items() if one}
        if cell.split_seed in means:
            by_split[cell] = means
    if not by_split:
        return None
    common = set.intersection(*(set(means) for means in by_split.values()))
    return max(by_split, key=lambda cell: fmean(by_split[cell][seed] for seed in sorted(common)))


def stronger_untrained(results: Results, cell: Cell) -> Cell | None:
    """The stronger of the untrained encoders beside a cell, of those that have draws."""
    known = [one for one in grids.untrained_beside(cell) if results.draws_of(one) is not None]
    return strongest(results, known)


def above_untrained(results: Results, row: Sequence[Cell]) -> dict[Cell, bool]:
    """Which of a table row's cells are above the stronger untrained encoder.

    Holm's correction is over the cells of the row. Cells without draws are not tested and left out;
    where the untrained encoders were scored within the same job alone, that job's test counts.
    """
    found: dict[Cell, bool] = {}
    tested: dict[Cell, Comparison] = {}
    for cell in row:
        if cell.pretraining.method in paper.UNTRAINED or results.draws_of(cell) is None:
            continue
        rival = stronger_untrained(results, cell)
        one = None if rival is None else compare_cells(results, cell, rival)
        within = (results.result(cell) or {}).get("beats_random")
        if one is not None:
            tested[cell] = one
        elif within is not None:
            found[cell] = within
    corrected = correct(list(tested.values()))
    return found | {cell: one.better for cell, one in zip(tested, corrected, strict=True)}


def interval_over_splits(
    results: Results, cell: Cell, splits: Sequence[int]
) -> tuple[float, float] | None:
    """The 95 % interval of the mean over splits; None unless there are draws on all of them."""
    known = _by_split(results, cell)
    if not set(splits) <= known.keys():
        return None
    low, high = interval(_sampled(cell, known, splits, known).draws)
    return max(low, 0.0), min(high, 1.0)


def _on_every_split(cell: Cell) -> dict[int, Cell]:
    """The cell by patient split; one that is not on the first stays alone."""
    others = [] if cell.split_seed else grids.SPLIT_SEEDS
    return {cell.split_seed: cell} | {seed: grids.on_split(cell, seed) for seed in others}


def _by_split(results: Results, cell: Cell) -> BySplit:
    """Where the cell has draws."""
    found = {}
    for split, own in _on_every_split(cell).items():
        result, draws = results.result(own), results.draws_of(own)
        if result is not None and draws is not None:
            found[split] = result, draws
    return found


def _sampled(cell: Cell, known: BySplit, splits: Sequence[int], other: BySplit) -> Sampled:
    """The cell on these splits, with as many draws as both it and the other cell have."""
    size = min(len(own[split][1]) for own in (known, other) for split in splits)
    own, by_seed = [], dict[int, list[float]]()
    for result, draws in map(known.__getitem__, splits):
        auc = dict(zip(result.get("seeds", range(len(result["auc"]))), result["auc"], strict=True))
        own.append(more_draws(draws[:size], auc))
        for seed, value in auc.items():
            by_seed.setdefault(seed, []).append(value)
    means = {seed: fmean(values) for seed, values in by_seed.items()}
    return Sampled(cell.pretraining.name, means, np.stack(own) if own[1:] else own[0], len(own))


@dataclass(frozen=True)
class Contest:
    """A method against a rival in one column."""

    method: str  # its title, or `FAMILY`
    rival: str  # its title
    column: Column
    comparison: Comparison
    ahead: tuple[int, int]  # on how many splits, whatever their seeds, and of how many
    primary: bool  # whether it is of the family stated in advance

    def json(self) -> dict[str, Any]:
        """One row of `comparisons.json`; `a` and `b` are the encoders compared."""
        where = dict(zip(("task", "pretrain", "downstream"), self.column, strict=True))
        ahead = dict(zip(("splits_ahead", "splits_compared"), self.ahead, strict=True))
        names = {"method": self.method, "rival": self.rival}
        return names | where | self.comparison.json() | ahead | {"primary": self.primary}

    @property
    def where(self) -> str:
        """Its column in words."""
        task, pretrain, downstream = self.column
        titles = paper.DATASET_TITLES
        if task == "linear":
            return f"linear, {titles[downstream]}"
        return f"{titles[pretrain]} → {titles[downstream]}"

    def row(self) -> list[str]:
        """One row of its table in `comparisons.md`."""
        c = self.comparison
        return [
            self.rival,
            self.where,
            signed(c.difference),
            " … ".join(signed(end) for end in c.ci95),
            f"{c.p:.3f}",
            f"{c.p_holm:.3f}",
            f"{c.splits} × {c.seeds}",
            f"{self.ahead[0]} of {self.ahead[1]}",
            c.verdict,
        ]


def contests(results: Results) -> list[Contest]:
    """Every comparison of tables 1 and 2 that the results have draws for."""
    families: dict[tuple[str, str], list[Contest]] = {}  # corrected together
    for method in ("", *paper.CLOCS):
        for rival in _RIVALS:
            primary = not method and rival in _PRIMARY
            for column in COLUMNS:
                pair = _pair(results, method, rival, column)
                comparison = None if pair is None else compare_cells(results, *pair)
                if pair is not None and comparison is not None:
                    title = paper.METHOD_TITLES[method] if method else FAMILY
                    against = paper.METHOD_TITLES.get(rival, _UNTRAINED)
                    ahead = splits_ahead(results, *pair)
                    one = Contest(title, against, column, comparison, ahead, primary)
                    families.setdefault((method, "" if primary else rival), []).append(one)
    return [
        replace(one, comparison=comparison)
        for made in families.values()
        for one, comparison in zip(made, correct([each.comparison for each in made]), strict=True)
    ]


def splits_ahead(results: Results, a: Cell, b: Cell) -> tuple[int, int]:
    """On how many splits a's mean AUC is above b's, and of how many that both have."""
    first, second = (_by_split(results, cell) for cell in (a, b))
    ahead = [
        np.mean(first[split][0]["auc"]) > np.mean(second[split][0]["auc"])
        for split in first
        if split in second
    ]
    return int(sum(ahead)), len(ahead)


def surviving(made: Sequence[Contest]) -> tuple[str, list[list[str]]]:
    """In how many columns each method is above or below each rival by more than chance.

    Returns what was tested, and how; and the rows of a table, the first of them its heads.
    """
    if not made:
        return "No differences were tested: these results have no draws of the bootstrap.", []
    splits = sorted({one.comparison.splits for one in made})
    many = f"{splits[0]}" if len(splits) == 1 else f"{splits[0]} to {splits[-1]}"
    rivals = list(dict.fromkeys(one.rival for one in made))
    rows = [["", *rivals]]
    for method in dict.fromkeys(one.method for one in made):
        best = f"B{FAMILY[1:]}, chosen on validation patients"
        title = best if method == FAMILY else f"{method} (exploratory)"
        rows.append([title, *(_counts(made, method, rival) for rival in rivals)])
    rule = (
        f"{RULE} Columns have {many} patient split{'' if splits == [1] else 's'}. In how many "
        "columns each method is above or below its rival; in the others they cannot be told apart:"
    )
    return rule, rows


def surviving_markdown(made: Sequence[Contest]) -> str:
    """The same as Markdown."""
    rule, rows = surviving(made)
    return f"{rule}\n\n{markdown_table(rows[0], rows[1:], words=len(rows[0]))}" if rows else rule


def verdicts_markdown(made: Sequence[Contest]) -> str:
    """Where the best of CLOCS is above or below each rival, and on how many splits: a list."""
    lines = []
    own = [one for one in made if one.primary]
    for rival in dict.fromkeys(one.rival for one in own):
        columns = [one for one in own if one.rival == rival]
        parts = []
        for verdict in ("above", "below"):
            where = [
                f"{one.where} ({signed(one.comparison.difference)}, {one.ahead[0]} of "
                f"{one.ahead[1]} split{'s' if one.ahead[1] > 1 else ''})"
                for one in columns
                if one.comparison.verdict == verdict
            ]
            if where:
                parts.append(f"{verdict} in {len(where)} of {len(columns)}: {', '.join(where)}")
        told = "; ".join(parts) or f"not distinguishable in any of {len(columns)} columns"
        lines.append(f"- **{rival}**: {told}.")
    return "\n".join(lines) or "No differences were tested."


def write_comparisons(made: Sequence[Contest], out: Path) -> None:
    """Write all contests: `comparisons.json`, and `comparisons.md` with one table per method."""
    rows = ",\n".join(json.dumps(one.json(), ensure_ascii=False, allow_nan=False) for one in made)
    write_atomic(out / "comparisons.json", f"[\n{rows}\n]\n".encode(), mode=PUBLIC)
    parts = ["# Comparisons", surviving_markdown(made)]
    heads = ["against", "column", "difference", "95 %", "p", "p, Holm", "splits × seeds"]
    heads += ["ahead on splits", "verdict"]
    for method in dict.fromkeys(one.method for one in made):
        for primary in (True, False):
            own = [one.row() for one in made if (one.method, one.primary) == (method, primary)]
            title = f"{method[0].upper()}{method[1:]}, {'primary' if primary else 'exploratory'}"
            parts += [f"## {title}", markdown_table(heads, own, words=2)] if own else []
    write_atomic(out / "comparisons.md", ("\n\n".join(parts) + "\n").encode(), mode=PUBLIC)


def _pair(results: Results, method: str, rival: str, column: Column) -> tuple[Cell, Cell] | None:
    task, pair = column[0], column[1:]
    family = [cell_for(task, one, *pair) for one in paper.CLOCS]
    best = best_on_validation(results, [grids.at_best(cell) for cell in family])
    own = cell_for(task, method, *pair) if method else best
    if rival == "untrained":
        other = stronger_untrained(results, family[0])
    else:
        theirs = cell_for(task, rival, *pair)
        known = theirs in grid("table-1" if task == "linear" else "table-2")
        other = (theirs if method else grids.at_best(theirs)) if known else None
    return None if own is None or other is None else (own, other)


def best_on_validation(results: Results, cells: Sequence[Cell]) -> Cell | None:
    """The best by its AUC on validation patients; None unless all have one."""
    scores = {cell: (results.result(cell) or {}).get("auc_validation") for cell in cells}
    known = {cell: fmean(values) for cell, values in scores.items() if values}
    return max(known, key=lambda cell: known[cell]) if len(known) == len(cells) else None


def _counts(made: Sequence[Contest], method: str, rival: str) -> str:
    own = [one for one in made if (one.method, one.rival) == (method, rival)]
    verdicts = [one.comparison.verdict for one in own]
    known = [f"{v} in {verdicts.count(v)}" for v in ("above", "below") if v in verdicts]
    return f"{', '.join(known) or 'in none'} of {len(verdicts)}" if verdicts else "–"
