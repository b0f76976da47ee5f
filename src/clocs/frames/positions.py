"""Frames of a store's table: which episode covers them, and where they have a signal.

Arrays are flat, with one element per frame, so a whole store is cut at once. Absent leads, gaps and
flat stretches have no signal: a gap costs the frames of its lead that it touches, a flat stretch
those that lie within it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

from clocs.frames.signals import Cuts, touched, within
from clocs.recording import LIMB_LEADS, LIMB_SOURCES, FrameSpec, Gap, leads_touched

NO_EPISODE = "(no episode)"


def frame_labels(
    cuts: Cuts,
    *,
    recording: NDArray[np.int64],
    start: NDArray[np.int64],
    stop: NDArray[np.int64],
    label: NDArray[np.int64],
) -> NDArray[np.int64]:
    """(frames,) the label of the episode that covers each frame's first sample, -1 where none does.

    All but `cuts` are (episodes,); those of a recording do not overlap, and `stop` is exclusive.
    """
    if recording.size == 0 or cuts.start.size == 0:
        return np.full(cuts.start.size, -1, dtype=np.int64)
    # All recordings on one axis, far enough apart, need one search only.
    span = int(max(stop.max(), cuts.start.max())) + 1
    line = recording * span + start
    order = np.argsort(line, kind="stable")
    at = np.searchsorted(line[order], cuts.recording * span + cuts.start, side="right") - 1
    found = order[np.maximum(at, 0)]
    covers = (at >= 0) & (recording[found] == cuts.recording) & (cuts.start < stop[found])
    return np.where(covers, label[found], -1)


def label_frames(
    table: pl.DataFrame, cuts: Cuts, classes: tuple[str, ...], *, keep_unlabeled: bool = False
) -> tuple[NDArray[np.bool_], NDArray[np.uint8], dict[str, int]]:
    """Label the frames of a store's rows, which `cuts.recording` numbers.

    Labels are the recording's or, where it has episodes, the label of the one that covers the
    frame's first sample. `keep_unlabeled` keeps frames whose episode is of none of the classes, or
    that have none.

    Returns:
        (frames,) which are kept, (frames, classes) 1 where a label holds, and how many frames are
        not kept, by label.
    """
    # There are few distinct sets of labels: look up each once.
    sets = table["labels"].list.join("\0")
    kinds = sets.unique()
    whole = np.zeros((len(kinds), len(classes)), np.uint8)
    for i, names in enumerate(kinds.to_list()):
        whole[i, [classes.index(name) for name in names.split("\0") if name in classes]] = 1
    kind = sets.replace_strict(kinds, np.arange(len(kinds)), return_dtype=pl.Int64).to_numpy()
    target: NDArray[np.uint8] = whole[kind[cuts.recording]]
    every = np.ones(cuts.start.size, dtype=np.bool_)
    episodes = (
        table.select(pl.int_range(pl.len(), dtype=pl.Int64).alias("recording"), "episodes")
        .filter(pl.col("episodes").list.len() > 0)
        .explode("episodes")
        .unnest("episodes")
    )
    if episodes.is_empty():
        return every, target, {}
    names = [*classes, *(n for n in episodes["label"].unique().sort() if n not in classes)]
    number = episodes["label"].replace_strict(names, np.arange(len(names)), return_dtype=pl.Int64)
    recording, start, stop = (episodes[k].to_numpy() for k in ("recording", "start", "stop"))
    found = frame_labels(cuts, recording=recording, start=start, stop=stop, label=number.to_numpy())
    by_episode = np.isin(cuts.recording, recording)
    known = (found >= 0) & (found < len(classes))
    target[by_episode] = 0
    target[known, found[known]] = 1
    kept = every if keep_unlabeled else known | ~by_episode
    kinds_left, counts = np.unique(found[~kept], return_counts=True)
    left_out = {
        NO_EPISODE if kind < 0 else names[kind]: int(count)
        for kind, count in zip(kinds_left.tolist(), counts, strict=True)
    }
    return kept, target, left_out


def pairs(cuts: Cuts, kept: NDArray[np.bool_]) -> NDArray[np.int64]:
    """(pairs,) where each pair of consecutive frames, (0, 1), (2, 3) …, begins in `cuts`.

    Both frames of a pair must be of one recording and `kept`.
    """
    first = np.flatnonzero(cuts.frame % 2 == 0)
    first = first[first + 1 < cuts.frame.size]
    whole = cuts.recording[first] == cuts.recording[first + 1]
    both: NDArray[np.bool_] = whole & kept[first] & kept[first + 1]
    return first[both]


def has_leads(
    table: pl.DataFrame, leads: Sequence[str], *, derived: bool = True
) -> NDArray[np.bool_]:
    """(recordings, leads) whether a recording has a lead, or I and II, from which it is derived."""
    has = table.select(pl.col("leads").list.contains(lead).alias(lead) for lead in leads)
    found = has.to_numpy().astype(np.bool_).reshape(table.height, len(leads))
    limb = [place for place, lead in enumerate(leads) if lead in LIMB_LEADS]
    if derived and limb and not found[:, limb].all():
        found[:, limb] |= has_leads(table, LIMB_SOURCES).all(axis=1, keepdims=True)
    return found


def present_frames(
    table: pl.DataFrame, cuts: Cuts, spec: FrameSpec, leads: Sequence[str]
) -> NDArray[np.bool_]:
    """(frames, leads) whether a frame of `cuts`, which numbers the table's rows, has a signal."""
    present = has_leads(table, leads)[cuts.recording]
    first = np.searchsorted(cuts.recording, np.arange(table.height + 1))
    rate = table["rate"].to_numpy()
    for row, gap in _stretches(table, "gaps", leads):
        own = slice(first[row], first[row + 1])
        present[own, leads.index(gap.lead)] &= ~touched(cuts.start[own], rate[row], spec, gap)
    for row, flat in _stretches(table, "flat", leads):
        own = slice(first[row], first[row + 1])
        present[own, leads.index(flat.lead)] &= ~within(cuts.start[own], rate[row], spec, flat)
    return present


def gaps_of(table: pl.DataFrame, leads: Sequence[str]) -> dict[int, list[Gap]]:
    """The gaps of these leads, by row of the table; only rows that have some."""
    found: dict[int, list[Gap]] = {}
    for row, gap in _stretches(table, "gaps", leads):
        found.setdefault(row, []).append(gap)
    return found


def _stretches(table: pl.DataFrame, column: str, leads: Sequence[str]) -> Iterator[tuple[int, Gap]]:
    """(row, stretch) of a column of stretches, in these leads; those of I also in what needs it."""
    some = table.with_row_index("row").filter(pl.col(column).list.len() > 0)
    for row, own, stretches in some.select("row", "leads", column).iter_rows():
        for one in stretches:
            touched = leads_touched(one["lead"], own)
            yield from ((row, Gap(**one | {"lead": lead})) for lead in touched if lead in leads)
