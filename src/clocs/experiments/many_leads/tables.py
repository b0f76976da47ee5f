"""Tables of the comparison in Markdown: sections that have results, and no others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from clocs.experiments.many_leads.items import (
    BOTH,
    DATASETS,
    LEADS,
    METHODS,
    NOISE_DB,
    SCRATCH,
    SHARES,
    WINNER,
)
from clocs.experiments.many_leads.results import UNTRAINED, Row, StudyResults
from clocs.experiments.paper import DATASET_TITLES

TITLES = {
    "cmsmlc": "CMSMLC",
    "cmsc": "CMSC",
    "cmlc": "CMLC",
    "simclr": "SimCLR",
    "byol": "BYOL",
    "mtssl": "MT-SSL",
    "random-bn": "untrained, batch norm fitted",
    "random": "from scratch, supervised",
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
        "encoders-cost": cost,
    }
    return {name: make(results) for name, make in sections.items()}


def scores(results: StudyResults) -> str:
    """Of each dataset, methods and readouts by the share of labelled patients."""
    text = []
    for dataset in DATASETS:
        rows = []
        for protocol, title in PROTOCOLS.items():
            for method in (WINNER, *METHODS, SCRATCH):
                own = [_score(results, dataset, protocol, method, share) for share in SHARES]
                if any(own):
                    rows.append([TITLES[method], title, *map(_cell, own)])
        if rows:
            heads = ["pre-training", "readout", *(f"{share:.0%} labelled" for share in SHARES)]
            text += [f"### {DATASET_TITLES[dataset]}", table(heads, rows)]
    if not text:
        return ""
    intro = (
        "Macro AUROC per recording on test patients, with 95 % intervals over patients and draws "
        "of labelled patients. All methods have the same network, schedule and number of steps."
    )
    seeds = sorted({row["encoders"] for row in results.scores})
    number = f"Encoders per score: {' or '.join(map(str, seeds))}."
    return "\n\n".join(["## Scores", f"{intro} {number}", *text])


def fails(results: StudyResults) -> str:
    """What does not work, in sentences from paired differences."""
    lines = []
    for method in (WINNER, *METHODS):
        if method == UNTRAINED:
            continue
        for protocol, rival in (("linear", UNTRAINED), ("finetune", SCRATCH)):
            found = _differences(results, method, rival, protocol)
            poor = [row for row in found if row["ci95"] is None or row["ci95"][0] <= 0]
            if poor:
                where = "; ".join(f"{_where(row)} {_signed(row)}" for row in poor)
                than = "the untrained encoder" if rival == UNTRAINED else "training from scratch"
                lines.append(f"- {TITLES[method]}, {PROTOCOLS[protocol]}, against {than}: {where}.")
    for method in METHODS:
        found = _differences(results, WINNER, method, "linear")
        beaten = [row for row in found if row["ci95"] is None or row["ci95"][1] < 0]
        if beaten:
            where = "; ".join(f"{_where(row)} {_signed(row)}" for row in beaten)
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
    columns = _columns(results)
    rows = []
    for leads in LEADS:
        cells = []
        for method, protocol in columns:
            full = _with_conditions(results, method, protocol)
            tested = full if leads == "12" else _condition(full, f"leads {leads}")
            learned = _score(results, "physionet2020", protocol, method, 1.0, leads=leads)
            cells += [_cell(tested), _cell(full if leads == "12" else learned)]
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
    columns = _columns(results)
    if not columns:
        return ""
    every = [_with_conditions(results, *column) for column in columns]
    names = {
        one["condition"].split()[1]
        for row in every
        if row is not None
        for one in row["conditions"]
        if one["condition"].startswith("noise")
    }
    rows = [["none", "", *map(_cell, every)]]
    for kind in sorted(names):
        for db in NOISE_DB:
            cells = [_cell(_condition(row, f"noise {kind} {db}")) for row in every]
            rows.append([kind.replace("-", " "), f"{db} dB", *cells])
    heads = ["noise", "signal to noise"]
    heads += [f"{TITLES[method]}, {PROTOCOLS[protocol]}" for method, protocol in columns]
    intro = (
        "PhysioNet 2020, all labels, twelve leads. Noise is added to test recordings alone; at "
        "100 Hz no mains hum is left. 0 dB is noise as strong as the signal."
    )
    return "\n\n".join(["## Noise", intro, table(heads, rows)])


def hospital(results: StudyResults) -> str:
    """Readouts learned on one dataset, tested on another."""
    found = [row for row in results.analyses if row["kind"] == "hospital"]
    if not found:
        return ""
    rows = []
    for row in found:
        concepts = row["other"]["concepts"]
        each = (
            f"{_cell(one)} / {_cell(row['same']['concepts'][k])}" for k, one in concepts.items()
        )
        rows.append(
            [
                _encoder(row),
                DATASET_TITLES[row["dataset"]],
                DATASET_TITLES[row["tested_on"]],
                *each,
            ]
        )
    heads = ["encoder", "learned on", "tested on"]
    heads += [f"{name}: there / at home" for name in found[0]["other"]["concepts"]]
    intro = (
        "A linear readout of all labels of one dataset, tested on the other by labels that mean "
        "the same, and on test patients of its own. Definitions differ, too: a normal ECG of "
        "PhysioNet 2020 is normal in every respect, Chapman's sinus rhythm in its rhythm alone."
    )
    return "\n\n".join(["## Another hospital", intro, table(heads, rows)])


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
                _pick(
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
                rows.append([f"{DATASET_TITLES[dataset]}{where}", title, *map(_cell, own)])
    heads = ["tested on", "encoder", *(f"{share:.0%} labelled" for share in SHARES)]
    intro = "Linear readouts of one lead. The CNN sees the same frames, 5 s at 100 Hz."
    return "\n\n".join(["## One lead", intro, table(heads, rows)])


def identity(results: StudyResults) -> str:
    """Search and diagnosis with directions removed."""
    rows = []
    for row in _analyses(results, "identity"):
        for one in row["rows"]:
            search, diagnosis = one["search"], one["diagnosis"]
            ways = (f"{search[way]['top1']:.1%}" for way in ("cosine", "trained"))
            rows.append(
                [_encoder(row), one["removed"], str(one["directions"]), *ways, _cell(diagnosis)]
            )
    if not rows:
        return ""
    heads = [
        "encoder",
        "removed",
        "directions",
        "found again, cosine",
        "found again, trained metric",
    ]
    intro = (
        "PhysioNet 2020, test patients: how often the second half of a recording is found first by "
        "its first half, and the AUROC of a linear readout, after directions in which people, or "
        "diagnoses, differ most were projected out. Random directions are a control."
    )
    return "\n\n".join(["## Identity and disease", intro, table([*heads, "diagnosis"], rows)])


def privacy(results: StudyResults) -> str:
    """How often a person is found again."""
    rows = []
    for row in _analyses(results, "privacy"):
        for way, sizes in row["ways"].items():
            for one in sizes:
                found = (f"{one[name]:.1%}" for name in ("top1", "top10", "top1_chance"))
                title = DATASET_TITLES[row["dataset"]]
                rows.append([title, _encoder(row), way, f"{one['size']:,}", *found])
    if not rows:
        return ""
    heads = [
        "dataset",
        "encoder",
        "compared by",
        "gallery",
        "found first",
        "among ten",
        "by chance",
    ]
    intro = (
        "The first half of a recording is searched among second halves of so many patients. "
        "Recordings of another day are harder to find; these datasets have none."
    )
    return "\n\n".join(["## Who can be found again", intro, table(heads, rows)])


def cost(results: StudyResults) -> str:
    """What pre-training took."""
    rows = [
        [
            _encoder(row),
            f"{row['weights']:,}",
            f"{row['training'].get('epochs', 0):,}",
            f"{row['seconds']:,.0f} s",
        ]
        for row in results.pretrainings
        if row["seed"] == 0 and row["method"] not in (SCRATCH, UNTRAINED)
    ]
    if not rows:
        return ""
    devices = sorted({one["device"] for one in results.versions if one.get("device")})
    heads = ["encoder", "weights", "epochs", "pre-training"]
    return "\n\n".join(["## Cost", f"On {' and '.join(devices)}.", table(heads, rows)])


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [f"| {' | '.join(heads)} |", f"|{' --- |' * len(heads)}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def _score(
    results: StudyResults,
    dataset: str,
    protocol: str,
    method: str,
    share: float,
    leads: str = "12",
) -> Row | None:
    return _pick(
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


def _pick(rows: Iterable[Row], **wanted: Any) -> Row | None:
    """The row with these values that has the most encoders, and no further conditions if it can."""
    found = [row for row in rows if all(row.get(key) == value for key, value in wanted.items())]
    return max(found, key=lambda r: (r["encoders"], "conditions" not in r), default=None)


def _with_conditions(results: StudyResults, method: str, protocol: str) -> Row | None:
    rows = [row for row in results.scores if "conditions" in row]
    return _pick(rows, method=method, protocol=protocol, dataset="physionet2020")


def _columns(results: StudyResults) -> list[tuple[str, str]]:
    """Methods and protocols that were tested under conditions."""
    order = [(method, p) for method in (WINNER, SCRATCH, *METHODS) for p in PROTOCOLS]
    return [one for one in order if _with_conditions(results, *one) is not None]


def _condition(row: Row | None, name: str) -> Row | None:
    conditions = [] if row is None else row["conditions"]
    return next((one for one in conditions if one["condition"] == name), None)


def _analyses(results: StudyResults, kind: str) -> list[Row]:
    return [row for row in results.analyses if row["kind"] == kind]


def _differences(results: StudyResults, one: str, other: str, protocol: str) -> list[Row]:
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


def _where(row: Row) -> str:
    return f"{DATASET_TITLES[row['dataset']]} at {row['share']:.0%}"


def _signed(row: Row) -> str:
    if row["ci95"] is None:
        return f"{row['difference']:+.3f}"
    low, high = row["ci95"]
    return f"{row['difference']:+.3f} ({low:+.3f} to {high:+.3f})"


def _cell(row: Row | None) -> str:
    """A score with its interval."""
    score = None if row is None else row.get("auc_mean", row.get("auc"))
    if row is None or score is None:
        return ""
    if row.get("ci95") is None:
        return f"{score:.3f}"
    return f"{score:.3f} ({row['ci95'][0]:.3f}–{row['ci95'][1]:.3f})"


def _encoder(row: Row) -> str:
    """The encoder of a row, in words."""
    words = TITLES[row["method"]]
    words += ", the paper's CNN" if row["network"] == "cnn" else ""
    words += ", views of one lead" if row["most_leads"] == 1 else ""
    if list(row["datasets"]) != list(BOTH):
        words += f", learned on {' and '.join(DATASET_TITLES[name] for name in row['datasets'])}"
    return words
