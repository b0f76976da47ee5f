"""How much of the paper is computed, and how near our results are to the printed ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from clocs.experiments import paper
from clocs.experiments.claims import Claim
from clocs.experiments.grid import paper_values
from clocs.experiments.results import Results

COVERAGE = "coverage.json"
NEAR = (0.02, 0.05)
_LEADS = {"four_leads": 4, "twelve_leads": 12}


def coverage(results: Results, claims: Sequence[Claim]) -> dict[str, dict[str, int]]:
    """The content of `coverage.json`; every printed result counts once.

    The paper's tables 1 and 2 and its tables of τ_d repeat results of the appendix, random encoders
    stand under both pre-training sets, and on single leads under four and twelve leads. `rows`
    counts the numbers as printed.
    """
    found = {}
    for name, leads in _LEADS.items():
        cells = [cell for cell in paper_values() if cell.pretraining.leads == leads]
        distances = [abs(d) for cell in cells if (d := results.difference(cell)) is not None]
        found[name] = {
            "printed": len(cells),
            "computed": len(distances),
            **{f"within_{near}": sum(d <= near for d in distances) for near in NEAR},
            "rows": sum(row.leads == leads for row in paper.printed()),
        }
    judged = [claim.holds for claim in claims if claim.holds is not None]
    return {**found, "claims": {"counted": len(judged), "hold": sum(judged)}}


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
    claims = counts["claims"]
    lines.append(f"Claims: {claims['hold']} of {claims['counted']} that could be checked hold.")
    return lines
