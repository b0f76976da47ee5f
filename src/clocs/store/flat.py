"""Flat stretches: where a lead holds one value, as when an electrode is off or its input saturated.

They are found when a recording is read, so that frames can be skipped before any signal is.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from clocs.recording import Gap, Recording

SHORTEST = 1.0  # seconds


def flat_stretches(recording: Recording) -> tuple[Gap, ...]:
    """Stretches of at least a second over which a lead does not change by a single step."""
    least = max(2, round(SHORTEST * recording.rate))
    found = []
    for lead, values in zip(recording.leads, recording.digital, strict=True):
        if not _may_be_flat(values, least):
            continue
        edges = np.concatenate(([0], np.flatnonzero(np.diff(values)) + 1, [len(values)]))
        for place in np.flatnonzero(np.diff(edges) >= least):
            found.append(Gap(int(edges[place]), int(edges[place + 1]), lead))
    return tuple(found)


def _may_be_flat(values: NDArray[np.int16], least: int) -> bool:
    """Whether some stretch of half that many samples is flat: nearly all recordings have none."""
    step = least // 2
    few = values[::step]  # a flat stretch holds two of them in a row
    for place in (np.flatnonzero(few[1:] == few[:-1]) * step).tolist():
        if (values[place : place + step + 1] == values[place]).all():
            return True
    return False
