"""Tables of analyses: another hospital, identity, privacy, training again, cost."""

from __future__ import annotations

from clocs.experiments.paper import DATASET_TITLES
from clocs.models.model_card import table
from research.many_leads.cells import PROTOCOLS, TITLES, analyses_of, cell, encoder_title
from research.many_leads.items import DATASETS, METHODS, SCRATCH, WINNER
from research.many_leads.results import UNTRAINED, StudyResults


def hospital(results: StudyResults) -> str:
    """Readouts learned on one dataset, tested on another."""
    found = [row for row in results.analyses if row["kind"] == "hospital"]
    if not found:
        return ""
    rows = []
    for row in found:
        concepts = row["other"]["concepts"]
        each = (f"{cell(one)} / {cell(row['same']['concepts'][k])}" for k, one in concepts.items())
        rows.append(
            [
                encoder_title(row),
                DATASET_TITLES[row["dataset"]],
                DATASET_TITLES[row["tested_on"]],
                *each,
            ]
        )
    heads = ["encoder", "learned on", "tested on"]
    heads += [f"{name}: other / own dataset" for name in found[0]["other"]["concepts"]]
    intro = (
        "A linear readout of all labels of one dataset, tested on the other by labels that mean "
        "the same, and on test patients of its own. Definitions differ, too: a normal ECG of "
        "PhysioNet 2020 is normal in every respect, Chapman's sinus rhythm in its rhythm alone."
    )
    return "\n\n".join(["## Another hospital", intro, table(heads, rows)])


def identity(results: StudyResults) -> str:
    """Search and diagnosis with directions removed."""
    rows = []
    for row in analyses_of(results, "identity"):
        for one in row["rows"]:
            search, diagnosis = one["search"], one["diagnosis"]
            ways = (f"{search[way]['top1']:.1%}" for way in ("cosine", "trained"))
            rows.append(
                [encoder_title(row), one["removed"], str(one["directions"]), *ways, cell(diagnosis)]
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
    for row in analyses_of(results, "privacy"):
        for way, sizes in row["ways"].items():
            for one in sizes:
                found = (f"{one[name]:.1%}" for name in ("top1", "top10", "top1_chance"))
                title = DATASET_TITLES[row["dataset"]]
                rows.append([title, encoder_title(row), way, f"{one['size']:,}", *found])
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
        return ""
    heads = ["pre-training", "readout", *(DATASET_TITLES[name] for name in DATASETS)]
    changes = sorted(abs(a["auc_mean"] - b["auc_mean"]) for a, b in pairs)
    intro = (
        "Encoders that were trained once more by the same recipe and seed: AUROC with all labels, "
        f"first and again. Half of the {len(changes)} scores change by less than "
        f"{changes[len(changes) // 2]:.4f}; the largest change is {changes[-1]:.3f}. The tables "
        "above show the first wherever there is one."
    )
    return "\n\n".join(["## Trained again", intro, table(heads, rows)])


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
        if row["seed"] == 0 and row["method"] not in (SCRATCH, UNTRAINED)
    ]
    if not rows:
        return ""
    heads = ["encoder", "weights", "epochs", "pre-training", "device"]
    return "\n\n".join(["## Cost", table(heads, rows)])
