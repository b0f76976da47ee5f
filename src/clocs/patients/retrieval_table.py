"""Scores of retrieval in the terminal: a row a method, mean and spread over its seeds."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from rich.markup import escape
from rich.table import Table

from clocs.evaluation.result import distinct
from clocs.patients.retrieval import Retrieval, SamePatient

_Score = Callable[[Retrieval], float]


def retrieval_table(scores: Sequence[Retrieval]) -> Table:
    """Mean ± standard deviation of the seeds of each method; chance below."""
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


def _columns(first: Retrieval) -> list[tuple[str, _Score, str]]:
    """Of each column: its name, what an encoder has in it, and what chance has."""
    columns: list[tuple[str, _Score, str]] = []
    if first.halves is not None:
        columns += _same("half finds half", lambda one: one.halves, first.halves)
    if first.recordings is not None:
        columns += _same("recording finds its like", lambda one: one.recordings, first.recordings)
    if first.diagnosis is not None:
        base = f"{first.diagnosis.base_rate:.3f}"
        columns.append(("P@10 of the diagnosis", _precision, base))
    return columns


def _same(
    name: str, part: Callable[[Retrieval], SamePatient | None], first: SamePatient
) -> list[tuple[str, _Score, str]]:
    def top1(one: Retrieval) -> float:
        return found.top1 if (found := part(one)) else np.nan

    def top10(one: Retrieval) -> float:
        return found.top10 if (found := part(one)) else np.nan

    return [
        (f"{name} ({first.frame:g} s)", top1, f"{first.chance:.4f}"),
        ("among ten", top10, f"{first.chance10:.3f}"),
    ]


def _precision(one: Retrieval) -> float:
    return one.diagnosis.precision if one.diagnosis else np.nan


def _over_seeds(values: Sequence[float]) -> str:
    spread = f" ± {np.std(values, ddof=1):.3f}" if len(values) > 1 else ""
    return f"{np.mean(values):.3f}{spread}" if np.isfinite(values).all() else "–"


def _names(runs: Sequence[Sequence[Retrieval]]) -> list[str]:
    """Methods, and where two runs are of one method what tells them apart."""
    methods = [seeds[0].method for seeds in runs]
    names = []
    for seeds in runs:
        one = seeds[0]
        facts = ", ".join(w for w in (one.pretrain, f"E = {one.embedding_dim}", one.trained) if w)
        names.append(one.method if methods.count(one.method) == 1 else f"{one.method} ({facts})")
    return distinct(names)


def _caption(scores: Sequence[Retrieval]) -> str:
    first, seeds = scores[0], sorted({one.seed for one in scores})
    words = [f"mean ± sd of the seeds {', '.join(map(str, seeds))}" if len(seeds) > 1 else ""]
    if first.patients_seen:
        words.append(f"{first.patients_seen:,} patients left out: an encoder has seen them")
    if first.copies:
        words.append(f"{first.copies:,} copies of recordings left out")
    return "; ".join(word for word in words if word)
