"""Tables about patients: neighbours, an index, distances and retrieval scores."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any, TypeAlias

from rich.table import Table

from clocs.cli.tables import escape

if TYPE_CHECKING:
    import polars as pl

    from clocs.patients.patient_distances import DistanceReport
    from clocs.patients.retrieval import Retrieval, SamePatient

    Score: TypeAlias = Callable[[Retrieval], float | None]


def neighbours_table(rows: pl.DataFrame, title: str) -> Table:
    """Patients or recordings with their distances, as `PatientIndex.table` has them."""
    table = Table(title=escape(title))
    for name in rows.columns:
        right = name in ("age", "cosine", "euclidean")
        # A truncated ID is of no use: wrap it instead.
        table.add_column(name, justify="right" if right else "left", overflow="fold")
    for row in rows.iter_rows(named=True):
        row["labels"] = ", ".join(row["labels"])
        row["age"] = "" if row["age"] is None else f"{row['age']:g}"
        row |= {name: f"{row[name]:.4f}" for name in ("cosine", "euclidean")}
        table.add_row(*(escape(value or "") for value in row.values()))
    return table


def index_table(facts: Mapping[str, Any]) -> Table:
    """The contents of an index, as `index_facts` gives them."""
    table = Table(title=escape(f"Index {facts['index']}"), show_header=False)
    for level in ("patient", "recording"):
        own = facts[level]
        replaced = f", {own['replaced']:,} replaced" if own["replaced"] else ""
        table.add_row(f"{level}s", f"{own['vectors']:,}, {own['kind']}{replaced}")
        for dataset, count in own["datasets"].items():
            table.add_row(f"  {escape(dataset)}", f"{count:,}")
    table.add_row("frame", "unknown" if facts["frame"] is None else f"{facts['frame']:g} s")
    table.add_row("leads", "unknown" if facts["leads"] is None else ", ".join(facts["leads"]))
    table.add_row("dimensions", str(facts["dim"]))
    table.add_row("encoder", facts["encoder"][:12])
    return table


def distances_table(report: DistanceReport) -> Table:
    """Distances within and between patients."""
    facts = report.json()
    title = f"{report.method} on {report.store}, {facts['metric']} distance"
    table = Table(title=title, show_header=False)
    for kind in ("intra", "inter"):
        sampled = facts[f"{kind}_sampled"]
        pairs = f"{facts[f'{kind}_pairs']:,} pairs" + (f", {sampled:,} sampled" if sampled else "")
        table.add_row(
            f"{kind}-patient",
            f"{facts[f'{kind}_mean']:.3f} ± {facts[f'{kind}_std']:.3f} ({pairs})",
        )
    table.add_row("separability (AUC)", f"[bold]{facts['separability']:.3f}[/bold]")
    table.add_row("overlap", f"{facts['overlap']:.3f}")
    table.add_row("patients", f"{report.patients:,} (split: {report.split})")
    if report.patients_seen:
        table.add_row("", f"[yellow]{report.patients_seen:,} were seen in training[/yellow]")
    table.add_row("frames", f"{report.frame:g} s, compared lead by lead: {', '.join(report.leads)}")
    if report.zero_vectors:
        table.add_row("zero vectors", f"{report.zero_vectors:,} frames × leads")
    return table


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
    columns = _columns(first)
    table.add_column("encoder", overflow="fold")
    for name, _, _ in columns:
        table.add_column(name, justify="right")
    for name, seeds in zip(_names(list(runs.values())), runs.values(), strict=True):
        cells = (_over_seeds([score(one) for one in seeds]) for _, score, _ in columns)
        table.add_row(escape(name), *cells)
    table.add_section()
    table.add_row("chance", *(chance for _, _, chance in columns))
    return table


def _columns(first: Retrieval) -> list[tuple[str, Score, str]]:
    """The name, the score of an encoder and the chance level of each column."""
    columns: list[tuple[str, Score, str]] = []
    if first.halves is not None:
        columns += _same("halves", lambda one: one.halves, first.halves)
    if first.recordings is not None:
        columns += _same("recordings", lambda one: one.recordings, first.recordings)
    if first.diagnosis is not None:
        base = f"{first.diagnosis.base_rate:.3f}"
        columns.append(("P@10, diagnosis", _precision, base))
    return columns


def _same(
    name: str, part: Callable[[Retrieval], SamePatient | None], first: SamePatient
) -> list[tuple[str, Score, str]]:
    def top1(one: Retrieval) -> float | None:
        return found.top1 if (found := part(one)) else None

    def top10(one: Retrieval) -> float | None:
        return found.top10 if (found := part(one)) else None

    return [
        (f"top-1 match, {name} ({first.frame:g} s)", top1, f"{first.chance:.4f}"),
        ("top-10", top10, f"{first.chance10:.3f}"),
    ]


def _precision(one: Retrieval) -> float | None:
    return one.diagnosis.precision if one.diagnosis else None


def _over_seeds(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    spread = f" ± {stdev(known):.3f}" if len(known) > 1 else ""
    return f"{mean(known):.3f}{spread}" if len(known) == len(values) else "–"


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
    if first.patients_seen:
        notes.append(f"{first.patients_seen:,} patients seen by an encoder left out")
    if first.copies:
        notes.append(f"{first.copies:,} duplicate recordings left out")
    return "; ".join(notes)
