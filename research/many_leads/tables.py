"""Tables of the comparison in Markdown, for the marked parts of `docs/results/many-leads.md`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from clocs.experiments.duel import LOSS_TITLES, combination, effect_table, effects
from clocs.experiments.grid import factor_subsets
from clocs.experiments.pages import markdown_table
from clocs.experiments.paper import DATASET_TITLES, METHOD_TITLES
from research.analyses.tables import NOTHING, hospital_table, identity_table
from research.many_leads.items import (
    BOTH,
    DATASETS,
    LEADS,
    METHODS,
    NOISE_DB,
    SCRATCH,
    SHARES,
    WINNER,
)
from research.many_leads.results import UNTRAINED, Row, StudyResults, drawn_in

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


_MAIN = {"most_leads": None, "network": None, "datasets": list(BOTH), "leads": "12"}


def score_of(results: StudyResults, **wanted: Any) -> Row | None:
    """The score with these values, of the study's main encoders unless they say otherwise."""
    return pick(results.scores, **(_MAIN | wanted))


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


def cell(row: Row | None) -> str:
    """A score with its interval."""
    score = None if row is None else row.get("auc_mean", row.get("auc"))
    if row is None or score is None:
        return ""
    if row.get("ci95") is None:
        return f"{score:.3f}"
    return f"{score:.3f} ({row['ci95'][0]:.3f}–{row['ci95'][1]:.3f})"


def encoder_title(row: Mapping[str, Any]) -> str:
    """The encoder of a row, in words."""
    words = TITLES[row["method"]]
    words += ", the paper's CNN" if row["network"] == "cnn" else ""
    words += ", views of one lead" if row["most_leads"] == 1 else ""
    if list(row["datasets"]) != list(BOTH):
        words += f", learned on {' and '.join(DATASET_TITLES[name] for name in row['datasets'])}"
    return words


def parts(results: StudyResults) -> dict[str, str]:
    """Tables of the page by name; 'Not measured yet.' where there are no results."""
    by_kind = {
        kind: [row for row in results.analyses if row["kind"] == kind]
        for kind in ("hospital", "identity")
    }
    return {
        "encoders-scores": scores(results),
        "encoders-leads": by_leads(results),
        "encoders-noise": by_noise(results),
        "encoders-hospital": hospital_table(by_kind["hospital"], encoder_title),
        "encoders-single-lead": single_lead(results),
        "encoders-identity": identity_table(by_kind["identity"], encoder_title),
        "encoders-again": trained_again(results),
        "encoders-cost": cost(results),
        "encoders-factorial": factorial(results),
    }


def scores(results: StudyResults) -> str:
    """Of each dataset, methods and readouts by the share of labeled patients."""
    text = []
    for dataset in DATASETS:
        rows = []
        for protocol, title in PROTOCOLS.items():
            for method in (WINNER, *METHODS, SCRATCH):
                wanted = {"dataset": dataset, "protocol": protocol, "method": method}
                own = [score_of(results, share=share, **wanted) for share in SHARES]
                if any(own):
                    rows.append([TITLES[method], title, *map(cell, own)])
        if rows:
            heads = [
                "pre-training",
                "readout",
                *(f"{100 * share:g} % labeled" for share in SHARES),
            ]
            text += [
                f"### {DATASET_TITLES[dataset]}",
                markdown_table(heads, rows, words=len(heads)),
            ]
    return "\n\n".join(text) or NOTHING


def by_leads(results: StudyResults) -> str:
    """By the number of leads at test time."""
    columns = columns_of(results)
    rows = []
    for leads in LEADS:
        cells = []
        for method, protocol in columns:
            full = with_conditions(results, method, protocol)
            tested = full if leads == "12" else condition_of(full, f"leads {leads}")
            wanted = {"dataset": "physionet2020", "protocol": protocol, "method": method}
            learned = score_of(results, share=1.0, leads=leads, **wanted)
            cells += [cell(tested), cell(full if leads == "12" else learned)]
        rows.append([LEAD_TITLES[leads], *cells])
    if not columns:
        return NOTHING
    heads = ["leads"]
    for method, protocol in columns:
        name = f"{TITLES[method]}, {PROTOCOLS[protocol]}"
        heads += [f"{name}: learned on 12", "learned on these"]
    return markdown_table(heads, rows, words=len(heads))


