"""Where decoded samples go: fresh memory, or the place that a worker has set aside for them.

Saves a copy of every recording on its way to another process. Knows nothing about either.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_offered: NDArray[np.int16] | None = None


def offer(place: NDArray[np.int16] | None) -> None:
    """Set aside memory for the next array; for processes that read in one thread only."""
    global _offered  # noqa: PLW0603
    _offered = place


def empty(rows: int, columns: int) -> NDArray[np.int16]:
    """(rows, columns) to fill, in the place set aside where it fits."""
    global _offered
    place, _offered = _offered, None
    if place is None or place.size < rows * columns:
        return np.empty((rows, columns), np.int16)
    return place[: rows * columns].reshape(rows, columns)
