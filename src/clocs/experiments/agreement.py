"""Agreement: how much of the paper is computed, and how near our results are to the printed ones.

Most printed AUCs of a dataset are close to each other, so that a guess that knows no method is near
them, too; it stands beside ours. What methods matter for is their order within a column.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, get_args

import numpy as np

from clocs.experiments import paper
from clocs.experiments.claims import Claim, Verdict
from clocs.experiments.grid import Cell, paper_values
from clocs.experiments.results import Results, papers

NEAR = (0.02, 0.05)
_LEADS = {"four_leads": 4, "twelve_leads": 12}
_FEWEST = 3  # methods of a column whose order is compared


def coverage(results: Results, found: Sequence[Claim]) -> dict[str, dict[str, Any]]:
    """The content of `coverage.json`; every printed result counts once.

    The paper's tables 1 and 2 and its tables of τ_d repeat results of the appendix, random encoders
    stand under both pre-training sets, and on single leads under four and twelve leads. `rows`
    counts the numbers as printed; `guess_within_…` are those of the computed results to which
    `blind_guesses` are as near.
    """
    counts: dict[str, dict[str, Any]] = {}
    guesses = blind_guesses()
    for name, leads in _LEADS.items():
        cells = [cell for cell in paper_values() if cell.pretraining.leads == leads]
        differences = {c: d for c in cells if (d := results.difference(c)) is not None}
        counts[name] = {"printed": len(cells), "computed": len(differences)}
        for near in NEAR:
            ours = sum(abs(d) <= near for d in differences.values())
            blind = sum(abs(guesses[c] - paper_values()[c].mean) <= near for c in differences)
            counts[name] |= {f"within_{near}": ours, f"guess_within_{near}": blind}
        counts[name]["rows"] = sum(row.leads == leads for row in paper.printed())
    verdicts = [one.verdict for one in found]
    claims = {verdict: verdicts.count(verdict) for verdict in get_args(Verdict)}
    return {**counts, "order": order_of_methods(results), "claims": claims}


def blind_guesses() -> dict[Cell, float]:
    """For each printed result, the mean of the others of its task, dataset and number of leads.

    The result itself is left out of its guess, and the guess knows no method.
    """
    groups: dict[tuple[str, str, int], list[Cell]] = {}
    for cell in paper_values():
        key = (cell.task, cell.downstream, cell.pretraining.leads)
        groups.setdefault(key, []).append(cell)
    guesses = {}
    for own in groups.values():
        total = sum(paper_values()[cell].mean for cell in own)
        for cell in own:
            guesses[cell] = (total - paper_values()[cell].mean) / (len(own) - 1)
    return guesses


def order_of_methods(results: Results) -> dict[str, float]:
    """How the order of methods agrees with the paper's, over columns of three methods or more.

    A column has one task, pre-training set, downstream set, number of leads, E and F. BYOL has the
    usual decay rate there. `best_by_chance` is the count to expect of an order that is drawn.
    """
    from scipy.stats import spearmanr  # takes a second to import

    columns: dict[tuple[object, ...], list[Cell]] = {}
    for cell in paper_values():
        p = cell.pretraining
        if results.beside(cell) is not None and p.tau_d is None:
            where = (cell.task, p.dataset, cell.downstream, p.leads, p.embedding_dim, cell.fraction)
            columns.setdefault(where, []).append(cell)
    correlations, best, chance = [], 0, 0.0
    for own in columns.values():
        if len(own) >= _FEWEST:
            ours, theirs = (
                [value.mean for cell in own if (value := look(cell)) is not None]
                for look in (results.beside, papers)
            )
            correlations.append(float(spearmanr(ours, theirs).statistic))
            best += int(np.argmax(ours) == np.argmax(theirs))
            chance += 1 / len(own)
    return {
        "columns": len(correlations),
        "rank_correlation": round(fmean(correlations), 3) if correlations else 0.0,
        "best_agrees": best,
        "best_by_chance": round(chance, 1),
    }


def sentences(counts: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The same in words."""
    lines = []
    for name, leads in _LEADS.items():
        own = counts[name]
        near = (f"{own[f'within_{near}']:,} within {near}" for near in NEAR)
        guess = (f"{own[f'guess_within_{near}']:,}" for near in NEAR)
        lines.append(
            f"{'Four' if leads == 4 else 'Twelve'} leads: {own['computed']:,} of "
            f"{own['printed']:,} printed results computed"
            + (
                f", {' and '.join(near)} of the paper's (by a guess that knows no method: "
                f"{' and '.join(guess)})."
                if own["computed"]
                else "."
            )
        )
    order, claims = counts["order"], counts["claims"]
    if order["columns"]:
        lines.append(
            "The guess is the mean of the paper's other results of the same task, dataset and "
            "number of leads."
        )
        share = 100 * order["best_agrees"] / order["columns"]
        lines.append(
            f"Order of the methods in {order['columns']} columns of the tables: rank correlation "
            f"with the paper's {order['rank_correlation']:.2f} on average. The best method is the "
            f"paper's in {order['best_agrees']} ({share:.0f} %; by chance in "
            f"{order['best_by_chance']:.0f})."
        )
    words = zip(claims.values(), ("hold", "do not hold", "undecided", "not run"), strict=True)
    return [*lines, f"Claims, by test: {', '.join(f'{word} {count}' for count, word in words)}."]
