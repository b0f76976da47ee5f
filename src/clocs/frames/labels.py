"""The label of each frame of a store."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from clocs.frames.positions import Cuts, frame_labels

NO_EPISODE = "(no episode)"


@dataclass(frozen=True, slots=True)
class FrameLabels:
    """Labels of the frames of a store.

    Attributes:
        kept: (frames,) whether a frame is used; not where its episode is of none of the classes.
        label: (frames,) the class of the episode that covers the frame's first sample; −1 where the
            recording has no episodes, so that its own labels apply, and where the frame is left
            out.
        left_out: Frames left out, by label.
    """

    kept: NDArray[np.bool_]
    label: NDArray[np.int64]
    left_out: dict[str, int]


def label_frames(table: pl.DataFrame, cuts: Cuts, classes: tuple[str, ...]) -> FrameLabels:
    """Label the frames of a store's rows by their episodes.

    Args:
        table: Rows of a store.
        cuts: Their frames; `cuts.recording` numbers the rows.
        classes: Class names of the dataset.
    """
    episodes = (
        table.select(pl.int_range(pl.len(), dtype=pl.Int64).alias("recording"), "episodes")
        .filter(pl.col("episodes").list.len() > 0)
        .explode("episodes")
        .unnest("episodes")
    )
    every = np.ones(cuts.start.size, dtype=np.bool_)
    if episodes.is_empty():
        return FrameLabels(every, np.full(cuts.start.size, -1), {})
    names = [*classes, *(n for n in episodes["label"].unique().sort() if n not in classes)]
    found = frame_labels(
        cuts,
        recording=episodes["recording"].to_numpy(),
        start=episodes["start"].to_numpy(),
        stop=episodes["stop"].to_numpy(),
        label=episodes["label"]
        .replace_strict(names, np.arange(len(names)), return_dtype=pl.Int64)
        .to_numpy(),
    )
    known = (found >= 0) & (found < len(classes))
    kept = known | ~np.isin(cuts.recording, episodes["recording"].to_numpy())
    kinds, counts = np.unique(found[~kept], return_counts=True)
    left_out = {
        NO_EPISODE if kind < 0 else names[kind]: int(count)
        for kind, count in zip(kinds.tolist(), counts, strict=True)
    }
    return FrameLabels(kept, np.where(known, found, -1), left_out)
