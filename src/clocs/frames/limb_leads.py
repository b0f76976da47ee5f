"""Limb leads of saved frames that follow from I and II: left out on saving, derived on loading.

They need not be stored: what a recording's own ones say is in I and II already, to rounding. Where
a recording's own ones differ from it, as after filters that treat each lead differently, they are
kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from clocs.recording import LIMB_LEADS, LIMB_SOURCES

ABSENT = -1  # in starts: no signal
_STEPS = 2.0  # of difference that rounding explains: half a step of each of three leads, and more
_TOGETHER = 4096  # frames at once

Windows = tuple[NDArray[np.int16], NDArray[np.int64], NDArray[np.float32]]


def derived(
    signals: NDArray[np.int16],
    starts: NDArray[np.int64],
    scale: NDArray[np.float32],
    *,
    leads: Sequence[str],
    samples: int,
) -> Windows:
    """The same windows and, of frames that have I and II, the limb leads that were absent.

    A derived lead has half the step of I and II, in which it is exact where both have the same
    step and it fits into 16 bits.

    Args:
        signals: (samples of all windows,).
        starts: (frames, leads) where each window begins; -1 where it is absent.
        scale: (frames, leads) mV per step.
        leads: The names of the columns, I and II among them.
        samples: Of a window.

    Returns:
        Signals, starts and scale.
    """
    made = [signals]
    end, starts, scale = len(signals), starts.copy(), scale.copy()
    for column, parts in _columns(leads):
        absent = starts[:, column] == ABSENT
        for rows, values, finest in _combined(
            signals, starts, scale, leads, parts, absent, samples
        ):
            step = np.maximum(finest / 2, np.abs(values).max(axis=1) / 32767)
            made.append(np.rint(values / step[:, None]).astype(np.int16).ravel())
            starts[rows, column] = end + np.arange(len(rows)) * samples
            scale[rows, column] = step
            end += len(made[-1])
    return np.concatenate(made), starts, scale


def follows(
    signals: NDArray[np.int16],
    starts: NDArray[np.int64],
    scale: NDArray[np.float32],
    *,
    leads: Sequence[str],
    samples: int,
) -> NDArray[np.bool_]:
    """(frames, leads) whether a window says no more than I and II do, to rounding.

    Arguments as for `derived`.
    """
    found = np.zeros(starts.shape, np.bool_)
    for column, parts in _columns(leads):
        here = starts[:, column] != ABSENT
        for rows, values, _ in _combined(signals, starts, scale, leads, parts, here, samples):
            step = scale[rows, column]
            own = signals[starts[rows, column][:, None] + np.arange(samples)] * step[:, None]
            found[rows, column] = np.abs(own - values).max(axis=1) <= _STEPS * step
    return found


def _columns(leads: Sequence[str]) -> list[tuple[int, tuple[float, float]]]:
    """Places of the leads that can be derived, and their parts."""
    if not set(LIMB_SOURCES) <= set(leads):
        return []
    return [(place, LIMB_LEADS[lead]) for place, lead in enumerate(leads) if lead in LIMB_LEADS]


def _combined(
    signals: NDArray[np.int16],
    starts: NDArray[np.int64],
    scale: NDArray[np.float32],
    leads: Sequence[str],
    parts: tuple[float, float],
    wanted: NDArray[np.bool_],
    samples: int,
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]]:
    """Of wanted rows that have I and II, (rows, samples) of the lead in mV, and the finer step."""
    columns = [list(leads).index(source) for source in LIMB_SOURCES]
    able = np.flatnonzero(wanted & (starts[:, columns] != ABSENT).all(axis=1))
    for first in range(0, len(able), _TOGETHER):
        rows = able[first : first + _TOGETHER]
        steps = scale[rows][:, columns].astype(np.float64)
        values = np.zeros((len(rows), samples))
        for part, column, step in zip(parts, columns, steps.T, strict=True):
            own = signals[starts[rows, column][:, None] + np.arange(samples)]
            values += own * (part * step[:, None])
        yield rows, values, steps.min(axis=1)
