"""Tables about patients: neighbours, an index, distances and retrieval scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from clocs.cli.tables import facts_table, plus_minus

if TYPE_CHECKING:
    import polars as pl

    from clocs.patients.distances import DistanceReport
    from clocs.patients.retrieval import Retrieval


def neighbors_table(rows: pl.DataFrame, title: str) -> Table:
    """Patients or recordings with their distances, as `PatientIndex.table` has them."""
    table = Table(title=title)
    for name in rows.columns:
        right = name in ("age", "distance", "euclidean")
        # A truncated ID is of no use: wrap it instead.
        table.add_column(name, justify="right" if right else "left", overflow="fold")
    for row in rows.iter_rows(named=True):
        row["labels"] = ", ".join(row["labels"])
        row["age"] = "" if row["age"] is None else f"{row['age']:g}"
        row |= {name: f"{row[name]:.4f}" for name in ("distance", "euclidean")}
        table.add_row(*(value or "" for value in row.values()))
    return table


def index_table(facts: Mapping[str, Any]) -> Table:
    """The contents of an index, as `index_facts` gives them."""
    rows = []
    for level in ("patient", "recording"):
        own = facts[level]
        replaced = f", {own['replaced']:,} replaced" if own["replaced"] else ""
        finds = f", recall {own['efforts'][0]['recall']:.3f}" if "efforts" in own else ""
        rows.append((f"{level}s", f"{own['vectors']:,}, {own['kind']}{finds}{replaced}"))
        rows += [(f"  {name}", f"{count:,}") for name, count in own["datasets"].items()]
    rows += [
        ("frame", "unknown" if facts["frame"] is None else f"{facts['frame']:g} s"),
        ("leads", ", ".join(facts["leads"] or ["unknown"])),
        ("dimensions", str(facts["dim"])),
        ("encoder", facts["encoder"][:12]),
    ]
    return facts_table(f"Index {facts['index']}", rows)


def distances_table(report: DistanceReport) -> Table:
    """Distances within and between patients."""
    facts = report.json()
    rows: list[tuple[str, str | Text]] = []
    for kind in ("intra", "inter"):
        sampled = facts[f"{kind}_sampled"]
        pairs = f"{facts[f'{kind}_pairs']:,} pairs" + (f", {sampled:,} sampled" if sampled else "")
        both = plus_minus(facts[f"{kind}_mean"], facts[f"{kind}_std"])
        rows.append((f"{kind}-patient", f"{both} ({pairs})"))
    rows += [
        ("separability (AUC)", Text(f"{facts['separability']:.3f}", "bold")),
        ("overlap", f"{facts['overlap']:.3f}"),
        ("patients", f"{report.patients:,} (split: {report.split})"),
    ]
    if report.one_recording_each:
        rows.append(("", "one recording each: intra-patient is within a recording"))
    if report.patients_seen:
        rows.append(("", Text(f"{report.patients_seen:,} were seen in training", "yellow")))
    leads = ", ".join(report.leads)
    rows.append(("frames", f"{report.frame:g} s, compared lead by lead: {leads}"))
    if report.zero_vectors:
        rows.append(("zero vectors", f"{report.zero_vectors:,} frames × leads"))
    return facts_table(f"{report.method} on {report.store}, {facts['metric']} distance", rows)


def retrieval_table(scores: Sequence[Retrieval]) -> Table:
    """One row per pre-training, mean ± standard deviation over its seeds; chance below."""
    first = scores[0]
    table = Table(
        title=f"Retrieval on {first.store}, {first.patients:,} unseen patients ({first.split})",
        caption=_caption(scores),
    )
    runs: dict[str, list[Retrieval]] = {}
    for one in scores:
        runs.setdefault(one.run, []).append(one)
    shown = _columns(first)
    table.add_column("encoder", overflow="fold")
    for title, *_ in shown:
        table.add_column(title, justify="right")
    for name, seeds in zip(_names(list(runs.values())), runs.values(), strict=True):
        table.add_row(name, *(_over_seeds(seeds, part, field) for _, part, field, _ in shown))
    table.add_section()
    table.add_row("chance", *(chance for *_, chance in shown))
    return table


def _columns(first: Retrieval) -> list[tuple[str, str, str, str]]:
    """The title, the part and field of `Retrieval`, and the chance level of each column."""
    found = []
    for part in ("halves", "recordings"):
        if (same := getattr(first, part)) is not None:
            title = f"top-1 match, {part} ({same.frame:g} s)"
            found.append((title, part, "top1", f"{same.chance:.4f}"))
            found.append(("top-10", part, "top10", f"{same.chance10:.3f}"))
    if first.diagnosis is not None:
        base = f"{first.diagnosis.base_rate:.3f}"
        title = f"P@10, diagnosis ({first.frame.seconds:g} s)"
        found.append((title, "diagnosis", "precision", base))
    return found


def _over_seeds(seeds: Sequence[Retrieval], part: str, field: str) -> str:
    found = [getattr(one, part) for one in seeds]
    if None in found:
        return "–"
    values = [getattr(one, field) for one in found]
    return plus_minus(mean(values), stdev(values) if len(values) > 1 else None)


def _names(runs: Sequence[Sequence[Retrieval]]) -> list[str]:
    """Methods, with what distinguishes them where two runs are of one method."""
    from clocs.evaluation.result import distinct

    methods = [seeds[0].method for seeds in runs]
    names = []
    for seeds in runs:
        one = seeds[0]
        facts = ", ".join(w for w in (one.pretrain, f"E = {one.embedding_dim}", one.trained) if w)
        names.append(one.method if methods.count(one.method) == 1 else f"{one.method} ({facts})")
    return distinct(names)


def _caption(scores: Sequence[Retrieval]) -> str:
    first, seeds = scores[0], sorted({one.seed for one in scores})
    notes = [f"mean ± sd over seeds {', '.join(map(str, seeds))}"] if len(seeds) > 1 else []
    notes.append(f"leads {', '.join(first.leads)}")
    if first.one_recording_each:
        notes.append("every patient has one recording: a match is the other half of the same one")
    trained: dict[float, list[str]] = {}
    for one in scores:
        methods = trained.setdefault(one.frame_trained.seconds, [])
        methods += [one.method] if one.method not in methods else []
    if len(trained) > 1:
        lengths = (f"{seconds:g} s ({', '.join(trained[seconds])})" for seconds in sorted(trained))
        notes.append(f"trained on frames of {' and '.join(lengths)}")
    if first.patients_seen:
        notes.append(f"{first.patients_seen:,} patients seen by an encoder left out")
    if first.copies:
        notes.append(f"{first.copies:,} duplicate recordings left out")
    return "; ".join(notes)
