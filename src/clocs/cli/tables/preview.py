"""What a dry run of preparing understood, in the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from clocs.errors import first_of

_MAX_NAMED = 12


def preview_tables(facts: Mapping[str, Any]) -> RenderableType:
    """The tables of `clocs prepare --dry-run`, from what `clocs.preview` returns."""
    shown: list[RenderableType] = [_facts(facts), Text(), _examples(facts)]
    if facts["problems"]:
        shown += [Text(), _problems(facts)]
    for notice in facts["notices"]:
        shown += [Text(f"Note: {notice}.")]
    return Group(*shown, Text())


def _facts(facts: Mapping[str, Any]) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    read, every = facts["sampled"], facts["recordings"]
    sample = "all were read" if read == every else f"{read:,} of them were read for what follows"
    frame = facts["frame"]
    rows = [
        ("files", _counted(facts["files"])),
        ("recordings", f"{every:,}; {sample}"),
        ("patients", f"{facts['patients']:,} with {_range(facts['recordings_per_patient'])} each"),
        ("leads", _counted(facts["leads"])),
        ("rates", _counted({f"{rate} Hz": n for rate, n in facts["rates"].items()})),
        ("lengths", f"{_range(facts['seconds'])} s"),
        ("unit", _counted(facts["units"])),
        ("labels", _counted(facts["labels"]) or "none"),
        ("unlabeled", f"{facts['unlabeled']:,} recordings"),
        ("folds", _counted(facts["folds"])),
        ("frames", f"{frame['seconds']:g} s as {frame['samples']:,} samples"),
        ("rows without file", _unmatched(facts)),
    ]
    for name, value in rows:
        if value:
            table.add_row(name, Text(value))
    return table


def _unmatched(facts: Mapping[str, Any]) -> str:
    count = facts["rows_without_recording"]
    examples = ", ".join(facts["rows_without_recording_examples"])
    return f"{count:,}, such as {examples}" if count else ""


def _counted(counts: Mapping[str, int]) -> str:
    return first_of([f"{name} {count:,}" for name, count in counts.items()], _MAX_NAMED)


def _range(values: Mapping[str, float]) -> str:
    if not values:
        return "none"
    if values["least"] == values["most"]:
        return f"{values['least']:,.4g}"
    return f"{values['least']:,.4g} to {values['most']:,.4g} (median {values['median']:,.4g})"


def _examples(facts: Mapping[str, Any]) -> Table:
    table = Table(title="Examples", title_justify="left")
    for column in ("recording", "patient", "leads", "Hz", "s", "labels", "age", "sex", "taken"):
        table.add_column(column, overflow="fold")
    for one in facts["examples"]:
        leads = ", ".join(one["leads"][:4]) + (" …" if len(one["leads"]) > 4 else "")
        values = (
            *(one["id"], one["patient"], leads, f"{one['rate']:g}", f"{one['seconds']:.4g}"),
            *(", ".join(one["labels"]), one["age"], one["sex"], one["taken"]),
        )
        table.add_row(*(Text("" if value is None else str(value)) for value in values))
    return table


def _problems(facts: Mapping[str, Any]) -> Table:
    table = Table(title="Problems", title_justify="left")
    for column in ("reason", "recordings", "for example"):
        table.add_column(column, overflow="fold")
    for one in facts["problems"]:
        table.add_row(one["reason"], f"{one['count']:,}", Text("\n".join(one["examples"])))
    return table
