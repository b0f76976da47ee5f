"""What the results say, in sentences and in one small table; computed, so that they stay true."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from clocs.experiments import paper
from clocs.experiments.additions import better_schedule
from clocs.experiments.cells import encoder_for
from clocs.experiments.claims import Claim
from clocs.experiments.grid import Cell, CellTask, Pretraining, paper_values
from clocs.experiments.results import Results, Value, papers
from clocs.experiments.tables import signed

RIVALS = ("mtssl", "byol", "simclr")
_UNTRAINED = ("random", "random-bn")
NOT_RUN = "not run"


@dataclass(frozen=True)
class Column:
    """One column of table 1 or 2: E = 128, F = 0.5, four leads."""

    pretrain: str
    downstream: str

    @property
    def title(self) -> str:
        name = paper.DATASET_TITLES
        if self.pretrain == self.downstream:
            return f"linear layer, {name[self.pretrain]}"
        return f"fine-tuned, {name[self.pretrain]} → {name[self.downstream]}"

    def cell(self, method: str) -> Cell:
        linear = self.pretrain == self.downstream
        task: CellTask = "linear" if linear else "finetune"
        return Cell(encoder_for(method, self.pretrain, self.downstream), self.downstream, task)


LINEAR = tuple(Column(dataset, dataset) for dataset in paper.PRETRAIN)
TRANSFER = tuple(Column(*pair) for pair in paper.PAIRS)


def findings(results: Results, claims: Sequence[Claim]) -> list[str]:
    """Five sentences: linear, transfer, beside the paper, claims, patients."""
    return [
        _linear(results),
        _transfer(results),
        _beside_the_paper(results),
        _claims(claims),
        _patients(results),
    ]


def best(results: Results, column: Column, methods: Iterable[str]) -> tuple[str, Value] | None:
    """The best of these methods in a column, by probabilities; None unless all have run."""
    cells = {method: better_schedule(results, column.cell(method)) for method in methods}
    found = [(method, results.ours(cell)) for method, cell in cells.items()]
    known = [(method, value) for method, value in found if value is not None]
    return max(known, key=lambda one: one[1].mean) if known and len(known) == len(found) else None


def margins(results: Results) -> dict[Column, float]:
    """The best of CMSC, CMLC and CMSMLC less the best rival, for the columns that have both."""
    found = {}
    for column in (*LINEAR, *TRANSFER):
        ours, theirs = (best(results, column, methods) for methods in (paper.CLOCS, RIVALS))
        if ours is not None and theirs is not None:
            found[column] = ours[1].mean - theirs[1].mean
    return found


def _linear(results: Results) -> str:
    groups = [
        [best(results, column, methods) for column in LINEAR]
        for methods in (paper.CLOCS, RIVALS, _UNTRAINED)
    ]
    if None in [one for group in groups for one in group]:
        return "A linear layer on frozen embeddings (table 1) has not been scored for all methods."
    ours, rivals, untrained = (
        " and ".join(f"{one[1].mean:.3f} ({paper.METHOD_TITLES[one[0]]})" for one in group if one)
        for group in groups
    )
    return (
        "With half of the labels, a linear layer on frozen embeddings reaches a test AUC of "
        f"{ours} on Chapman and PhysioNet 2020; the best other method without labels reaches "
        f"{rivals}, the better of two untrained encoders {untrained}."
    )


def _transfer(results: Results) -> str:
    found = {column: m for column, m in margins(results).items() if column in TRANSFER}
    if len(found) < len(TRANSFER):
        return "Fine-tuning on another dataset (table 2) has not been scored for all methods."
    won = [column for column in found if found[column] > 0]
    lost = sorted((column for column in found if column not in won), key=lambda c: found[c])
    where = "; it is below in " + ", ".join(
        f"{column.title.partition(', ')[2]} ({signed(found[column])}, "
        f"{paper.METHOD_TITLES[_best_rival(results, column)]})"
        for column in lost
    )
    return (
        "Fine-tuned on another dataset, the best of CMSC, CMLC and CMSMLC is above the best of "
        f"MT-SSL, BYOL and SimCLR in {len(won)} of {len(found)} transfers "
        f"(by {signed(min(found.values()))} to {signed(max(found.values()))})"
        f"{where if lost else ''}."
    )


def _best_rival(results: Results, column: Column) -> str:
    found = best(results, column, RIVALS)
    return found[0] if found else ""


def _beside_the_paper(results: Results) -> str:
    cells = [cell for cell in paper_values() if results.difference(cell) is not None]
    if not cells:
        return "None of the paper's printed results has been computed."
    by_print = [d for cell in cells if (d := results.difference(cell)) is not None]
    by_probability = [
        ours.mean - theirs.mean
        for cell in cells
        if (ours := results.ours(cell)) and (theirs := papers(cell))
    ]
    near = sum(abs(d) <= 0.05 for d in by_print)
    return (
        f"Of {len(cells):,} printed results computed, {near:,} are within 0.05 of the paper's; the "
        f"mean difference is {signed(fmean(by_print))} by logits, as the paper computed its "
        f"multi-class AUCs, and {signed(fmean(by_probability))} by probabilities."
    )


def _claims(claims: Sequence[Claim]) -> str:
    judged = [claim for claim in claims if claim.holds is not None]
    if not judged:
        return "None of the paper's claims could be checked."
    held = sum(claim.holds is True for claim in judged)
    left = len(claims) - len(judged)
    missing = f"; {left} could not be checked" if left else ""
    return f"Of {len(judged)} claims of the paper that could be checked, {held} hold{missing}."


def _patients(results: Results) -> str:
    def separability(method: str) -> float | None:
        encoder = Pretraining(method, "physionet2020")
        result = results.result(Cell(encoder, "physionet2020", "distances", 1.0))
        return None if result is None else fmean(result["separability"])

    cmsc, simclr = separability("cmsc"), separability("simclr")
    if cmsc is None or simclr is None:
        return "The distances between embeddings of patients have not been measured."
    return (
        f"Two embeddings of one patient are closer than two of different patients with probability "
        f"{cmsc:.3f} for CMSC and {simclr:.3f} for SimCLR (PhysioNet 2020, 0.5 is chance); every "
        "patient has one recording there, so this compares parts of the same recording."
    )


def small_table(results: Results) -> str:
    """The README's table, as Markdown: the strongest rival, and the column with our worst margin.

    By probabilities; the last two rows are CMSC's as the paper computes it, and as printed.
    """
    found = margins(results)
    left = [column for column in TRANSFER if column in found] or list(TRANSFER)
    win, loss = (pick(left, key=lambda c: found.get(c, 0.0)) for pick in (max, min))
    columns = (*LINEAR, *dict.fromkeys((win, loss)))
    untrained = {c: best(results, c, _UNTRAINED) for c in columns}
    rows: dict[str, list[Value | None]] = {
        "untrained (the better of two)": [one[1] if one else None for one in untrained.values()],
        **{_title(m): [results.ours(c.cell(m)) for c in columns] for m in (*RIVALS, *paper.CLOCS)},
    }
    best_of = [
        max((v.mean for r in rows.values() if (v := r[i])), default=0.0)
        for i in range(len(columns))
    ]
    lines = [
        f"| | {' | '.join(column.title for column in columns)} |",
        f"| --- |{' ---: |' * len(columns)}",
    ]
    for title, values in rows.items():
        texts = [
            NOT_RUN if value is None else f"**{value}**" if value.mean == top else str(value)
            for value, top in zip(values, best_of, strict=True)
        ]
        lines.append(f"| {title} | {' | '.join(texts)} |")
    asked: dict[str, Callable[[Cell], Value | None]] = {
        "CMSC, AUC of logits": results.beside,
        "CMSC, as printed in the paper": papers,
    }
    for title, look in asked.items():
        values = [look(column.cell("cmsc")) for column in columns]
        lines.append(f"| {title} | {' | '.join(str(v) if v else NOT_RUN for v in values)} |")
    return "\n".join(lines)


def _title(method: str) -> str:
    return paper.METHOD_TITLES[method]
