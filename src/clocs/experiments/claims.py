"""Claims: what the paper's text says, what its tables say, and what our runs say.

Each claim is a function of a lookup (a cell's AUC); the same function counts in the paper's tables
and in ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from clocs.evaluation.comparison import Comparison, correct
from clocs.experiments import paper
from clocs.experiments.additions import better_schedule
from clocs.experiments.grid import (
    CHAINS,
    TRANSFERS,
    Cell,
    Pretraining,
    grid,
    perturbed,
)
from clocs.experiments.paired import compare_cells
from clocs.experiments.results import Results, Value, papers

Lookup = Callable[[Cell], float | None]


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper in three columns."""

    about: str
    text: str  # what the paper's text says
    recount: str  # what its tables say; empty if it prints no numbers
    ours: str  # what our runs say, or 'not run'
    holds: bool | None  # whether our runs agree with the claim; None if they do not suffice


DISTINGUISHABLE = (
    "Distinguishable: above by the paired test over seeds, patients and patient splits. Where a "
    "claim takes the best of several methods on test patients, p is multiplied by their number; "
    "Holm's correction covers the claim's comparisons of one E and F. This is stricter than the "
    "comparisons of tables 1 and 2, where the method is chosen on validation patients."
)


class _Ours(float):
    """An AUC of ours that knows where it comes from, so that two can be tested."""

    def __new__(cls, value: float, cell: Cell, results: Results, among: int = 1) -> _Ours:
        return super().__new__(cls, value)

    def __init__(self, value: float, cell: Cell, results: Results, among: int = 1) -> None:
        """among: of how many methods it was chosen as the best, on the test patients."""
        self.cell, self.results, self.among = cell, results, among

    def against(self, other: _Ours) -> Comparison | None:
        """The paired test, its p corrected for choosing this one of several."""
        found = compare_cells(self.results, self.cell, other.cell)
        return None if found is None else replace(found, p=min(1.0, found.p * self.among))


@dataclass(frozen=True)
class _Count:
    """In how many of the possible comparisons a claim holds."""

    held: int
    made: int
    planned: int
    tested: int = 0  # comparisons that have draws
    sure: int = 0  # those in which the paired test finds the first above the second

    def __str__(self) -> str:
        if not self.made:
            return "not run"
        missing = self.planned - self.made
        words = f"{self.held} of {self.made}" + (f" ({missing} not run)" if missing else "")
        if not self.tested:
            return words
        some = "" if self.tested == self.made else f" ({self.tested} tested)"
        return f"{words}, of which distinguishable: {self.sure}{some}"

    @property
    def all_hold(self) -> bool | None:
        return self.held == self.made if self.made == self.planned else None


def claims(results: Results) -> list[Claim]:
    """All of them, in the order of the paper."""

    def mean(value: Value | None) -> float | None:
        return None if value is None else value.mean

    def ours(cell: Cell) -> float | None:
        cell = better_schedule(results, cell)
        value = results.ours(cell)
        return None if value is None else _Ours(value.mean, cell, results)

    def theirs(cell: Cell) -> float | None:
        return mean(papers(cell))

    return [
        _worst_cmsc(ours),
        *_table_1(ours, theirs, lambda cell: mean(results.beside(cell))),
        _all_linear(ours, theirs),
        *_table_2(ours, theirs),
        *(_above_simclr(*transfers, ours, theirs) for transfers in _TRANSFERS),
        *_few_labels(results),
        *_distances(results),
    ]


_WHO = {"any of the three": paper.CLOCS, "CMSC": ("cmsc",)}
_TRANSFERS = (
    *(("any of the three", 4, e, text) for e, text in ((32, 18), (64, 20), (128, 21), (256, 16))),
    *(("CMSC", 12, e, text) for e, text in ((32, 22), (64, 21), (128, 24), (256, 22))),
)


def _worst_cmsc(ours: Lookup) -> Claim:
    low = _of_all(min, [ours(perturbed("cmsc", chain)) for chain in CHAINS])
    high = _of_all(max, [ours(perturbed("simclr", chain)) for chain in CHAINS])
    about = "Perturbations: the worst CMSC is above the best SimCLR (PhysioNet 2020, linear)"
    if low is None or high is None:
        return Claim(about, "0.661 vs 0.636", "", "not run", None)
    return Claim(about, "0.661 vs 0.636", "", f"{low:.3f} vs {high:.3f}", low > high)


