"""Claims: what the paper's text says, what its tables say, and what our runs say.

Each claim is a function of a lookup (a cell's AUC); the same function counts in the paper's tables
and in ours. Whether it holds is decided by tests of its comparisons.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import comb
from statistics import fmean
from typing import Literal, NamedTuple

from clocs.evaluation.bootstrap import Comparison, correct
from clocs.experiments import paper
from clocs.experiments.comparisons import apart, compare_cells
from clocs.experiments.grid import CHAINS, TRANSFERS, Cell, Pretraining, cell_for, grid, perturbed
from clocs.experiments.results import Results, Value, over_seeds_alone, papers

RULE: str = paper.read_toml("report.toml")["claims"]
Verdict = Literal["holds", "does not hold", "undecided", "not run"]
_NOT_RUN: Literal["not run"] = "not run"
# transfers above SimCLR: who, leads, E, and how many of 24 the paper claims
_ABOVE_SIMCLR = (
    *(("any of the three", 4, e, text) for e, text in ((32, 18), (64, 20), (128, 21), (256, 16))),
    *(("CMSC", 12, e, text) for e, text in ((32, 22), (64, 21), (128, 24), (256, 22))),
)


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper, and what speaks for it."""

    about: str
    text: str  # what the paper's text says
    recount: str  # what its tables say; empty if it prints no numbers
    ours: str  # what our runs say, or 'not run'
    tested: str = ""  # how the comparisons come out by test
    exchangeable: str = ""  # how many would be above if methods did not matter
    verdict: Verdict = _NOT_RUN


class Scored(NamedTuple):
    """An AUC, printed or ours."""

    auc: float
    cell: Cell
    among: int = 1  # of how many methods it was chosen as the best, on the test patients


def claims(results: Results) -> list[Claim]:
    """All of them, in the order of the paper."""
    counted, tuned = partial(_counted, results), partial(cell_for, "finetune")
    baselines = ("byol", "simclr")
    appendix = {
        name: [cell for cell in grid(name) if cell.pretraining.method == "simclr"]
        for name in ("appendix-linear", "appendix-transfer")
    }
    found = [
        _worst_and_best(results),
        counted(
            "Linear (table 1): CMSC is above BYOL and above SimCLR on both datasets",
            "4 of 4",
            [([_linear("cmsc", d)], [_linear(b, d)]) for d in paper.PRETRAIN for b in baselines],
        ),
        _gain(results),
        counted(
            "Linear: pre-trained encoders are above the stronger of the two random ones",
            "not reported",
            [
                ([_linear(method, d)], [_linear(random, d) for random in paper.UNTRAINED])
                for d in paper.PRETRAIN
                for method in ("mtssl", *baselines, *paper.CLOCS)
            ],
        ),
        counted(
            "Linear (appendix): CMSC, CMLC and CMSMLC all beat SimCLR",
            "100 %",
            [
                ([_with(cell, m) for m in paper.CLOCS], [cell])
                for cell in appendix["appendix-linear"]
            ],
            pick=min,
        ),
        counted(
            "Transfer (table 2): CMSC or CMSMLC is above BYOL and above SimCLR",
            "12 of 12",
            [
                ([tuned("cmsc", *pair), tuned("cmsmlc", *pair)], [tuned(b, *pair)])
                for pair in paper.PAIRS
                for b in baselines
            ],
        ),
        counted(
            "Transfer (table 2): CMLC is below CMSC and below CMSMLC",
            "“consistently”",
            [
                ([tuned(method, *pair)], [tuned("cmlc", *pair)])
                for pair in paper.PAIRS
                for method in ("cmsc", "cmsmlc")
            ],
        ),
    ]
    for who, leads, e, text in _ABOVE_SIMCLR:
        methods = ("cmsc",) if who == "CMSC" else paper.CLOCS
        pairs = [
            ([_with(cell, method) for method in methods], [cell])
            for cell in appendix["appendix-transfer"]
            if (cell.pretraining.leads, cell.pretraining.embedding_dim) == (leads, e)
        ]
        about = f"Transfer, {leads} leads, E = {e}: {who} is above SimCLR"
        found.append(counted(about, f"{text} of 24", pairs, needed=text))
    found += [_few_labels(results, *pair) for pair in TRANSFERS]
    return [*found, *_distances(results)]


