"""What is in a store, counted: for programs (`store_info`) and for people (`format_info`).

Knows nothing about signals; everything follows from the table and the manifest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from clocs.frames.labels import FrameLabels, label_frames
from clocs.frames.positions import Cuts, cut, pairs
from clocs.frames.splits import PARTS, assign
from clocs.pretraining.methods import METHODS
from clocs.recording import FrameSpec
from clocs.store.store import Store

_MOST_LISTED = 20
_MOST_NAMED = 4


def store_info(
    store: Store, leads: Sequence[str] | None = None, split_seed: int = 0
) -> dict[str, Any]:
    """Count everything in a store; what comes back is ready for JSON.

    `frames`, `label_frames` and the frames of `splits` are frames × chosen leads; recordings that
    lack one of the chosen leads have none. Frames whose episode bears no label of the dataset are
    left out of all of these and counted in `left_out_frames`, once a frame.
    """
    chosen = store.choose_leads(leads)
    manifest, table = store.manifest, store.table
    usable = np.zeros(len(store), dtype=np.bool_)
    usable[store.rows_with(chosen)] = True
    cuts, labelled = _frames(store, manifest.frame, usable)
    segments, with_label = _frames(store, manifest.segment_frame, usable)

    people = table["patient"].unique(maintain_order=True)
    index = table["patient"].replace_strict(people, np.arange(len(people)), return_dtype=pl.Int64)
    part_of_patient = assign(people.to_list(), manifest.dataset, split_seed)
    part = part_of_patient[index.to_numpy()]
    frame_part = part[cuts.recording[labelled.kept]]
    pair_part = part[segments.recording[pairs(segments, with_label.kept)]]
    counts = {"frame": _per_part(frame_part), "pair": _per_part(pair_part)}
    each = {"lead": len(chosen), "frame": 1}  # instances of each frame or pair, as methods count
    people_per_part, recordings_per_part = _per_part(part_of_patient), _per_part(part)

    seconds = float((table["samples"] / table["rate"]).sum())
    quarantine = store.quarantine
    return {
        "dataset": manifest.dataset,
        "source": manifest.source,
        "settings": dict(manifest.settings),
        "version": manifest.clocs,
        "format": manifest.format,
        "content_hash": manifest.content_hash,
        "bytes": store.bytes,
        "recordings": len(store),
        "recordings_without_leads": int((~usable).sum()),
        "patients": len(people),
        "frames": counts["frame"]["total"] * len(chosen),
        "leads": list(chosen),
        "all_leads": list(store.leads),
        "rate": _one_or_all(table["rate"]),
        "unit": _one_or_all(table["unit"]),
        "seconds": seconds,
        "hours": seconds / 3600,
        "multilabel": manifest.multilabel,
        "frame": {"seconds": manifest.frame.seconds, "samples": manifest.frame.samples},
        "segment_frame": {
            "seconds": manifest.segment_frame.seconds,
            "samples": manifest.segment_frame.samples,
        },
        "labels": _label_recordings(store),
        "label_frames": _label_frames(store, cuts, labelled, len(chosen)),
        "left_out_frames": labelled.left_out,
        "split_seed": split_seed,
        "splits": {
            name: {
                "patients": people_per_part[name],
                "recordings": recordings_per_part[name],
                "frames": counts["frame"][name] * len(chosen),
            }
            for name in PARTS
        },
        "instances": {
            name: {
                part: count * each[method.of]
                for part, count in counts["pair" if method.views.segments > 1 else "frame"].items()
            }
            for name, method in METHODS.items()
        },
        "copies": int(table["digest"].is_duplicated().sum()),
        "quarantined": quarantine.height,
        "quarantine": _counted(quarantine["reason"]),
        "quarantine_list": quarantine.to_dicts(),
        "rows_without_recording": manifest.rows_without_recording,
        "rows_without_recording_list": list(store.rows_without_recording),
    }


def _frames(store: Store, spec: FrameSpec, usable: NDArray[np.bool_]) -> tuple[Cuts, FrameLabels]:
    """All frames of the usable recordings, and what they are labelled."""
    samples = np.where(usable, store.table["samples"].to_numpy(), 0)
    cuts = cut(samples, store.table["rate"].to_numpy(), spec)
    return cuts, label_frames(store.table, cuts, store.manifest.labels)


def _label_recordings(store: Store) -> dict[str, int]:
    """Recordings that bear each label, as a whole or in an episode."""
    of_episodes = pl.col("episodes").list.eval(pl.element().struct.field("label"))
    each = store.table.select(pl.concat_list("labels", of_episodes).list.unique().alias("label"))
    found = _counted(each["label"].explode().drop_nulls())
    return {name: found.get(name, 0) for name in store.manifest.labels}


def _label_frames(store: Store, cuts: Cuts, frames: FrameLabels, leads: int) -> dict[str, int]:
    classes = store.manifest.labels
    total = np.bincount(frames.label[frames.label >= 0], minlength=len(classes))
    whole = cuts.recording[frames.kept & (frames.label < 0)]
    per_recording = pl.Series("frames", np.bincount(whole, minlength=len(store)))
    of_recordings = (
        store.table.select("labels", per_recording)
        .explode("labels")
        .drop_nulls()
        .group_by("labels")
        .agg(pl.col("frames").sum())
    )
    by_recording = dict(of_recordings.iter_rows())
    return {
        name: int(total[i] + by_recording.get(name, 0)) * leads for i, name in enumerate(classes)
    }


def _per_part(part: NDArray[np.int8]) -> dict[str, int]:
    counts = np.bincount(part, minlength=len(PARTS))
    return {
        **{name: int(count) for name, count in zip(PARTS, counts, strict=True)},
        "total": int(counts.sum()),
    }


def _counted(values: pl.Series) -> dict[str, int]:
    counts = values.value_counts(sort=True).rows()
    return dict(sorted(counts, key=lambda row: (-row[1], row[0])))


def _one_or_all(values: pl.Series) -> Any:
    """The value that all recordings share, else the sorted list of those that occur."""
    found = values.unique().sort().to_list()
    return found[0] if len(found) == 1 else found


def format_info(info: Mapping[str, Any]) -> RenderableType:
    """The same for a person: tables, with long lists cut short."""
    return Group(_facts(info), Text(), _parts(info), Text(), _labels(info), *_quarantine(info))


def _facts(info: Mapping[str, Any]) -> Table:
    def several(value: Any) -> str:
        return ", ".join(map(str, value)) if isinstance(value, list) else f"{value}"

    settings = ", ".join(f"{name}={value}" for name, value in info["settings"].items())
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column()
    for name, value in (
        ("dataset", info["dataset"] + (f" ({settings})" if settings else "")),
        ("recordings", f"{info['recordings']:,} of {info['patients']:,} patients"),
        ("length", f"{info['hours']:,.1f} hours at {several(info['rate'])} Hz"),
        ("leads", f"{several(info['leads'])} of {several(info['all_leads'])}"),
        ("frames × leads", f"{info['frames']:,} of {info['frame']['seconds']:.4g} s"),
        ("unit", several(info["unit"])),
        ("on disk", f"{info['bytes'] / 1e6:,.1f} MB"),
        ("content", f"{info['content_hash'][:16]} (clocs {info['version']})"),
    ):
        table.add_row(name, value)
    return table


def _parts(info: Mapping[str, Any]) -> Table:
    title = f"Parts (split seed {info['split_seed']}) and instances"
    table = Table(title=title, title_justify="left")
    table.add_column("")
    for name in (*PARTS, "total"):
        table.add_column(name, justify="right")
    for row in ("patients", "recordings", "frames"):
        counts = [info["splits"][name][row] for name in PARTS]
        table.add_row(row, *(f"{count:,}" for count in (*counts, sum(counts))))
    table.add_section()
    for method, per_part in info["instances"].items():
        table.add_row(method, *(f"{per_part[name]:,}" for name in (*PARTS, "total")))
    return table


def _labels(info: Mapping[str, Any]) -> Table:
    table = Table(title="Labels", title_justify="left")
    table.add_column("")
    table.add_column("recordings", justify="right")
    table.add_column("frames × leads", justify="right")
    for name, count in info["labels"].items():
        table.add_row(name, f"{count:,}", f"{info['label_frames'][name]:,}")
    for name, count in info["left_out_frames"].items():
        table.add_row(f"{name} (left out)", "", f"{count * len(info['leads']):,}")
    return table


def _quarantine(info: Mapping[str, Any]) -> list[RenderableType]:
    shown: list[RenderableType] = []
    if info["recordings_without_leads"]:
        count = info["recordings_without_leads"]
        shown.append(Text(f"\n{count:,} recordings lack one of these leads and are not counted."))
    if info["copies"]:
        words = f"\n{info['copies']:,} recordings stand here more than once, under other names."
        shown.append(Text(words))
    if info["rows_without_recording"]:
        count = info["rows_without_recording"]
        names = ", ".join(info["rows_without_recording_list"][:_MOST_NAMED])
        more = (
            f" … and {count - _MOST_NAMED:,} more (--json lists all)" if count > _MOST_NAMED else ""
        )
        shown.append(Text(f"\n{count:,} rows of the label table have no recording: {names}{more}"))
    if not info["quarantined"]:
        return shown
    reasons = ", ".join(f"{reason} {count:,}" for reason, count in info["quarantine"].items())
    title = f"Quarantined: {info['quarantined']:,} ({reasons})"
    table = Table(title=title, title_justify="left")
    for column in ("recording", "reason", "detail"):
        table.add_column(column, overflow="fold")
    for one in info["quarantine_list"][:_MOST_LISTED]:
        table.add_row(Text(one["id"]), Text(one["reason"]), Text(one["detail"]))
    shown += [Text(), table]
    more = info["quarantined"] - _MOST_LISTED
    if more > 0:
        shown.append(Text(f"… and {more:,} more (--json lists all)"))
    return shown
