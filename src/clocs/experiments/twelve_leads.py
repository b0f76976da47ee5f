"""Results from stores of twelve leads beside results from stores of the paper's four.

Two stores of one dataset differ in their data, so their facts get names of their own.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace

from clocs.experiments import paper
from clocs.experiments.ledger import Run
from clocs.experiments.results import TWELVE, Results
from clocs.recording import STANDARD_LEADS

_FACTS = ("data of", "leads of", "counts of")


def set_apart(results: Results, other: Results) -> Results:
    """`results` ready to be joined with `other`, which may have a dataset in fewer leads.

    The facts of its own twelve-lead store are then called '…, twelve leads', and its runs on four
    of the twelve leads are left out: they belong to the other store.
    """
    apart = {
        dataset
        for dataset in paper.DATASET_TITLES
        if _has_twelve(results, dataset)
        and f"leads of {dataset}" in other.facts
        and not _has_twelve(other, dataset)
    }
    if not apart:
        return results
    names = [f"{what} {dataset}" for what in _FACTS for dataset in apart]
    renamed = {name: name + TWELVE for name in names}
    runs = {name: run for name, run in results.runs.items() if not _uses_four(run, apart)}
    return replace(
        results,
        runs=runs,
        facts={renamed.get(name, name): value for name, value in results.facts.items()},
        draws={name: own for name, own in results.draws.items() if name in runs},
    )


def _has_twelve(results: Results, dataset: str) -> bool:
    return set(STANDARD_LEADS) <= set(results.facts.get(f"leads of {dataset}") or ())


def _uses_four(run: Run, datasets: Set[str]) -> bool:
    encoder = run.settings.get("pretraining", run.settings)
    used = {encoder["dataset"], run.settings.get("downstream")}
    return encoder["leads"] != len(STANDARD_LEADS) and bool(used & datasets)
