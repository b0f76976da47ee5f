"""Tables of the comparison in Markdown: sections that have results, and no others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from clocs.experiments.paper import DATASET_TITLES
from clocs.models.model_card import table
from research.many_leads.analysis_sections import (
    cost,
    hospital,
    identity,
    privacy,
    trained_again,
)
from research.many_leads.cells import (
    LEAD_TITLES,
    PROTOCOLS,
    TITLES,
    cell,
    columns_of,
    condition_of,
    differences_of,
    pick,
    place_of,
    score_of,
    signed,
    with_conditions,
)
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
from research.many_leads.results import UNTRAINED, StudyResults


def parts(results: StudyResults) -> dict[str, str]:
    """Sections of `docs/encoders.md` by name; empty where there are no results."""
    sections: dict[str, Callable[[StudyResults], str]] = {
        "encoders-scores": scores,
        "encoders-fails": fails,
        "encoders-leads": by_leads,
        "encoders-noise": by_noise,
        "encoders-hospital": hospital,
        "encoders-single-lead": single_lead,
        "encoders-identity": identity,
        "encoders-privacy": privacy,
        "encoders-again": trained_again,
        "encoders-cost": cost,
    }
    return {name: make(results) for name, make in sections.items()}


def scores(results: StudyResults) -> str:
    """Of each dataset, methods and readouts by the share of labeled patients."""
    text = []
    for dataset in DATASETS:
        rows = []
        for protocol, title in PROTOCOLS.items():
            for method in (WINNER, *METHODS, SCRATCH):
                own = [score_of(results, dataset, protocol, method, share) for share in SHARES]
                if any(own):
                    rows.append([TITLES[method], title, *map(cell, own)])
        if rows:
            heads = [
                "pre-training",
                "readout",
                *(f"{100 * share:g} % labeled" for share in SHARES),
            ]
            text += [f"### {DATASET_TITLES[dataset]}", table(heads, rows)]
    if not text:
        return ""
    intro = (
        "Macro AUROC per recording on test patients, with 95 % intervals over patients and draws "
        "of labeled patients."
    )
    if len({row["method"] for row in results.scores} - {SCRATCH}) > 1:
        intro += " All methods have the same network, schedule and number of steps."
    seeds = sorted({row["encoders"] for row in results.scores})
    number = f"Encoders per score: {' or '.join(map(str, seeds))}."
    return "\n\n".join(["## Scores", f"{intro} {number}", *text])


def fails(results: StudyResults) -> str:
    """What does not work, in sentences from paired differences."""
    lines = []
    for method in (WINNER, *METHODS):
        if method == UNTRAINED:
            continue
        rivals = {"linear": UNTRAINED, "attentive": UNTRAINED, "finetune": SCRATCH}
        for protocol, rival in rivals.items():
            found = differences_of(results, method, rival, protocol)
            poor = [row for row in found if row["ci95"] is None or row["ci95"][0] <= 0]
            if poor:
                where = "; ".join(f"{place_of(row)} {signed(row)}" for row in poor)
                than = "the untrained encoder" if rival == UNTRAINED else "training from scratch"
                lines.append(f"- {TITLES[method]}, {PROTOCOLS[protocol]}, against {than}: {where}.")
    for method in METHODS:
        found = differences_of(results, WINNER, method, "linear")
        beaten = [row for row in found if row["ci95"] is None or row["ci95"][1] < 0]
        if beaten:
            where = "; ".join(f"{place_of(row)} {signed(row)}" for row in beaten)
            lines.append(f"- {TITLES[WINNER]}, linear, is worse than {TITLES[method]}: {where}.")
    if not lines:
        return ""
    intro = (
        "Paired differences in AUROC on the same patients, with 95 % intervals: pre-training is "
        "not better than the encoder it is compared with where the interval reaches 0."
    )
    return "\n\n".join(["## What fails", intro, "\n".join(lines)])


def by_leads(results: StudyResults) -> str:
    """By the number of leads at test time."""
    columns = columns_of(results)
    rows = []
    for leads in LEADS:
        cells = []
        for method, protocol in columns:
            full = with_conditions(results, method, protocol)
            tested = full if leads == "12" else condition_of(full, f"leads {leads}")
            learned = score_of(results, "physionet2020", protocol, method, 1.0, leads=leads)
            cells += [cell(tested), cell(full if leads == "12" else learned)]
        rows.append([LEAD_TITLES[leads], *cells])
    if not columns:
        return ""
    heads = ["leads"]
    for method, protocol in columns:
        name = f"{TITLES[method]}, {PROTOCOLS[protocol]}"
        heads += [f"{name}: learned on 12", "learned on these"]
    intro = (
        "PhysioNet 2020, all labels. One readout that has learned on twelve leads is tested on "
        "fewer; beside it, one that has learned on the same fewer leads."
    )
    return "\n\n".join(["## Fewer leads", intro, table(heads, rows)])


def by_noise(results: StudyResults) -> str:
    """By kind and strength of noise."""
    columns = columns_of(results)
    if not columns:
        return ""
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
    intro = (
        "PhysioNet 2020, all labels, twelve leads. Noise is added to test recordings alone; at "
        "100 Hz no mains hum is left. 0 dB is noise as strong as the signal."
    )
    return "\n\n".join(["## Noise", intro, table(heads, rows)])


def single_lead(results: StudyResults) -> str:
    """Encoders used on one lead."""
    most = results.recipe.get("most_leads")
    kinds: dict[str, dict[str, Any]] = {
        f"CMSMLC, views of 1 to {most} leads": {"method": WINNER, "most_leads": None},
        "CMSMLC, views of one lead": {"method": WINNER, "most_leads": 1},
        "the paper's CNN, CMSC": {"method": "cmsc", "network": "cnn"},
    }
    if not any(row["most_leads"] == 1 or row["network"] for row in results.scores):
        return ""
    rows = []
    tests = [("physionet2020", "I"), ("physionet2020", "II"), ("physionet2017", "12")]
    tests += [("cardiology", "12")]
    for dataset, leads in tests:
        for title, wanted in kinds.items():
            own = [
                pick(
                    results.scores,
                    **({"network": None} | wanted),
                    dataset=dataset,
                    leads=leads,
                    share=share,
                    protocol="linear",
                    datasets=list(BOTH),
                )
                for share in SHARES
            ]
            if any(own):
                where = f", lead {leads}" if leads != "12" else ""
                rows.append([f"{DATASET_TITLES[dataset]}{where}", title, *map(cell, own)])
    heads = ["tested on", "encoder", *(f"{100 * share:g} % labeled" for share in SHARES)]
    intro = "Linear readouts of one lead. The CNN sees the same frames, 5 s at 100 Hz."
    return "\n\n".join(["## One lead", intro, table(heads, rows)])
