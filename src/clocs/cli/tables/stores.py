"""Stores in the terminal: what `store_info` counts, with long lists shortened."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from clocs.cli.tables import columns
from clocs.datasets.base import Quarantined, faults_by_kind
from clocs.frames.splits import PARTS

_MAX_NAMED = 4
_MAX_SETS = 20
_MAX_KINDS = 20
_ALL = "`clocs info --verbose` lists all"


def store_tables(info: Mapping[str, Any], *, verbose: bool = False) -> RenderableType:
    """The tables of `clocs info`, from what `store_info` returns.

    Of the quarantine its reasons are shown; every recording in it only if `verbose`.
    """
    ending = [*_remarks(info, verbose), *_quarantine(info, verbose)]
    return Group(_facts(info), Text(), _parts(info), Text(), _labels(info), *ending)


def _facts(info: Mapping[str, Any]) -> Table:
    def several(value: Any) -> str:
        return ", ".join(map(str, value)) if isinstance(value, list) else f"{value}"

    settings = ", ".join(f"{name}={value}" for name, value in info["settings"].items())
    shards = f" in {info['shards']:,} shards" if info["shards"] else ""
    kept = info["vectors"]
    vectors = f"{kept['bytes'] / 1e6:,.1f} MB in {kept['folder']}, which can be deleted"
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column()
    for name, value in (
        ("dataset", info["dataset"] + (f" ({settings})" if settings else "")),
        ("recordings", f"{info['recordings']:,} of {info['patients']:,} patients"),
        ("length", f"{info['hours']:,.1f} hours at {several(info['rate'])} Hz{_spread(info)}"),
        ("leads", f"{several(info['leads'])} of {several(info['all_leads'])}"),
        ("frames × leads", f"{info['frames']:,} of {info['frame']['seconds']:.4g} s"),
        ("unit", several(info["unit"])),
        ("filters", info["filters"]),
        ("on disk", f"{info['bytes'] / 1e6:,.1f} MB{shards}"),
        ("content", f"{info['content_hash'][:16]} (clocs {info['version']})"),
        *([("vectors kept", vectors)] if kept["bytes"] else []),
    ):
        table.add_row(name, value)
    return table


def _parts(info: Mapping[str, Any]) -> Table:
    by = f"split seed {info['split_seed']}"
    if info["folds"]:
        validation = ", ".join(info["folds"]["validation"]) or "by hash"
        by = f"folds: test {', '.join(info['folds']['test'])}, validation {validation}"
    title = f"Parts ({by}) and instances"
    table = Table(title=title, title_justify="left")
    columns(table, ("", *PARTS, "total"), left=("",))
    for row in ("patients", "recordings", "frames"):
        counts = [info["splits"][name][row] for name in PARTS]
        table.add_row(row, *(f"{count:,}" for count in (*counts, sum(counts))))
    table.add_section()
    for method, per_part in info["instances"].items():
        table.add_row(method, *(f"{per_part[name]:,}" for name in (*PARTS, "total")))
    return table


def _labels(info: Mapping[str, Any]) -> Table:
    table = Table(title="Labels", title_justify="left")
    columns(table, ("", "recordings", "frames × leads"), left=("",))
    for name, count in info["labels"].items():
        table.add_row(name, f"{count:,}", f"{info['label_frames'][name]:,}")
    for name, count in info["left_out_frames"].items():
        table.add_row(f"{name} (left out)", "", f"{count * len(info['leads']):,}")
    return table


def _remarks(info: Mapping[str, Any], verbose: bool) -> list[RenderableType]:
    shown: list[RenderableType] = [Text(f"\n{words}") for words in _notes(info)]
    if len(info["lead_sets"]) > 1:
        shown += [Text(), _lead_sets(info["lead_sets"])]
    if info["rows_without_recording"]:
        count = info["rows_without_recording"]
        most = count if verbose else _MAX_NAMED
        names = ", ".join(info["rows_without_recording_list"][:most])
        more = f" … and {count - most:,} more ({_ALL})" if count > most else ""
        shown.append(Text(f"\n{count:,} rows of the label table have no recording: {names}{more}"))
    return shown


def _quarantine(info: Mapping[str, Any], verbose: bool) -> list[RenderableType]:
    """Reasons with counts and an example of each, or every recording with its reason."""
    if not info["quarantined"]:
        return []
    table = Table(title=f"Quarantined: {info['quarantined']:,}", title_justify="left")
    columns(table, ("reason",) if verbose else ("reason", "recordings"), left=("reason",))
    for column in ("recording" if verbose else "such as", "detail"):
        table.add_column(column, overflow="fold")
    if verbose:
        for one in info["quarantine_list"]:
            table.add_row(Text(one["reason"]), Text(one["id"]), Text(one["detail"]))
        return [Text(), table]
    kinds = faults_by_kind(Quarantined(**one) for one in info["quarantine_list"])
    for one, count in kinds[:_MAX_KINDS]:
        table.add_row(Text(one.reason), f"{count:,}", Text(one.id), Text(one.detail))
    if left := kinds[_MAX_KINDS:]:
        table.add_row("others", f"{sum(count for _, count in left):,}", "", "")
    return [Text(), table, Text(f"Which recordings: {_ALL}.")]


def _notes(info: Mapping[str, Any]) -> list[str]:
    """Sentences about recordings that differ from the others."""
    unlabeled = info["recordings_without_label"]
    counts = {
        "recordings have none of these leads and no frame": info["recordings_without_leads"],
        "recordings lack some of these leads and give frames of those they have": info[
            "recordings_lacking_leads"
        ],
        "recordings have gaps, which cost the frames they touch": info["recordings_with_gaps"],
        "frames × leads are in gaps or flat and are skipped": info["views_without_signal"],
        "frames have no signal in any of these leads and are left out": info[
            "frames_without_signal"
        ],
        "recordings have no label: they are for pre-training": unlabeled
        if unlabeled < info["recordings"]
        else 0,
        "duplicate recordings: the same samples under several names": info["copies"],
    }
    return [f"{count:,} {words}." for words, count in counts.items() if count]


def _lead_sets(sets: list[dict[str, Any]]) -> Table:
    table = Table(title="Leads of recordings", title_justify="left")
    columns(table, ("leads", "recordings"), left=("leads",))
    for one in sets[:_MAX_SETS]:
        table.add_row(Text(", ".join(one["leads"])), f"{one['recordings']:,}")
    if len(sets) > _MAX_SETS:
        table.add_row("other sets", f"{sum(one['recordings'] for one in sets[_MAX_SETS:]):,}")
    return table


def _spread(info: Mapping[str, Any]) -> str:
    """How long recordings are, where they differ, and how many have which rate."""
    lengths, rates = info["lengths"], info["rates"]
    words = ""
    if len(rates) > 1:
        words = f" ({', '.join(f'{count:,} at {rate}' for rate, count in rates.items())})"
    if lengths["shortest"] < lengths["longest"]:
        low, middle, high = (lengths[name] for name in ("shortest", "median", "longest"))
        words += f"; {low:,.4g} to {high:,.4g} s each, median {middle:,.4g} s"
    return words
