"""Which leads of which frames have a signal: absent leads, gaps and flat stretches have none.

A gap costs the frames of its lead that it touches. A flat stretch costs those that lie within it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

from clocs.frames.positions import Cuts, frame_width
from clocs.recording import LIMB_LEADS, LIMB_SOURCES, FrameSpec, Gap, leads_touched


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


def touched(start: NDArray[np.int64], rate: float, spec: FrameSpec, gap: Gap) -> NDArray[np.bool_]:
    """(frames,) which frames of a recording, given by their first samples, a gap touches."""
    width = int(np.ceil(frame_width(rate, spec)))
    return np.asarray((start < gap.stop) & (start + width > gap.start), np.bool_)


def within(start: NDArray[np.int64], rate: float, spec: FrameSpec, flat: Gap) -> NDArray[np.bool_]:
    """(frames,) which frames, given by their first samples, lie within a flat stretch."""
    width = int(frame_width(rate, spec))
    return np.asarray((start >= flat.start) & (start + width <= flat.stop), np.bool_)


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


def bridged(
    digital: NDArray[np.int16], leads: Sequence[str], gaps: Sequence[Gap]
) -> NDArray[np.int16]:
    """(leads, samples) with straight lines across gaps, so that nothing else spreads from them.

    Resampling and filters see a whole recording, and a step would ring in the frames beside the
    gap. At the ends of a recording, the nearest value is repeated.
    """
    if not gaps:
        return digital
    made = digital.copy()
    for place, lead in enumerate(leads):
        missing = np.zeros(digital.shape[1], np.bool_)
        for gap in gaps:
            if gap.lead == lead:
                missing[gap.start : gap.stop] = True
        if missing.any() and not missing.all():
            known = np.flatnonzero(~missing)
            line = np.interp(np.flatnonzero(missing), known, digital[place, known])
            made[place, missing] = np.rint(line).astype(np.int16)
    return made
