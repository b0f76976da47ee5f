"""What is in a store, counted: patients, recordings, frames, labels, parts, quarantine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from clocs.frames.make import pairs, plan_frames
from clocs.frames.splits import LEFT_OUT, PARTS, split_patients
from clocs.frames.views import Views
from clocs.store.store import Store


def store_info(
    store: Store,
    leads: Sequence[str] | None = None,
    split_seed: int = 0,
    instances: Mapping[str, tuple[Literal["lead", "frame"], Views]] | None = None,
) -> dict[str, Any]:
    """Count everything in a store; the result is ready for JSON.

    `frames`, `label_frames` and the frames of `splits` are frames × those of the chosen leads that
    have a signal there. Frames of episodes without a label of the dataset are excluded from all of
    these and counted in `left_out_frames`, once per frame; `frames_without_signal` are those that
    have none in any of the leads, and `views_without_signal` are frames × leads in gaps or flat, of
    recordings that have the lead. `lead_sets` says how many recordings have which leads, `rates`
    which rate in Hz, and `lengths` are quantiles of their seconds.

    Args:
        store: An opened store.
        leads: The leads to count; the default ones where None.
        split_seed: Random seed for the patient split.
        instances: What to count in `instances`, by name: what an instance is, and its views.
    """
    manifest, table = store.manifest, store.table
    plan = plan_frames(store, leads=leads, split_seed=split_seed)
    segments = plan_frames(
        store, spec=manifest.segment_frame, leads=plan.leads, split_seed=split_seed
    )
    everyone = split_patients(store, split_seed=split_seed)
    part = everyone.recording_part
    frames = np.flatnonzero(plan.kept)
    pair = pairs(segments.cuts, segments.kept)
    # (frames or pairs, leads) whether a lead has a signal in all of it
    present = plan.present[frames], segments.present[pair] & segments.present[pair + 1]
    of_part = (
        part[plan.rows[plan.cuts.recording[frames]]],
        part[segments.rows[segments.cuts.recording[pair]]],
    )

    def counted(of: str, several: bool) -> dict[str, int]:
        own = present[several]
        each = own.sum(axis=1) if of == "lead" else own.all(axis=1).astype(np.int64)
        return _per_part(of_part[several], np.asarray(each))

    views_per_part = counted("lead", False)
    people_per_part, recordings_per_part = _per_part(everyone.part), _per_part(part)
    without_signal = ~plan.present.any(axis=1)
    labeled = plan.kept & plan.target.any(axis=1)

    seconds = table["samples"] / table["rate"]
    quantiles = {"shortest": 0.0, "median": 0.5, "longest": 1.0}
    sets = _counted(table["leads"].list.join(", "))
    of_episodes = pl.col("episodes").list.eval(pl.element().struct.field("label"))
    labels = table.select(pl.concat_list("labels", of_episodes).list.unique().alias("label"))
    labels_found = _counted(labels["label"].explode().drop_nulls())
    label_frames = plan.target[frames].astype(np.int64).T @ present[0].sum(axis=1)
    quarantine = store.quarantine
    return {
        "dataset": manifest.dataset,
        "source": manifest.source,
        "settings": dict(manifest.settings),
        "version": manifest.clocs,
        "format": manifest.format,
        "shards": len(manifest.shards),
        "content_hash": manifest.content_hash,
        "bytes": store.bytes,
        "recordings": len(store),
        "recordings_without_leads": len(store) - len(plan.rows),
        "recordings_lacking_leads": int((~plan.has.all(axis=1)).sum()),
        "recordings_with_gaps": int((table["gaps"].list.len() > 0).sum()),
        "patients": table["patient"].n_unique(),
        "frames": views_per_part["total"],
        "frames_without_signal": int(without_signal.sum()),
        "views_without_signal": plan.without_signal,
        "recordings_without_label": len(plan.rows) - len(np.unique(plan.cuts.recording[labeled])),
        "leads": list(plan.leads),
        "all_leads": list(store.leads),
        "lead_sets": [{"leads": k.split(", "), "recordings": n} for k, n in sets.items()],
        "rates": {f"{rate:g}": n for rate, n in sorted(_counted(table["rate"]).items())},
        "lengths": {k: float(seconds.quantile(q, "nearest") or 0) for k, q in quantiles.items()},
        "rate": _one_or_all(table["rate"]),
        "unit": _one_or_all(table["unit"]),
        "seconds": float(seconds.sum()),
        "hours": float(seconds.sum()) / 3600,
        "multilabel": manifest.multilabel,
        "frame": manifest.frame.to_dict(),
        "segment_frame": manifest.segment_frame.to_dict(),
        "filters": str(manifest.frame.filters),
        "labels": {name: labels_found.get(name, 0) for name in manifest.labels},
        "label_frames": dict(zip(manifest.labels, label_frames.tolist(), strict=True)),
        "left_out_frames": plan.left_out,
        "split_seed": split_seed,
        "folds": None if everyone.folds is None else everyone.folds.to_dict(),
        "recordings_per_fold": _counted(table["fold"].drop_nulls()),
        "splits": {
            name: {
                "patients": people_per_part[name],
                "recordings": recordings_per_part[name],
                "frames": views_per_part[name],
            }
            for name in PARTS
        },
        "instances": {
            name: counted(of, views.segments > 1) for name, (of, views) in (instances or {}).items()
        },
        "copies": table.height - table["digest"].n_unique(),
        "quarantined": quarantine.height,
        "quarantine": _counted(quarantine["reason"]),
        "quarantine_list": quarantine.to_dicts(),
        "rows_without_recording": manifest.rows_without_recording,
        "rows_without_recording_list": list(store.rows_without_recording),
    }


def _per_part(part: NDArray[np.int8], each: NDArray[Any] | None = None) -> dict[str, int]:
    """How many of each part, or the sum of `each`."""
    counts = np.bincount(part - LEFT_OUT, each, minlength=1 + len(PARTS)).astype(np.int64)
    return dict(zip(PARTS, counts[1:].tolist(), strict=True)) | {"total": int(counts.sum())}


def _counted(values: pl.Series) -> dict[Any, int]:
    """How often each value occurs, the most frequent first."""
    return dict(sorted(values.value_counts().rows(), key=lambda row: (-row[1], row[0])))


def _one_or_all(values: pl.Series) -> Any:
    """The value that all recordings share, else the sorted list of those that occur."""
    found = values.unique().sort().to_list()
    return found[0] if len(found) == 1 else found
