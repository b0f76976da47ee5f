"""Reference distances, within and between patients, that give a neighbour's distance a scale."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clocs.evaluation.metrics import auc

_PAIRS = 20_000  # of different patients
_BINS = (24, 60)  # for fewer than 1,000 distances, and for more
_EMPTY = np.zeros(0, np.float32)


@dataclass(frozen=True)
class ReferenceDistances:
    """Euclidean distances between unit vectors."""

    intra: NDArray[np.float32]  # between the two halves of one patient's recordings; may be empty
    inter: NDArray[np.float32]  # between halves of two patients' recordings
    description: str  # of what was compared, for the page

    @property
    def separability(self) -> float | None:
        """The probability that an intra-patient distance is the smaller one (AUC)."""
        if not len(self.intra) or not len(self.inter):
            return None
        return auc(-self.intra, -self.inter)

    def histogram(self) -> dict[str, Any]:
        """Both as densities over common bins, with their means."""
        both = {"intra": self.intra, "inter": self.inter}
        known = [x for x in both.values() if len(x)]
        top = 1.02 * max((float(x.max()) for x in known), default=1.0)
        few = min((len(x) for x in known), default=0) < 1000
        edges = np.linspace(0, top, _BINS[0 if few else 1] + 1)
        density = {
            name: np.histogram(x, edges, density=True)[0].round(5).tolist() if len(x) else []
            for name, x in both.items()
        }
        means = {f"{name}_mean": float(x.mean()) if len(x) else None for name, x in both.items()}
        facts = {"edges": edges.round(5).tolist(), "description": self.description}
        return facts | {"separability": self.separability} | density | means


def distances_of_halves(halves: NDArray[np.float32]) -> ReferenceDistances:
    """halves: (patients, 2, dim). Each patient against itself and against random others.

    The order of the patients, which is that of their IDs, makes no difference.
    """
    if len(halves) < 2:
        return ReferenceDistances(_EMPTY, _EMPTY, "")
    halves = halves[np.lexsort(halves[:, 0].T)]
    first, second = _random_pairs(len(halves))
    return ReferenceDistances(
        np.linalg.norm(halves[:, 0] - halves[:, 1], axis=1),
        np.linalg.norm(halves[first, 0] - halves[second, 1], axis=1),
        f"between halves of the recordings of {len(halves):,} test patients",
    )


def distances_between_patients(vectors: NDArray[np.float32]) -> ReferenceDistances:
    """Between patients only, where nothing but their vectors (patients, dim) is known."""
    if len(vectors) < 2:
        return ReferenceDistances(_EMPTY, _EMPTY, "")
    first, second = _random_pairs(len(vectors))
    inter = np.linalg.norm(vectors[first] - vectors[second], axis=1)
    return ReferenceDistances(_EMPTY, inter, f"between pairs of {len(vectors):,} patients")


def _random_pairs(n: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Pairs of two different numbers below n, the same at every call."""
    generator = np.random.default_rng(0)
    first = generator.integers(0, n, _PAIRS)
    return first, (first + generator.integers(1, n, _PAIRS)) % n