def by_noise(results: StudyResults) -> str:
    """By kind and strength of noise."""
    columns = columns_of(results)
    if not columns:
        return NOTHING
    every = [with_conditions(results, *column) for column in columns]
    names = {
        one["condition"].split()[1]
        for row in every
        if row is not None
        for one in row["conditions"]
        if one["condition"].startswith("noise")
    }
    rows = [["none", "", *map(cell, every)]]
    for kind in sorted(names):
        for db in NOISE_DB:
            cells = [cell(condition_of(row, f"noise {kind} {db}")) for row in every]
            rows.append([kind.replace("-", " "), f"{db} dB", *cells])
    heads = ["noise", "signal to noise"]
    heads += [f"{TITLES[method]}, {PROTOCOLS[protocol]}" for method, protocol in columns]
    return markdown_table(heads, rows, words=len(heads))


def single_lead(results: StudyResults) -> str:
    """Encoders used on one lead."""
    most = results.recipe.get("most_leads")
    kinds: dict[str, dict[str, Any]] = {
        f"CMSMLC, views of 1 to {most} leads": {"method": WINNER},
        "CMSMLC, views of one lead": {"method": WINNER, "most_leads": 1},
        "the paper's CNN, CMSC": {"method": "cmsc", "network": "cnn"},
    }
    if not any(row["most_leads"] == 1 or row["network"] for row in results.scores):
        return NOTHING
    rows = []
    tests = [("physionet2020", "I"), ("physionet2020", "II"), ("physionet2017", "12")]
    tests += [("cardiology", "12")]
    for dataset, leads in tests:
        for title, wanted in kinds.items():
            wanted |= {"dataset": dataset, "leads": leads, "protocol": "linear"}
            own = [score_of(results, share=share, **wanted) for share in SHARES]
            if any(own):
                where = f", lead {leads}" if leads != "12" else ""
                rows.append([f"{DATASET_TITLES[dataset]}{where}", title, *map(cell, own)])
    heads = ["tested on", "encoder", *(f"{100 * share:g} % labeled" for share in SHARES)]
    return markdown_table(heads, rows, words=len(heads))


def trained_again(results: StudyResults) -> str:
    """Scores of encoders and of others that were trained later by the same recipe."""
    first = {row["name"]: row for row in results.scores}
    pairs = [(first[row["name"]], row) for row in results.again if "auc_mean" in row]
    pairs = [(a, b) for a, b in pairs if a["share"] == 1 and a["method"] != UNTRAINED]
    rows = []
    for protocol, title in PROTOCOLS.items():
        for method in (WINNER, SCRATCH, *METHODS):
            own = [p for p in pairs if (p[0]["protocol"], p[0]["method"]) == (protocol, method)]
            known = {a["dataset"]: f"{a['auc_mean']:.3f} → {b['auc_mean']:.3f}" for a, b in own}
            if known:
                rows.append([TITLES[method], title, *(known.get(name, "") for name in DATASETS)])
    if not rows:
        return NOTHING
    heads = ["pre-training", "readout", *(DATASET_TITLES[name] for name in DATASETS)]
    return markdown_table(heads, rows, words=len(heads))


def factorial(results: StudyResults) -> str:
    """Every combination of loss, views and positives, and their effects."""
    known = [row for row in results.scores if row.get("factors") is not None]
    if not known:
        return NOTHING
    columns = [(dataset, method) for dataset in BOTH for method in LOSS_TITLES]
    rows = []
    for chosen in factor_subsets():
        own = [pick(known, dataset=d, method=m, factors=list(chosen)) for d, m in columns]
        rows.append([combination(chosen), *map(cell, own)])
    heads = ["", *(f"{LOSS_TITLES[m]}, {DATASET_TITLES[d]}" for d, m in columns)]
    made = [markdown_table(heads, rows), effect_table(effects(drawn_in(results))).markdown()]
    return "\n\n".join(made).rstrip()


def cost(results: StudyResults) -> str:
    """What pre-training took."""
    rows = [
        [
            encoder_title(row),
            f"{row['weights']:,}",
            f"{row['training'].get('epochs', 0):,}",
            f"{row['seconds']:,.0f} s",
            str(row["device"]),
        ]
        for row in results.pretrainings
        if row["seed"] == 0
        and row["method"] not in (SCRATCH, UNTRAINED)
        and row.get("factors") is None
    ]
    if not rows:
        return NOTHING
    heads = ["encoder", "weights", "epochs", "pre-training", "device"]
    return markdown_table(heads, rows, words=len(heads))