def _linear(method: str, dataset: str) -> Cell:
    return cell_for("linear", method, dataset, dataset)


def _with(cell: Cell, method: str) -> Cell:
    return replace(cell, pretraining=replace(cell.pretraining, method=method))


def _counted(
    results: Results,
    about: str,
    text: str,
    pairs: Sequence[tuple[Sequence[Cell], Sequence[Cell]]],
    *,
    pick: Callable[..., Scored] = max,
    needed: int | None = None,
) -> Claim:
    """In how many pairs the best (or worst) of the first cells is above the best of the second.

    All of them are needed, or as many as the paper claims.
    """
    printed = [(_best(_scored, a, pick), _best(_scored, b)) for a, b in pairs]
    recount = sum(a.auc > b.auc for a, b in printed if a and b)
    look = partial(_scored, look=results.ours)
    ours = [(_best(look, a, pick), _best(look, b)) for a, b in pairs]
    made = [(a, b) for a, b in ours if a and b]
    held, missing = sum(a.auc > b.auc for a, b in made), len(pairs) - len(made)
    compared = sum(bool(a and b) for a, b in printed)
    claim = Claim(about, text, f"{recount} of {compared}" if compared else "", _NOT_RUN)
    if not made:
        return claim
    verdicts = _tested(results, made)
    above, below = verdicts.count("above"), verdicts.count("below")
    needed = len(pairs) if needed is None else needed
    told: Verdict = "does not hold" if len(pairs) - below < needed else "undecided"
    chance = sum(_if_exchangeable(len(a), len(b), pick) for a, b in pairs) * len(made) / len(pairs)
    return replace(
        claim,
        ours=f"{held} of {len(made)}" + (f" ({missing} not run)" if missing else ""),
        tested=f"{above} above, {below} below of {len(verdicts)}"
        if len(pairs) > 1
        else ", ".join(verdicts),
        exchangeable=f"{chance:.0f} of {len(made)}" if len(pairs) > 1 else "",
        verdict="holds" if above >= needed else told,
    )


def _tested(results: Results, made: Sequence[tuple[Scored, Scored]]) -> list[str]:
    """'above', 'below' or 'not distinguishable' of each pair that can be tested."""
    families: dict[tuple[int, int, float], list[Comparison]] = {}  # tested together: one E and F
    for a, b in made:
        one = compare_cells(results, a.cell, b.cell)
        ends = [results.interval(cell) for cell in (a.cell, b.cell)]
        if one is None and ends[0] is not None and ends[1] is not None:
            one = apart((a.auc, *ends[0]), (b.auc, *ends[1]))
        if one is not None:
            p = a.cell.pretraining
            corrected = replace(one, p=min(1.0, one.p * a.among * b.among))
            families.setdefault((p.leads, p.embedding_dim, a.cell.fraction), []).append(corrected)
    return [one.verdict for family in families.values() for one in correct(family)]


def _if_exchangeable(first: int, second: int, pick: Callable[..., Scored]) -> float:
    """The probability that the best, or worst, of the first is above the best of the second."""
    if pick is min:
        return 1 / comb(first + second, first)
    return first / (first + second)


def _scored(cell: Cell, look: Callable[[Cell], Value | None] = papers) -> Scored | None:
    value = look(cell)
    return None if value is None else Scored(value.mean, cell)


def _best(
    look: Callable[[Cell], Scored | None],
    cells: Sequence[Cell],
    pick: Callable[..., Scored] = max,
) -> Scored | None:
    """The highest (or lowest); None if one is unknown."""
    known = [value for cell in cells if (value := look(cell)) is not None]
    if len(known) < len(cells):
        return None
    chosen: Scored = pick(known, key=lambda one: one.auc)
    return chosen._replace(among=len(known))


