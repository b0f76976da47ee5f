"""Claims: what the paper's text says, what its tables say, and what our runs say.

Each claim is a function of a lookup (a cell's AUC); the same function counts in the paper's tables
and in ours. `coverage` counts how much of the paper is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean
from typing import Any, NamedTuple

from clocs.evaluation.bootstrap import Comparison, correct
from clocs.experiments import grid as grids
from clocs.experiments import paper
from clocs.experiments.comparisons import better_schedule, compare_cells
from clocs.experiments.grid import CHAINS, TRANSFERS, Cell, Pretraining, cell_for, grid, perturbed
from clocs.experiments.results import Results, Value, papers

DISTINGUISHABLE = (
    "Distinguishable: above by the paired test over seeds, patients and patient splits. Where a "
    "claim takes the best of several methods on test patients, p is multiplied by their number; "
    "Holm's correction covers the claim's comparisons of one E and F. This is stricter than the "
    "comparisons of tables 1 and 2, where the method is chosen on validation patients."
)
NEAR = (0.02, 0.05)
_LEADS = {"four_leads": 4, "twelve_leads": 12}
_NOT_RUN = "not run"
# transfers above SimCLR: who, leads, E, and how many of 24 the paper claims
_ABOVE_SIMCLR = (
    *(("any of the three", 4, e, text) for e, text in ((32, 18), (64, 20), (128, 21), (256, 16))),
    *(("CMSC", 12, e, text) for e, text in ((32, 22), (64, 21), (128, 24), (256, 22))),
)


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper in three columns."""

    about: str
    text: str  # what the paper's text says
    recount: str  # what its tables say; empty if it prints no numbers
    ours: str  # what our runs say, or 'not run'
    holds: bool | None  # whether our runs agree with the claim; None if they do not suffice


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

    It holds where all comparisons do, or as many as the paper claims.
    """
    printed = [(_best(_theirs, a, pick), _best(_theirs, b)) for a, b in pairs]
    recount = sum(a.auc > b.auc for a, b in printed if a and b)
    look = partial(_ours, results)
    ours = [(_best(look, a, pick), _best(look, b)) for a, b in pairs]
    made = [(a, b) for a, b in ours if a and b]
    held, missing = sum(a.auc > b.auc for a, b in made), len(pairs) - len(made)
    words = f"{held} of {len(made)}" if made else _NOT_RUN
    words += f" ({missing} not run)" if made and missing else ""
    families: dict[tuple[int, int, float], list[Comparison]] = {}  # tested together: one E and F
    for a, b in made:
        if (one := compare_cells(results, a.cell, b.cell)) is not None:
            p = a.cell.pretraining
            corrected = replace(one, p=min(1.0, one.p * a.among))
            families.setdefault((p.leads, p.embedding_dim, a.cell.fraction), []).append(corrected)
    tested = [one for family in families.values() for one in correct(family)]
    if tested:
        some = "" if len(tested) == len(made) else f" ({len(tested)} tested)"
        words += f", of which distinguishable: {sum(one.better for one in tested)}{some}"
    compared = sum(bool(a and b) for a, b in printed)
    return Claim(
        about,
        text,
        f"{recount} of {compared}" if compared else "",
        words,
        None if missing else held >= (len(made) if needed is None else needed),
    )


def _ours(results: Results, cell: Cell) -> Scored | None:
    cell = better_schedule(results, cell)
    value = results.ours(cell)
    return None if value is None else Scored(value.mean, cell)


def _theirs(cell: Cell) -> Scored | None:
    value = papers(cell)
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
    look = partial(_ours, results)
    low = _best(look, [perturbed("cmsc", chain) for chain in CHAINS], min)
    high = _best(look, [perturbed("simclr", chain) for chain in CHAINS])
    return Claim(
        "Perturbations: the worst CMSC is above the best SimCLR (PhysioNet 2020, linear)",
        "0.661 vs 0.636",
        "",
        f"{low.auc:.3f} vs {high.auc:.3f}" if low and high else _NOT_RUN,
        low.auc > high.auc if low and high else None,
    )


def _gain(results: Results) -> Claim:
    def gain(look: Callable[[Cell], Value | None]) -> float | None:
        cmsc, simclr = look(_linear("cmsc", "chapman")), look(_linear("simclr", "chapman"))
        return None if cmsc is None or simclr is None else cmsc.mean - simclr.mean

    printed, ours, by_logits = gain(papers), gain(results.ours), gain(results.beside)
    return Claim(
        "Linear (table 1): CMSC's gain over SimCLR on Chapman",
        "+0.158",
        f"{printed:+.3f}",
        _NOT_RUN if ours is None else f"{ours:+.3f}, by logits as printed {by_logits:+.3f}",
        None if ours is None else ours > 0,
    )


def _few_labels(results: Results, dataset: str, downstream: str) -> Claim:
    few, every = Pretraining("cmsc", dataset), Pretraining("random", downstream)
    compared = ((few, 0.25), (every, 1.0))
    printed = [papers(Cell(encoder, downstream, "finetune", f)) for encoder, f in compared]
    found = [results.result(Cell(encoder, downstream, "curve", f)) for encoder, f in compared]
    # the validation AUC after each epoch, mean over seeds
    curves = [
        [fmean(values) for values in zip(*one["curve"], strict=True)]
        for one in found
        if one is not None and one.get("curve")
    ]
    finding, holds = _NOT_RUN, None
    if len(curves) == len(compared):
        above = sum(a > b for a, b in zip(*curves, strict=True))
        finding = (
            f"{curves[0][-1]:.3f} vs {curves[1][-1]:.3f} on validation after the last epoch; "
            f"above in {above} of {len(curves[0])} epochs"
        )
        holds = curves[0][-1] > curves[1][-1]
    return Claim(
        f"{paper.DATASET_TITLES[dataset]} → {paper.DATASET_TITLES[downstream]}: CMSC with 25 % "
        "of the labels is above random with all labels",
        "above during training and at its end, on validation",
        " vs ".join(f"{value.mean:.3f}" for value in printed if value) + " on test",
        finding,
        holds,
    )


def _distances(results: Results) -> Iterable[Claim]:
    cmsc, simclr = (
        results.result(Cell(Pretraining(m, "physionet2020"), "physionet2020", "distances", 1.0))
        for m in ("cmsc", "simclr")
    )
    for what, key, sign in (
        ("the mean distance within a patient is smaller", "intra_mean", -1),
        ("patients are more separable", "separability", 1),
    ):
        finding, holds = _NOT_RUN, None
        if cmsc is not None and simclr is not None:
            a, b = fmean(cmsc[key]), fmean(simclr[key])
            finding, holds = f"{a:.3f} vs {b:.3f}", sign * (a - b) > 0
        about = f"Patients (PhysioNet 2020): with CMSC {what} than with SimCLR"
        yield Claim(about, "yes", "", finding, holds)


def coverage(results: Results, found: Sequence[Claim]) -> dict[str, dict[str, int]]:
    """The content of `coverage.json`; every printed result counts once.

    The paper's tables 1 and 2 and its tables of τ_d repeat results of the appendix, random encoders
    stand under both pre-training sets, and on single leads under four and twelve leads. `rows`
    counts the numbers as printed.
    """
    counts = {}
    for name, leads in _LEADS.items():
        cells = [cell for cell in grids.paper_values() if cell.pretraining.leads == leads]
        distances = [abs(d) for cell in cells if (d := results.difference(cell)) is not None]
        counts[name] = {"printed": len(cells), "computed": len(distances)}
        counts[name] |= {f"within_{near}": sum(d <= near for d in distances) for near in NEAR}
        counts[name]["rows"] = sum(row.leads == leads for row in paper.printed())
    judged = [claim.holds for claim in found if claim.holds is not None]
    return {**counts, "claims": {"counted": len(judged), "hold": sum(judged)}}


def sentences(counts: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The same in words."""
    lines = []
    for name, leads in _LEADS.items():
        own = counts[name]
        near = (f"{own[f'within_{near}']:,} within {near}" for near in NEAR)
        lines.append(
            f"{'Four' if leads == 4 else 'Twelve'} leads: {own['computed']:,} of "
            f"{own['printed']:,} printed results computed"
            + (f", {' and '.join(near)} of the paper's." if own["computed"] else ".")
        )
    held = counts["claims"]
    return [*lines, f"Claims: {held['hold']} of {held['counted']} that could be checked hold."]
