"""Halves of recordings: two embeddings of the same patient that share no frame."""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from clocs.frames.positions import frame_count
from clocs.patients.embeddings import Embeddings
from clocs.patients.rows import ID_COLUMNS, Level
from clocs.recording import FrameSpec
from clocs.store.store import Store


def frame_with_halves(store: Store) -> FrameSpec:
    """The dataset's frame where most recordings hold two, else the frame of its segments."""
    manifest = store.manifest
    samples, rate = store.table["samples"].to_numpy(), store.table["rate"].to_numpy()
    two = frame_count(samples, rate, manifest.frame) >= 2
    return manifest.frame if two.mean() > 0.5 else manifest.segment_frame


def halves(frames: Embeddings, level: Level = "recording") -> tuple[Embeddings, Embeddings]:
    """Embeddings of frames -> those of the first and of the second halves of recordings.

    A frame in the middle belongs to neither half; recordings of a single frame have no halves.
    """
    ids = ID_COLUMNS["recording"]
    place = pl.col("segment").rank("dense").over(ids) - 1
    count = pl.col("segment").n_unique().over(ids)
    both = frames.rows.select(place.alias("place"), count.alias("count"))
    at, total = both["place"].to_numpy(), both["count"].to_numpy()
    half = total // 2
    return (
        frames.where(at < half).to(level),
        frames.where((at >= total - half) & (half > 0)).to(level),
    )


def patient_halves(frames: Embeddings) -> NDArray[np.float32]:
    """(patients, 2, dim): unit vectors of either half of each patient's recordings.

    Patients without two halves are left out.
    """
    first, second = halves(frames, "patient")
    ids = list(ID_COLUMNS["patient"])
    left, right = first.rows.select(ids).with_row_index("a"), second.rows.select(ids)
    pairs = left.join(right.with_row_index("b"), on=ids, maintain_order="left", nulls_equal=True)
    return np.stack([first.vectors[pairs["a"]], second.vectors[pairs["b"]]], axis=1)
