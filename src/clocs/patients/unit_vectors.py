"""Unit vectors, and running means of them: how vectors of frames become those of patients.

Sums are kept in float64 and grow view by view in order, so that they do not depend on how views
are batched.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_AT_ONCE = 65_536  # vectors processed together


class UnitMeans:
    """Running sums of unit vectors, one per group; zero vectors are counted and left out."""

    def __init__(self, groups: int, dim: int) -> None:
        self.sums = np.zeros((groups, dim))
        self.views = np.zeros(groups, np.int32)  # unit vectors added
        self.zeros = 0

    def add(self, group: NDArray[np.int64], vectors: NDArray[np.float32]) -> None:
        """group: (n,); vectors: (n, dim)."""
        unit, nonzero = _unit(vectors)
        self.zeros += int((~nonzero).sum())
        np.add.at(self.sums, group[nonzero], unit[nonzero])
        np.add.at(self.views, group[nonzero], 1)


def _unit(vectors: NDArray[np.floating]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """(n, dim) -> the same with length 1, and (n,) which are not zero (zeros stay zero)."""
    wide = vectors.astype(np.float64)
    length = lengths(wide)
    nonzero = length > 0
    return wide / np.where(nonzero, length, 1.0)[:, None], nonzero


def normalised(vectors: NDArray[np.floating]) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
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
    return normalised(vectors)[0]


def lengths(vectors: NDArray[np.floating]) -> NDArray[np.float64]:
    """(n, dim) -> (n,), in bounded memory."""
    found = np.empty(len(vectors))
    for start in range(0, len(vectors), _AT_ONCE):
        some = vectors[start : start + _AT_ONCE].astype(np.float64)
        found[start : start + len(some)] = np.sqrt(np.einsum("nd,nd->n", some, some))
    return found