def _table_1(ours: Lookup, theirs: Lookup, as_printed: Lookup) -> Iterable[Claim]:
    """as_printed: ours by the AUC that the paper prints."""

    def at(method: str, dataset: str) -> Cell:
        return Cell(Pretraining(method, dataset), dataset, "linear")

    def count(value: Lookup) -> _Count:
        return _above(
            (value(at("cmsc", dataset)), value(at(other, dataset)))
            for dataset in paper.PRETRAIN
            for other in ("byol", "simclr")
        )

    about = "Linear (table 1): CMSC is above BYOL and above SimCLR on both datasets"
    yield _counted(about, "4 of 4", count(theirs), count(ours))

    def gain(value: Lookup) -> float | None:
        cmsc, simclr = value(at("cmsc", "chapman")), value(at("simclr", "chapman"))
        return None if cmsc is None or simclr is None else cmsc - simclr

    mine, of_logits, printed = gain(ours), gain(as_printed), gain(theirs)
    yield Claim(
        "Linear (table 1): CMSC's gain over SimCLR on Chapman",
        "+0.158",
        f"{printed:+.3f}" if printed is not None else "",
        "not run" if mine is None else f"{mine:+.3f}, by logits as printed {of_logits:+.3f}",
        None if mine is None else mine > 0,
    )
    beats_random = _above(
        (ours(at(m, d)), _of_all(max, [ours(at("random", d)), ours(at("random-bn", d))]))
        for d in paper.PRETRAIN
        for m in ("mtssl", "byol", "simclr", *paper.CLOCS)
    )
    about = "Linear: pre-trained encoders are above the stronger of the two random ones"
    yield _counted(about, "not reported", None, beats_random)


def _all_linear(ours: Lookup, theirs: Lookup) -> Claim:
    places = [cell for cell in grid("appendix-linear") if cell.pretraining.method == "simclr"]

    def count(value: Lookup) -> _Count:
        return _above(
            (_of_all(min, [value(_with(cell, m)) for m in paper.CLOCS]), value(cell))
            for cell in places
        )

    about = "Linear (appendix): CMSC, CMLC and CMSMLC all beat SimCLR"
    return _counted(about, "100 %", count(theirs), count(ours))


def _table_2(ours: Lookup, theirs: Lookup) -> Iterable[Claim]:
    def at(method: str, dataset: str, downstream: str) -> Cell:
        return Cell(Pretraining(method, dataset), downstream, "finetune")

    def best(value: Lookup) -> _Count:
        return _above(
            (_of_all(max, [value(at("cmsc", *t)), value(at("cmsmlc", *t))]), value(at(b, *t)))
            for t in paper.PAIRS
            for b in ("byol", "simclr")
        )

    def lowest(value: Lookup) -> _Count:
        return _above(
            (value(at(m, *t)), value(at("cmlc", *t)))
            for t in paper.PAIRS
            for m in ("cmsc", "cmsmlc")
        )

    about = "Transfer (table 2): CMSC or CMSMLC is above BYOL and above SimCLR"
    yield _counted(about, "12 of 12", best(theirs), best(ours))
    about = "Transfer (table 2): CMLC is below CMSC and below CMSMLC"
    yield _counted(about, "“consistently”", lowest(theirs), lowest(ours))


def _above_simclr(who: str, leads: int, e: int, text: int, ours: Lookup, theirs: Lookup) -> Claim:
    """who: a key of `_WHO`; text: how many of the 24 transfers the paper claims."""
    cells = [
        cell
        for cell in grid("appendix-transfer")
        if (cell.pretraining.method, cell.pretraining.leads) == ("simclr", leads)
        and cell.pretraining.embedding_dim == e
    ]

    def count(value: Lookup) -> _Count:
        return _above(
            (_of_all(max, [value(_with(cell, m)) for m in _WHO[who]]), value(cell))
            for cell in cells
        )

    mine = count(ours)
    about = f"Transfer, {leads} leads, E = {e}: {who} is above SimCLR"
    found = _counted(about, f"{text} of 24", count(theirs), mine)
    return replace(found, holds=None if found.holds is None else mine.held >= text)