def _worst_and_best(results: Results) -> Claim:
    chains = [[perturbed(method, chain) for chain in CHAINS] for method in ("cmsc", "simclr")]
    look = partial(_scored, look=results.ours)
    low, high = _best(look, chains[0], min), _best(look, chains[1])
    about = "Perturbations: the worst CMSC is above the best SimCLR (PhysioNet 2020, linear)"
    claim = _counted(results, about, "0.661 vs 0.636", [(chains[0], chains[1])], pick=min)
    return replace(claim, ours=f"{low.auc:.3f} vs {high.auc:.3f}") if low and high else claim


def _gain(results: Results) -> Claim:
    pair = _linear("cmsc", "chapman"), _linear("simclr", "chapman")

    def gain(look: Callable[[Cell], Value | None]) -> float | None:
        cmsc, simclr = map(look, pair)
        return None if cmsc is None or simclr is None else cmsc.mean - simclr.mean

    printed, ours, by_logits = gain(papers), gain(results.ours), gain(results.beside)
    about = "Linear (table 1): CMSC's gain over SimCLR on Chapman"
    claim = _counted(results, about, "+0.158", [([pair[0]], [pair[1]])])
    claim = replace(claim, recount=f"{printed:+.3f}")
    if ours is None:
        return claim
    return replace(claim, ours=f"{ours:+.3f}, by logits as printed {by_logits:+.3f}")


def _few_labels(results: Results, dataset: str, downstream: str) -> Claim:
    """The paper's claim is of validation patients; the test is of the same trainings, on test."""
    few, every = Pretraining("cmsc", dataset), Pretraining("random", downstream)
    compared = ((few, 0.25), (every, 1.0))
    printed = [papers(Cell(encoder, downstream, "finetune", f)) for encoder, f in compared]
    cells = [Cell(encoder, downstream, "curve", f) for encoder, f in compared]
    claim = _counted(
        results,
        f"{paper.DATASET_TITLES[dataset]} → {paper.DATASET_TITLES[downstream]}: CMSC with 25 % "
        "of the labels is above random with all labels",
        "above during training and at its end, on validation",
        [(cells[:1], cells[1:])],
    )
    recount = " vs ".join(f"{value.mean:.3f}" for value in printed if value) + " on test"
    # the validation AUC after each epoch, mean over seeds
    curves = [
        [fmean(values) for values in zip(*one["curve"], strict=True)]
        for cell in cells
        if (one := results.result(cell)) is not None and one.get("curve")
    ]
    if len(curves) < len(compared):
        return replace(claim, recount=recount)
    above = sum(a > b for a, b in zip(*curves, strict=True))
    return replace(
        claim,
        recount=recount,
        ours=f"{curves[0][-1]:.3f} vs {curves[1][-1]:.3f} on validation after the last epoch; "
        f"above in {above} of {len(curves[0])} epochs",
        tested=f"{claim.tested}, on test" if claim.tested else "",
    )


def _distances(results: Results) -> Iterable[Claim]:
    """Results have no draws of patients here: their seeds are compared."""
    cmsc, simclr = (
        results.result(Cell(Pretraining(m, "physionet2020"), "physionet2020", "distances", 1.0))
        for m in ("cmsc", "simclr")
    )
    claims = (
        ("the mean distance within a patient is smaller", "intra_mean", -1),
        ("patients are more separable", "separability", 1),
    )
    for what, key, sign in claims:
        about = f"Patients (PhysioNet 2020): with CMSC {what} than with SimCLR"
        claim = Claim(about, "yes", "", _NOT_RUN)
        if cmsc is not None and simclr is not None:
            first, second = ([sign * value for value in one[key]] for one in (cmsc, simclr))
            one = apart(over_seeds_alone(first), over_seeds_alone(second))
            one = replace(one, p_holm=min(1.0, len(claims) * one.p))
            verdicts: dict[str, Verdict] = {"above": "holds", "below": "does not hold"}
            claim = replace(
                claim,
                ours=f"{fmean(cmsc[key]):.3f} vs {fmean(simclr[key]):.3f}",
                tested="over seeds alone",
                verdict=verdicts.get(one.verdict, "undecided"),
            )
        yield claim
