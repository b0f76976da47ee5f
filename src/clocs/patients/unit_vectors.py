"""Unit vectors, and running means of them: how vectors of frames become those of patients.

Sums are kept in float64 and grow view by view in order, so that they do not depend on how views
are batched.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_AT_ONCE = 65_536  # vectors processed together


class UnitMeans:
    """Means of unit vectors, one per group; zero vectors are counted and left out.

    Sums are kept of groups that still have rows to come: one recording's where rows are in order.

    Attributes:
        vectors: (groups, dim) unit vectors, once all rows are added.
        nonzero: (groups,) which of them are not zero.
        views: (groups,) unit vectors added.
        zeros: How many zero vectors there were.
    """

    def __init__(self, group: NDArray[np.int64], groups: int, dim: int) -> None:
        """group: (n,) of each row that will be added, in order."""
        self.vectors = np.zeros((groups, dim), np.float32)
        self.nonzero = np.zeros(groups, bool)
        self.views = np.zeros(groups, np.int32)
        self.zeros = 0
        self._group, self._added = group, 0
        self._last = np.zeros(groups, np.int64)  # row of each group
        self._last[group] = np.arange(len(group))
        self._open, self._sums = np.zeros(0, np.int64), np.zeros((0, dim))

    def add(self, vectors: NDArray[np.float32]) -> None:
        """vectors: (m, dim) of the next rows."""
        for start in range(0, len(vectors), _AT_ONCE):
            self._add(vectors[start : start + _AT_ONCE])

    def _add(self, vectors: NDArray[np.float32]) -> None:
        group = self._group[self._added : self._added + len(vectors)]
        self._added += len(vectors)
        unit, nonzero = _unit(vectors)
        self.zeros += int((~nonzero).sum())
        np.add.at(self.views, group[nonzero], 1)
        here = np.union1d(self._open, group)
        sums = np.zeros((len(here), vectors.shape[1]))
        sums[np.searchsorted(here, self._open)] = self._sums
        np.add.at(sums, np.searchsorted(here, group[nonzero]), unit[nonzero])
        ended = self._last[here] < self._added
        self.vectors[here[ended]], self.nonzero[here[ended]] = _unit(sums[ended])
        self._open, self._sums = here[~ended], sums[~ended]


def _unit(vectors: NDArray[np.floating]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """(n, dim) -> the same with length 1, and (n,) which are not zero (zeros stay zero)."""
    wide = vectors.astype(np.float64)
    length = lengths(wide)
    nonzero = length > 0
    return wide / np.where(nonzero, length, 1.0)[:, None], nonzero


def normalized(vectors: NDArray[np.floating]) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """(n, dim) -> unit vectors, and (n,) which are not zero; in bounded extra memory."""
    unit, nonzero = np.empty(vectors.shape, np.float32), np.empty(len(vectors), bool)
    for start in range(0, len(vectors), _AT_ONCE):
        some = slice(start, start + _AT_ONCE)
        unit[some], nonzero[some] = _unit(vectors[some])
    return unit, nonzero


def as_units(vectors: NDArray[np.floating]) -> NDArray[np.float32]:
    """(n, dim) unit vectors: the same array where they are already, perhaps memory-mapped."""
    length = lengths(vectors)
    if vectors.dtype == np.float32 and np.allclose(length, 1, rtol=0, atol=1e-6):
        return vectors if vectors.flags.c_contiguous else np.ascontiguousarray(vectors, np.float32)
    return normalized(vectors)[0]


def lengths(vectors: NDArray[np.floating]) -> NDArray[np.float64]:
    """(n, dim) -> (n,), in bounded memory."""
    found = np.empty(len(vectors))
    for start in range(0, len(vectors), _AT_ONCE):
        some = vectors[start : start + _AT_ONCE].astype(np.float64)
        found[start : start + len(some)] = np.sqrt(np.einsum("nd,nd->n", some, some))
    return found
