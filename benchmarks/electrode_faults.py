"""Faults of electrodes, made on purpose: what the leads become."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clocs.measurements.electrodes import CHEST_FAULTS, LIMB_FAULTS
from clocs.recording import LIMB_LEADS

Array = NDArray[Any]
# What I and II become, in terms of I and II: as (I of I, II of I, I of II, II of II).
LIMB = dict(
    zip(
        LIMB_FAULTS,
        (
            (1, 0, 0, 1), (-1, 0, -1, 1), (1, -1, 0, -1), (0, 1, 1, 0), (-1, 1, -1, 0),
            (0, -1, 1, -1), (1, -1, 0, 0), (0, 1, 0, 1), (-1, 0, 0, -1),
        ),
        strict=True,
    )
)  # fmt: skip
# What is taken from each chest lead, in I and II, where the right leg replaces an arm.
_CENTRAL = {
    "right arm and right leg may be swapped": (0, 1 / 3),
    "left arm and right leg may be swapped": (-1 / 3, 1 / 3),
}


def _chest() -> dict[str, Array]:
    """Sentence -> (6, 6): what V1 to V6 become."""
    right = np.eye(6)
    found = [right]
    for i, j in combinations(range(6), 2):
        swapped = right.copy()
        swapped[[i, j]] = right[[j, i]]
        found.append(swapped)
    found += [right[::-1].copy(), np.roll(right, -1, 0), np.roll(right, 1, 0)]
    for i in range(6):
        inverted = right.copy()
        inverted[i] *= -1
        found.append(inverted)
    return dict(zip(CHEST_FAULTS, [*found, -right], strict=True))


CHEST = _chest()


def fault_matrix(limb: str, chest: str) -> Array:
    """(8, 8): what I, II and V1–V6 become; of the right leg, as if it were the left."""
    made = np.zeros((8, 8))
    made[:2, :2] = np.reshape(LIMB[limb], (2, 2))
    made[2:, 2:] = CHEST[chest]
    made[2:, :2] = -CHEST[chest] @ np.tile(_CENTRAL.get(limb, (0, 0)), (6, 1))
    return made


def with_fault(signal: Array, limb: str, chest: str) -> Array:
    """(12, samples) of the standard leads -> the same, recorded with these faults."""
    derived = np.array([(1, 0), (0, 1), *LIMB_LEADS.values()])
    eight = fault_matrix(limb, chest) @ signal[[0, 1, *range(6, 12)]]
    # what file leads hold beyond I and II, such as rounding, stays out: it would give swaps away
    return np.concatenate([derived @ eight[:2], eight[2:]])
