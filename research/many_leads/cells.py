"""Cells of the comparison's tables: which row of results is meant, and how it is written."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from clocs.experiments.paper import DATASET_TITLES, METHOD_TITLES
from research.many_leads.items import BOTH, DATASETS, METHODS, SCRATCH, WINNER
from research.many_leads.results import Row, StudyResults

TITLES = METHOD_TITLES | {
    "random-bn": "untrained, batch norm fitted",
    "random": "supervised, from scratch",
}
PROTOCOLS = {"linear": "linear", "attentive": "attentive", "finetune": "fine-tuned"}
LEAD_TITLES = {
    "12": "12",
    "6": "6: limb leads",
    "4": "4: II, V2, aVL, aVR",
    "2": "2: I, II",
    "I": "1: I",
    "II": "1: II",
}


def score_of(
    results: StudyResults,
    dataset: str,
    protocol: str,
    method: str,
    share: float,
    leads: str = "12",
) -> Row | None:
    return pick(
        results.scores,
        dataset=dataset,
        protocol=protocol,
        method=method,
        share=share,
        leads=leads,
        most_leads=None,
        network=None,
        datasets=list(BOTH),
    )


def pick(rows: Iterable[Row], **wanted: Any) -> Row | None:
    """The row with these values that has the most encoders, and no further conditions if it can."""
    found = [row for row in rows if all(row.get(key) == value for key, value in wanted.items())]
    return max(found, key=lambda r: (r["encoders"], "conditions" not in r), default=None)


def with_conditions(results: StudyResults, method: str, protocol: str) -> Row | None:
    rows = [row for row in results.scores if "conditions" in row]
    return pick(rows, method=method, protocol=protocol, dataset="physionet2020")


def columns_of(results: StudyResults) -> list[tuple[str, str]]:
    """Methods and protocols that were tested under conditions."""
    order = [(method, p) for method in (WINNER, SCRATCH, *METHODS) for p in PROTOCOLS]
    return [one for one in order if with_conditions(results, *one) is not None]


def condition_of(row: Row | None, name: str) -> Row | None:
    conditions = [] if row is None else row["conditions"]
    return next((one for one in conditions if one["condition"] == name), None)


def analyses_of(results: StudyResults, kind: str) -> list[Row]:
    return [row for row in results.analyses if row["kind"] == kind]


def differences_of(results: StudyResults, one: str, other: str, protocol: str) -> list[Row]:
    """Of the most encoders, where there are several."""
    found = [
        row
        for row in results.differences
        if row["methods"] == [one, other] and row["protocol"] == protocol
    ]
    best: dict[tuple[str, float], Row] = {}
    for row in sorted(found, key=lambda row: row["encoders"]):
        best[row["dataset"], row["share"]] = row
    order = {name: place for place, name in enumerate(DATASETS)}
    return sorted(best.values(), key=lambda row: (order[row["dataset"]], -row["share"]))


def place_of(row: Row) -> str:
    return f"{DATASET_TITLES[row['dataset']]} at {100 * row['share']:g} %"


def signed(row: Row) -> str:
    if row["ci95"] is None:
        return f"{row['difference']:+.3f}"
    low, high = row["ci95"]
    return f"{row['difference']:+.3f} ({low:+.3f} to {high:+.3f})"


def cell(row: Row | None) -> str:
    """A score with its interval."""
    score = None if row is None else row.get("auc_mean", row.get("auc"))
    if row is None or score is None:
        return ""
    if row.get("ci95") is None:
        return f"{score:.3f}"
    return f"{score:.3f} ({row['ci95'][0]:.3f}–{row['ci95'][1]:.3f})"


def encoder_title(row: Row) -> str:
    """The encoder of a row, in words."""
    words = TITLES[row["method"]]
    words += ", the paper's CNN" if row["network"] == "cnn" else ""
    words += ", views of one lead" if row["most_leads"] == 1 else ""
    if list(row["datasets"]) != list(BOTH):
        words += f", learned on {' and '.join(DATASET_TITLES[name] for name in row['datasets'])}"
    return words