def _few_labels(results: Results) -> Iterable[Claim]:
    for dataset, downstream in TRANSFERS:
        few, every = Pretraining("cmsc", dataset), Pretraining("random", downstream)
        printed = [
            papers(Cell(few, downstream, "finetune", 0.25)),
            papers(Cell(every, downstream, "finetune", 1.0)),
        ]
        curves = [
            _mean_curve(results.result(Cell(encoder, downstream, "curve", fraction)))
            for encoder, fraction in ((few, 0.25), (every, 1.0))
        ]
        finding, holds = "not run", None
        if all(curves):
            above = sum(a > b for a, b in zip(*curves, strict=True))
            finding = (
                f"{curves[0][-1]:.3f} vs {curves[1][-1]:.3f} on validation after the last epoch; "
                f"above in {above} of {len(curves[0])} epochs"
            )
            holds = curves[0][-1] > curves[1][-1]
        yield Claim(
            f"{paper.DATASET_TITLES[dataset]} → {paper.DATASET_TITLES[downstream]}: CMSC with 25 % "
            "of the labels is above random with all labels",
            "above during training and at its end, on validation",
            " vs ".join(f"{value.mean:.3f}" for value in printed if value) + " on test",
            finding,
            holds,
        )


def _mean_curve(result: dict[str, Any] | None) -> list[float]:
    """The validation AUC after each epoch, mean over seeds; empty if there is none."""
    if result is None or not result.get("curve"):
        return []
    return [fmean(values) for values in zip(*result["curve"], strict=True)]


def _distances(results: Results) -> Iterable[Claim]:
    def at(method: str) -> dict[str, list[float]] | None:
        encoder = Pretraining(method, "physionet2020")
        return results.result(Cell(encoder, "physionet2020", "distances", 1.0))

    cmsc, simclr = at("cmsc"), at("simclr")
    for what, key, sign in (
        ("the mean distance within a patient is smaller", "intra_mean", -1),
        ("patients are more separable", "separability", 1),
    ):
        finding, holds = "not run", None
        if cmsc is not None and simclr is not None:
            a, b = (sum(found[key]) / len(found[key]) for found in (cmsc, simclr))
            finding, holds = f"{a:.3f} vs {b:.3f}", sign * (a - b) > 0
        about = f"Patients (PhysioNet 2020): with CMSC {what} than with SimCLR"
        yield Claim(about, "yes", "", finding, holds)


def _with(cell: Cell, method: str) -> Cell:
    return replace(cell, pretraining=replace(cell.pretraining, method=method))


def _of_all(pick: Callable[[Iterable[float]], float], values: list[float | None]) -> float | None:
    """The lowest or highest; None if one is unknown."""
    known = [v for v in values if v is not None]
    if len(known) < len(values):
        return None
    chosen = pick(known)
    if isinstance(chosen, _Ours):
        return _Ours(chosen, chosen.cell, chosen.results, among=len(known))
    return chosen


def _above(pairs: Iterable[tuple[float | None, float | None]]) -> _Count:
    """How often the first of a pair is above the second; Holm's correction over its columns."""
    planned = list(pairs)
    held = [a > b for a, b in planned if a is not None and b is not None]
    families: dict[tuple[int, int, float], list[Comparison]] = {}  # tested together: one E and F
    for a, b in planned:
        if isinstance(a, _Ours) and isinstance(b, _Ours) and (one := a.against(b)) is not None:
            p = a.cell.pretraining
            families.setdefault((p.leads, p.embedding_dim, a.cell.fraction), []).append(one)
    found = [one for family in families.values() for one in correct(family)]
    sure = sum(one.better for one in found)
    return _Count(sum(held), len(held), len(planned), len(found), sure)


def _counted(about: str, text: str, theirs: _Count | None, ours: _Count) -> Claim:
    return Claim(about, text, str(theirs or ""), str(ours), ours.all_hold)
