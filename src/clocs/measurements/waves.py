"""P, QRS and T of one lead: from the probabilities of a network to marks in physiological order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
_LEAST = {"p": 0.03, "qrs": 0.03, "t": 0.05}  # s; what is shorter is no wave
_HOLE = 0.03  # s; a shorter interruption of a wave is none
_APART = 0.18  # s between the peaks of two QRS complexes: 330 beats per minute


@dataclass(frozen=True)
class Waves:
    """The waves of one lead: (n, 3) onset, peak and offset in s from the start, in order."""

    p: Array
    qrs: Array
    t: Array


NONE = Waves(*(np.zeros((0, 3)) for _ in range(3)))


def find_waves(chances: Array, nearness: Array, step: float) -> Waves:
    """Waves of one lead.

    Args:
        chances: (4, steps) of no wave, P, QRS and T.
        nearness: (3, steps) how near the peak of each is; only where it is greatest counts.
        step: Seconds of a step.

    Every stretch between two QRS complexes has one T at most, that of the most certainty. P waves
    need no QRS complex behind them: a block leaves them without one.
    """
    found, sizes = {}, {}
    for number, name in enumerate(("p", "qrs", "t"), start=1):
        others = np.delete(chances, number, axis=0).max(axis=0)
        lead = chances[number] - others
        runs = _runs(lead > 0, _HOLE / step, _LEAST[name] / step)
        found[name] = np.array(
            [_marks(lead, nearness[number - 1], first, last, step) for first, last in runs]
        ).reshape(-1, 3)
        sizes[name] = np.array([chances[number, a:b].sum() for a, b in runs])
    qrs = _apart(found["qrs"], sizes["qrs"])
    after = np.searchsorted(qrs[:, 1], found["t"][:, 1])  # the beat that each T follows
    best = [
        place
        for place, beat in enumerate(after.tolist())
        if sizes["t"][place] >= sizes["t"][after == beat].max()
    ]
    return Waves(found["p"], qrs, found["t"][best])


def _runs(inside: NDArray[np.bool_], hole: float, least: float) -> list[tuple[int, int]]:
    """First and last + 1 of the stretches that are inside."""
    edges = np.flatnonzero(np.diff(inside, prepend=False, append=False)).reshape(-1, 2).tolist()
    joined: list[tuple[int, int]] = []
    for first, last in edges:
        if joined and first - joined[-1][1] < hole:
            joined[-1] = joined[-1][0], last
        else:
            joined.append((first, last))
    return [(first, last) for first, last in joined if last - first >= least]


def _marks(
    lead: Array, nearness: Array, first: int, last: int, step: float
) -> tuple[float, float, float]:
    """Where it begins to lead and ceases to, between two steps; and the peak between them."""

    def crossing(before: int) -> float:
        if not 0 <= before < len(lead) - 1:
            return float(np.clip(before, 0, len(lead) - 1))
        a, b = lead[before], lead[before + 1]
        return before + float(a / (a - b)) if a != b else before + 0.5

    top = first + int(nearness[first:last].argmax())
    exact = float(top)
    if first < top < last - 1:
        a, b, c = nearness[top - 1 : top + 2]
        exact += float(0.5 * (a - c) / (a - 2 * b + c)) if a - 2 * b + c < 0 else 0.0
    return crossing(first - 1) * step, exact * step, crossing(last - 1) * step


def _apart(qrs: Array, size: Array) -> Array:
    """QRS complexes without those that are too near to a more certain one."""
    kept: list[int] = []
    for number in range(len(qrs)):
        if kept and qrs[number, 1] - qrs[kept[-1], 1] < _APART:
            if size[number] > size[kept[-1]]:
                kept[-1] = number
        else:
            kept.append(number)
    return np.asarray(qrs[kept])
