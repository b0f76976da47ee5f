"""Which differences in tables 1 and 2 are more than chance: every method against every rival.

One test for wins and losses, linear and fine-tuned: paired draws over seeds, patients and, where
there are several, patient splits. Holm's correction is over the eight columns of both tables (two
linear, six fine-tuned), separately for each pair of a method and a rival. Where a rival has two
forms (BYOL by the paper's rule or for a fixed number of epochs; two untrained encoders), the one
with the higher test AUC counts, in its favor.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from clocs.evaluation.comparison import Comparison, correct
from clocs.experiments import paper
from clocs.experiments.additions import better_schedule
from clocs.experiments.cells import Cell, CellTask, Pretraining
from clocs.experiments.grid import grid
from clocs.experiments.paired import compare_cells, splits_ahead, stronger, untrained_beside
from clocs.experiments.results import Results
from clocs.experiments.tables import signed
from clocs.files import PUBLIC, write_atomic

FILE = "comparisons.json"
FAMILY = "best of CMSC, CMLC and CMSMLC"
_UNTRAINED = "stronger untrained"
_IN_WORDS = {
    _UNTRAINED: f"the {_UNTRAINED} encoder",
    paper.METHOD_TITLES["supervised"]: "supervised pre-training",
}
_RIVALS = ("mtssl", "byol", "simclr", "supervised", "untrained")
_COLUMNS: tuple[tuple[CellTask, str, str], ...] = (
    *(("linear", dataset, dataset) for dataset in paper.PRETRAIN),
    *(("finetune", *pair) for pair in paper.PAIRS),
)
RULE = (
    "Paired draws over seeds and patients, and over patient splits where a column has several; "
    "p corrected by Holm's method over the columns of tables 1 and 2 for each pair of a method and "
    "a rival."
)
_FEWER = (
    "Splits with fewer seeds than the first are not among them: three seeds leave a test two "
    "degrees of freedom."
)
_EVERY = "The same with every split, whatever the number of its seeds:"


@dataclass(frozen=True)
class Contest:
    """A method against a rival in one column."""

    method: str  # its title, or `FAMILY`
    rival: str  # its title
    task: CellTask
    pretrain: str
    downstream: str
    comparison: Comparison
    ahead: tuple[int, int]  # on how many splits, whatever their seeds, and of how many

    @property
    def column(self) -> str:
        titles = paper.DATASET_TITLES
        if self.task == "linear":
            return f"linear, {titles[self.downstream]}"
        return f"{titles[self.pretrain]} → {titles[self.downstream]}"

    def json(self) -> dict[str, Any]:
        """One row of `comparisons.json`; `a` and `b` are the encoders compared."""
        place = {"method": self.method, "rival": self.rival, "task": self.task}
        where = {"pretrain": self.pretrain, "downstream": self.downstream}
        ahead = dict(zip(("splits_ahead", "splits_compared"), self.ahead, strict=True))
        return place | where | self.comparison.json() | ahead


def contests(results: Results, *, every: bool = False) -> list[Contest]:
    """Every comparison that the results have draws for; `every` as for `compare_cells`."""
    methods = [(method, paper.METHOD_TITLES[method]) for method in paper.CLOCS]
    found: list[Contest] = []
    for method, title in (("", FAMILY), *methods):
        for rival in _RIVALS:
            made = [
                Contest(title, _title(rival), *column, comparison, splits_ahead(results, *pair))
                for column in _COLUMNS
                if (pair := _pair(results, method, rival, column)) is not None
                and (comparison := compare_cells(results, *pair, every=every)) is not None
            ]
            corrected = correct([one.comparison for one in made])
            found += [
                replace(one, comparison=comparison)
                for one, comparison in zip(made, corrected, strict=True)
            ]
    return found


@dataclass(frozen=True)
class Survivors:
    """In how many columns each method is above or below each rival by more than chance."""

    rule: str  # what was tested, and how
    rivals: tuple[str, ...]
    rows: tuple[tuple[str, tuple[str, ...]], ...]  # (method, against each rival)
    words: tuple[str, ...] = ()  # what the first row means: where it is above or below each rival

    @property
    def intro(self) -> str:
        return f"In words, the {FAMILY} is:"

    def markdown(self) -> str:
        if not self.rows:
            return self.rule
        lines = [
            self.rule,
            "",
            f"| | {' | '.join(self.rivals)} |",
            f"| --- |{' --- |' * len(self.rivals)}",
            *(f"| {method} | {' | '.join(against)} |" for method, against in self.rows),
            *(("", self.intro, "") if self.words else ()),
            *(f"- {line}" for line in self.words),
        ]
        return "\n".join(lines)


def surviving(results: Results, *, every: bool = False) -> Survivors:
    """Which differences survive the test; `every` as for `compare_cells`."""
    made = contests(results, every=every)
    if not made:
        nothing = "No differences were tested: these results have no draws of the bootstrap."
        return Survivors(nothing, (), ())
    splits = sorted({one.comparison.splits for one in made})
    many = f"{splits[0]}" if len(splits) == 1 else f"{splits[0]} to {splits[-1]}"
    rivals = tuple(dict.fromkeys(one.rival for one in made))
    methods = dict.fromkeys(one.method for one in made)
    rows = tuple(
        (
            _capital(method) + (", chosen on validation patients" if method == FAMILY else ""),
            tuple(_counts(made, method, rival) for rival in rivals),
        )
        for method in methods
    )
    rule = f"{RULE} Columns have {many} patient split{'' if splits == [1] else 's'}."
    if _leave_splits_out(made):
        rule += f" {_FEWER}"
    rule += (
        " In how many columns each method is above or below its rival; in the others they cannot "
        "be told apart:"
    )
    return Survivors(rule, rivals, rows, tuple(_in_words(made)))


def write_comparisons(results: Results, out: Path) -> None:
    """Write all contests: `comparisons.json`, and `comparisons.md` with one table per method."""
    made = contests(results)
    rows = ",\n".join(json.dumps(one.json(), ensure_ascii=False, allow_nan=False) for one in made)
    write_atomic(out / FILE, f"[\n{rows}\n]\n".encode(), mode=PUBLIC)
    lines = ["# Comparisons", "", surviving(results).markdown(), ""]
    if _leave_splits_out(made):
        every = replace(surviving(results, every=True), rule=_EVERY, words=())
        lines += [every.markdown(), ""]
    for method in dict.fromkeys(one.method for one in made):
        lines += [
            f"## {_capital(method)}",
            "",
            "| against | column | difference | 95 % | p | p, Holm | splits × seeds | "
            "ahead on splits | |",
            "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |",
        ]
        for one in (one for one in made if one.method == method):
            c = one.comparison
            low, high = (signed(end) for end in c.ci95)
            lines.append(
                f"| {one.rival} | {one.column} | {signed(c.difference)} | {low} … {high} | "
                f"{c.p:.3f} | {c.p_holm:.3f} | {c.splits} × {c.seeds} | "
                f"{one.ahead[0]} of {one.ahead[1]} | {c.verdict} |"
            )
        lines.append("")
    write_atomic(out / "comparisons.md", "\n".join(lines).encode(), mode=PUBLIC)


def _leave_splits_out(made: Sequence[Contest]) -> bool:
    """Whether some have splits of too few seeds."""
    return any(one.ahead[1] > one.comparison.splits for one in made)


def _pair(
    results: Results, method: str, rival: str, column: tuple[CellTask, str, str]
) -> tuple[Cell, Cell] | None:
    own = _cell(method, column) if method else _best_on_validation(results, column)
    other = None if own is None else _rival(results, rival, column)
    return None if own is None or other is None else (own, other)


def _cell(method: str, column: tuple[CellTask, str, str]) -> Cell:
    task, dataset, downstream = column
    return Cell(Pretraining(method, dataset), downstream, task)


def _rival(results: Results, rival: str, column: tuple[CellTask, str, str]) -> Cell | None:
    if rival == "untrained":
        return stronger(results, untrained_beside(_cell("cmsc", column)))
    own = _cell(rival, column)
    known = own in grid("table-1" if column[0] == "linear" else "table-2")
    return better_schedule(results, own) if known else None


def _best_on_validation(results: Results, column: tuple[CellTask, str, str]) -> Cell | None:
    """The best of the family by its AUC on validation patients; None unless all have one."""
    scores: dict[Cell, float] = {}
    for method in paper.CLOCS:
        cell = _cell(method, column)
        values = (results.result(cell) or {}).get("auc_validation")
        if not values:
            return None
        scores[cell] = fmean(values)
    return max(scores, key=lambda cell: scores[cell])


def _title(rival: str) -> str:
    return _UNTRAINED if rival == "untrained" else paper.METHOD_TITLES[rival]


def _counts(made: Sequence[Contest], method: str, rival: str) -> str:
    verdicts = [
        one.comparison.verdict for one in made if (one.method, one.rival) == (method, rival)
    ]
    known = [
        f"{verdict} in {verdicts.count(verdict)}"
        for verdict in ("above", "below")
        if verdict in verdicts
    ]
    return f"{', '.join(known) or 'in none'} of {len(verdicts)}" if verdicts else "–"


def _in_words(made: Sequence[Contest]) -> Iterator[str]:
    """Where the best of the family is above or below each rival by more than chance."""
    own = [one for one in made if one.method == FAMILY]
    for rival in dict.fromkeys(one.rival for one in own):
        title = _IN_WORDS.get(rival, rival)
        places = {
            verdict: [one for one in own if (one.rival, one.comparison.verdict) == (rival, verdict)]
            for verdict in ("above", "below")
        }
        found = [f"{how} {title} {_places(columns)}" for how, columns in places.items() if columns]
        yield " and ".join(found) or f"not distinguishable from {title}"


def _places(columns: Sequence[Contest]) -> str:
    """'on A and B (linear) and from A to C (fine-tuned)'."""
    titles = paper.DATASET_TITLES
    linear = [titles[one.downstream] for one in columns if one.task == "linear"]
    tuned = [
        f"from {titles[one.pretrain]} to {titles[one.downstream]}"
        for one in columns
        if one.task == "finetune"
    ]
    parts = [f"on {_and(linear)} (linear)"] if linear else []
    return " and ".join([*parts, f"{_and(tuned)} (fine-tuned)"] if tuned else parts)


def _and(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]
