"""Claims: what the paper's text says, what its tables say, and what our runs say.

Each claim is a function of a lookup (a cell's AUC); the same function counts in the paper's tables
and in ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from clocs.experiments import paper
from clocs.experiments.grid import (
    PERTURBATIONS,
    TRANSFERS,
    Cell,
    Pretraining,
    grid,
)
from clocs.experiments.results import Results, papers

Lookup = Callable[[Cell], float | None]


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper in three columns.

    Attributes:
        about: What is claimed.
        text: What the paper's text says.
        recount: What its tables say; empty if it prints no numbers.
        ours: What our runs say, or 'not run'.
        holds: Whether our runs agree with the claim; None if they do not suffice.
    """

    about: str
    text: str
    recount: str
    ours: str
    holds: bool | None


@dataclass(frozen=True)
class _Count:
    """In how many of the possible comparisons a claim holds."""

    held: int
    made: int
    planned: int

    def __str__(self) -> str:
        if not self.made:
            return "not run"
        missing = self.planned - self.made
        return f"{self.held} of {self.made}" + (f" ({missing} not run)" if missing else "")

    @property
    def all_hold(self) -> bool | None:
        return self.held == self.made if self.made == self.planned else None


def claims(results: Results) -> list[Claim]:
    """All of them, in the order of the paper."""

    def ours(cell: Cell) -> float | None:
        value = results.ours(cell)
        return None if value is None else value.mean

    def theirs(cell: Cell) -> float | None:
        value = papers(cell)
        return None if value is None else value.mean

    return [
        _worst_cmsc(ours),
        *_table_1(ours, theirs),
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
    def at(method: str, chain: str) -> Cell:
        own = method == "simclr" and chain == "gaussian"
        encoder = Pretraining(method, "physionet2020", perturb=None if own else chain)
        return Cell(encoder, "physionet2020", "linear")

    worst = [ours(at("cmsc", chain)) for chain in PERTURBATIONS]
    best = [ours(at("simclr", chain)) for chain in PERTURBATIONS]
    known = [v for v in (*worst, *best) if v is not None]
    finding, holds = "not run", None
    if len(known) == 2 * len(PERTURBATIONS):
        low, high = min(known[: len(worst)]), max(known[len(worst) :])
        finding, holds = f"{low:.3f} vs {high:.3f}", low > high
    return Claim(
        "Perturbations: the worst CMSC is above the best SimCLR (PhysioNet 2020, linear)",
        "0.661 vs 0.636",
        "",
        finding,
        holds,
    )


def _table_1(ours: Lookup, theirs: Lookup) -> Iterable[Claim]:
    def at(method: str, dataset: str) -> Cell:
        return Cell(Pretraining(method, dataset), dataset, "linear")

    def count(value: Lookup) -> _Count:
        pairs = [
            (value(at("cmsc", dataset)), [value(at(other, dataset))])
            for dataset in paper.PRETRAIN
            for other in ("byol", "simclr")
        ]
        return _above(pairs)

    yield Claim(
        "Linear (table 1): CMSC is above BYOL and above SimCLR on both datasets",
        "4 of 4",
        str(count(theirs)),
        str(count(ours)),
        count(ours).all_hold,
    )

    def gain(value: Lookup) -> float | None:
        cmsc, simclr = value(at("cmsc", "chapman")), value(at("simclr", "chapman"))
        return None if cmsc is None or simclr is None else cmsc - simclr

    mine, printed = gain(ours), gain(theirs)
    yield Claim(
        "Linear (table 1): CMSC's gain over SimCLR on Chapman",
        "+0.158",
        f"{printed:+.3f}" if printed is not None else "",
        "not run" if mine is None else f"{mine:+.3f}",
        None if mine is None else mine > 0,
    )

    def beats_random(value: Lookup) -> _Count:
        pairs = [
            (value(at(m, d)), [value(at("random", d)), value(at("random-bn", d))])
            for d in paper.PRETRAIN
            for m in ("mtssl", "byol", "simclr", *paper.CLOCS)
        ]
        return _above(pairs)

    yield Claim(
        "Linear: pre-trained encoders are above the stronger of the two random ones",
        "not reported",
        "",
        str(beats_random(ours)),
        beats_random(ours).all_hold,
    )


def _all_linear(ours: Lookup, theirs: Lookup) -> Claim:
    places = [cell for cell in grid("appendix-linear") if cell.pretraining.method == "simclr"]

    def count(value: Lookup) -> _Count:
        held = made = 0
        for cell in places:
            three = [value(_with(cell, method)) for method in paper.CLOCS]
            base = value(cell)
            known = [v for v in three if v is not None]
            if base is not None and len(known) == len(three):
                made += 1
                held += min(known) > base
        return _Count(held, made, len(places))

    return Claim(
        "Linear (appendix): CMSC, CMLC and CMSMLC all beat SimCLR",
        "100 %",
        str(count(theirs)),
        str(count(ours)),
        count(ours).all_hold,
    )


def _table_2(ours: Lookup, theirs: Lookup) -> Iterable[Claim]:
    def at(method: str, dataset: str, downstream: str) -> Cell:
        return Cell(Pretraining(method, dataset), downstream, "finetune")

    def best(value: Lookup) -> _Count:
        return _above(
            [
                (_max(value(at("cmsc", *t)), value(at("cmsmlc", *t))), [value(at(b, *t))])
                for t in paper.PAIRS
                for b in ("byol", "simclr")
            ]
        )

    def lowest(value: Lookup) -> _Count:
        return _above([(value(at(m, *t)), [value(at("cmlc", *t))])
                       for t in paper.PAIRS for m in ("cmsc", "cmsmlc")])  # fmt: skip

    yield Claim(
        "Transfer (table 2): CMSC or CMSMLC is above BYOL and above SimCLR",
        "12 of 12",
        str(best(theirs)),
        str(best(ours)),
        best(ours).all_hold,
    )
    yield Claim(
        "Transfer (table 2): CMLC is below CMSC and below CMSMLC",
        "“consistently”",
        str(lowest(theirs)),
        str(lowest(ours)),
        lowest(ours).all_hold,
    )


def _above_simclr(who: str, leads: int, e: int, text: int, ours: Lookup, theirs: Lookup) -> Claim:
    """who: a key of `_WHO`; text: how many of the 24 transfers the paper claims."""
    cells = _simclr_transfers(leads=leads, embedding_dim=e)

    def count(value: Lookup) -> _Count:
        return _above(
            [(_max(*(value(_with(cell, m)) for m in _WHO[who])), [value(cell)]) for cell in cells]
        )

    mine = count(ours)
    return Claim(
        f"Transfer, {leads} leads, E = {e}: {who} is above SimCLR",
        f"{text} of 24",
        str(count(theirs)),
        str(mine),
        mine.held >= text if mine.all_hold is not None else None,
    )


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
        yield Claim(
            f"Patients (PhysioNet 2020): with CMSC {what} than with SimCLR",
            "yes",
            "",
            finding,
            holds,
        )


def _simclr_transfers(*, leads: int, embedding_dim: int) -> list[Cell]:
    return [
        cell
        for cell in grid("appendix-transfer")
        if cell.pretraining.method == "simclr"
        and cell.pretraining.leads == leads
        and cell.pretraining.embedding_dim == embedding_dim
    ]


def _with(cell: Cell, method: str) -> Cell:
    p = cell.pretraining
    encoder = Pretraining(method, p.dataset, p.leads, p.embedding_dim)
    return Cell(encoder, cell.downstream, cell.task, cell.fraction, cell.split_seed)


def _max(*values: float | None) -> float | None:
    known = [v for v in values if v is not None]
    return max(known) if len(known) == len(values) else None


def _above(pairs: list[tuple[float | None, list[float | None]]]) -> _Count:
    """How often a value is above all those that it is compared with."""
    held = made = 0
    for value, others in pairs:
        known = [v for v in others if v is not None]
        if value is not None and len(known) == len(others):
            made += 1
            held += all(value > v for v in known)
    return _Count(held, made, len(pairs))
