"""Stores in the terminal: what is counted in one, and what a dry run of preparing understood."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from clocs.cli.tables import grid, words_table

PARTS = ("train", "validation", "test")
_MAX_NAMED, _MAX_ROWS = 4, 20
_NOTES = {
    "recordings_without_leads": "recordings have none of these leads and no frame",
    "recordings_lacking_leads": "recordings lack some of these leads and give frames of the others",
    "recordings_with_gaps": "recordings have gaps, which cost the frames they touch",
    "views_without_signal": "frames × leads are in gaps or flat and are skipped",
    "frames_without_signal": "frames have no signal in any of these leads and are left out",
    "recordings_without_label": "recordings have no label: they are for pre-training",
    "copies": "duplicate recordings: the same samples under several names",
}
_UNDERSTOOD = (
    *("files", "recordings", "sampled", "patients", "recordings_per_patient", "leads", "rates"),
    *("seconds", "units", "labels", "unlabeled", "folds", "frame", "rows_without_recording"),
)
_ALL = "`clocs info --verbose` lists all"


def store_tables(info: Mapping[str, Any], *, verbose: bool = False) -> RenderableType:
    """The tables of `clocs info`, from what `store_info` returns.

    Of the quarantine its reasons are shown; every recording in it only if `verbose`.
    """
    ending = [*_remarks(info, verbose), *_quarantine(info, verbose)]
    return Group(_facts(info), Text(), _parts(info), Text(), _labels(info), *ending)


def _plain(rows: Iterable[tuple[str, str]]) -> Table:
    """Facts without lines around them."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, Text(value))
    return table


def _grid(title: str, heads: Sequence[str], rows: Iterable[Any], left: Sequence[str]) -> Table:
    return grid(title, heads, rows, left=left, title_justify="left")


def _facts(info: Mapping[str, Any]) -> Table:
    def several(value: Any) -> str:
        return ", ".join(map(str, value)) if isinstance(value, list) else f"{value}"

    settings = ", ".join(f"{name}={value}" for name, value in info["settings"].items())
    shards = f" in {info['shards']:,} shards" if info["shards"] else ""
    kept = info["vectors"]
    vectors = f"{kept['bytes'] / 1e6:,.1f} MB in {kept['folder']}, which can be deleted"
    return _plain(
        [
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
        ]
    )


def _parts(info: Mapping[str, Any]) -> Table:
    by = f"split seed {info['split_seed']}"
    if info["folds"]:
        validation = ", ".join(info["folds"]["validation"]) or "by hash"
        by = f"folds: test {', '.join(info['folds']['test'])}, validation {validation}"
    rows = []
    for row in ("patients", "recordings", "frames"):
        counts = [info["splits"][name][row] for name in PARTS]
        rows.append((row, *(f"{count:,}" for count in (*counts, sum(counts)))))
    title = f"Parts ({by}) and instances"
    table = _grid(title, ("", *PARTS, "total"), rows, left=("",))
    table.add_section()
    for method, per_part in info["instances"].items():
        table.add_row(method, *(f"{per_part[name]:,}" for name in (*PARTS, "total")))
    return table


def _labels(info: Mapping[str, Any]) -> Table:
    rows = [
        (name, f"{count:,}", f"{info['label_frames'][name]:,}")
        for name, count in info["labels"].items()
    ]
    rows += [
        (f"{name} (left out)", "", f"{count * len(info['leads']):,}")
        for name, count in info["left_out_frames"].items()
    ]
    return _grid("Labels", ("", "recordings", "frames × leads"), rows, left=("",))


def _remarks(info: Mapping[str, Any], verbose: bool) -> list[RenderableType]:
    shown: list[RenderableType] = [Text(f"\n{words}") for words in _notes(info)]
    sets = info["lead_sets"]
    if len(sets) > 1:
        rows = [(", ".join(one["leads"]), f"{one['recordings']:,}") for one in sets[:_MAX_ROWS]]
        others = sum(one["recordings"] for one in sets[_MAX_ROWS:])
        rows += [("other sets", f"{others:,}")] if others else []
        shown += [Text(), _grid("Leads of recordings", ("leads", "recordings"), rows, ("leads",))]
    if count := info["rows_without_recording"]:
        most = count if verbose else _MAX_NAMED
        names = ", ".join(info["rows_without_recording_list"][:most])
        more = f" … and {count - most:,} more ({_ALL})" if count > most else ""
        shown.append(Text(f"\n{count:,} rows of the label table have no recording: {names}{more}"))
    return shown


def _quarantine(info: Mapping[str, Any], verbose: bool) -> list[RenderableType]:
    """Reasons with counts and an example of each, or every recording with its reason."""
    if not info["quarantined"]:
        return []
    title = f"Quarantined: {info['quarantined']:,}"
    if verbose:
        heads: tuple[str, ...] = ("reason", "recording", "detail")
        rows = [
            [Text(one[k]) for k in ("reason", "id", "detail")] for one in info["quarantine_list"]
        ]
        return [Text(), _grid(title, heads, rows, heads)]
    from clocs.datasets.base import Quarantined, faults_by_kind

    kinds = faults_by_kind(Quarantined(**one) for one in info["quarantine_list"])
    rows = [
        [Text(one.reason), Text(f"{count:,}"), Text(one.id), Text(one.detail)]
        for one, count in kinds[:_MAX_ROWS]
    ]
    if others := sum(count for _, count in kinds[_MAX_ROWS:]):
        rows.append([Text("others"), Text(f"{others:,}"), Text(), Text()])
    heads = ("reason", "recordings", "such as", "detail")
    table = _grid(title, heads, rows, left=("reason", "such as", "detail"))
    return [Text(), table, Text(f"Which recordings: {_ALL}.")]


def _notes(info: Mapping[str, Any]) -> list[str]:
    """Sentences about recordings that differ from the others."""
    shown = dict(info)
    if info["recordings_without_label"] == info["recordings"]:
        del shown["recordings_without_label"]
    return [f"{shown[name]:,} {words}." for name, words in _NOTES.items() if shown.get(name)]


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


def preview_tables(facts: Mapping[str, Any]) -> RenderableType:
    """The tables of `clocs prepare --dry-run`, from what `clocs.preview` returns."""
    shown: list[RenderableType] = [words_table("", facts, _UNDERSTOOD), _examples(facts)]
    if facts["problems"]:
        heads = ("reason", "recordings", "for example")
        rows = [
            (one["reason"], f"{one['count']:,}", Text("\n".join(one["examples"])))
            for one in facts["problems"]
        ]
        shown += [Text(), _grid("Problems", heads, rows, heads)]
    shown += [Text(f"Note: {notice}.") for notice in facts["notices"]]
    return Group(*shown, Text())


def _examples(facts: Mapping[str, Any]) -> Table:
    heads = ("recording", "patient", "leads", "Hz", "s", "labels", "age", "sex", "taken")
    rows = []
    for one in facts["examples"]:
        leads = ", ".join(one["leads"][:4]) + (" …" if len(one["leads"]) > 4 else "")
        values = (
            *(one["id"], one["patient"], leads, f"{one['rate']:g}", f"{one['seconds']:.4g}"),
            *(", ".join(one["labels"]), one["age"], one["sex"], one["taken"]),
        )
        rows.append([Text("" if value is None else str(value)) for value in values])
    return _grid("Examples", heads, rows, heads)
