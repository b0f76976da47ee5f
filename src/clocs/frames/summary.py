"""What is in a store, counted: patients, recordings, frames, labels, parts, quarantine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from clocs.frames.positions import Cuts, FrameLabels, cut, label_frames, pairs
from clocs.frames.splits import PARTS, assign
from clocs.frames.views import Views
from clocs.recording import FrameSpec
from clocs.store.store import Store


def store_info(
    store: Store,
    leads: Sequence[str] | None = None,
    split_seed: int = 0,
    instances: Mapping[str, tuple[Literal["lead", "frame"], Views]] | None = None,
) -> dict[str, Any]:
    """Count everything in a store; the result is ready for JSON.

    `frames`, `label_frames` and the frames of `splits` are frames × chosen leads; recordings that
    lack one of the chosen leads have none. Frames of episodes without a label of the dataset are
    excluded from all of these and counted in `left_out_frames`, once per frame.

    Args:
        store: An opened store.
        leads: The leads to count; the default ones where None.
        split_seed: Random seed for the patient split.
        instances: What to count in `instances`, by name: what an instance is, and its views.
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
    each = {"lead": len(chosen), "frame": 1}  # instances per frame or pair
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
        "frame": asdict(manifest.frame),
        "segment_frame": asdict(manifest.segment_frame),
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
                part: count * each[of]
                for part, count in counts["pair" if views.segments > 1 else "frame"].items()
            }
            for name, (of, views) in (instances or {}).items()
        },
        "copies": int(table["digest"].is_duplicated().sum()),
        "quarantined": quarantine.height,
        "quarantine": _counted(quarantine["reason"]),
        "quarantine_list": quarantine.to_dicts(),
        "rows_without_recording": manifest.rows_without_recording,
        "rows_without_recording_list": list(store.rows_without_recording),
    }


def _frames(store: Store, spec: FrameSpec, usable: NDArray[np.bool_]) -> tuple[Cuts, FrameLabels]:
    """All frames of the usable recordings, and their labels."""
    samples = np.where(usable, store.table["samples"].to_numpy(), 0)
    cuts = cut(samples, store.table["rate"].to_numpy(), spec)
    return cuts, label_frames(store.table, cuts, store.manifest.labels)


def _label_recordings(store: Store) -> dict[str, int]:
    """Recordings with each label, as a whole or in an episode."""
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
    return dict(zip(PARTS, counts.tolist(), strict=True)) | {"total": len(part)}


def _counted(values: pl.Series) -> dict[str, int]:
    counts = values.value_counts(sort=True).rows()
    return dict(sorted(counts, key=lambda row: (-row[1], row[0])))


def _one_or_all(values: pl.Series) -> Any:
    """The value that all recordings share, else the sorted list of those that occur."""
    found = values.unique().sort().to_list()
    return found[0] if len(found) == 1 else found
