"""Directions in which embeddings differ: between people, or between diagnoses; and removing them.

Directions are those of a linear discriminant: the largest ratios of variance between groups to
variance within. Removing some is the smallest change, measured by the variance within, after which
nothing linear along them is left.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from clocs.errors import SettingError
from clocs.kernels import keyed_random
from research.analyses.frame_vectors import FrameVectors

_SHRINKAGE = 0.01  # of the variance within, toward that of independent dimensions
_NOTHING = 1e-6  # a ratio that is rounding

Matrix = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Directions:
    """Directions in a space, the strongest first."""

    whitening: Matrix  # (dim, dim) to a space in which the variance within is 1 in every direction
    coloring: Matrix  # (dim, dim) back again
    axes: Matrix  # (dim, directions) in the whitened space, orthonormal
    ratio: NDArray[np.float64]  # (directions,) variance between to within

    def __len__(self) -> int:
        return len(self.ratio)

    def remove(self, vectors: NDArray[np.floating], count: int) -> NDArray[np.float32]:
        """vectors: (n, dim) without the first `count` directions."""
        if not 0 <= count <= len(self):
            raise SettingError(f"there are {len(self)} directions to remove, not {count}")
        axes = self.axes[:, :count]
        along = (vectors @ self.whitening) @ axes
        return np.asarray(vectors - along @ (axes.T @ self.coloring), np.float32)

    def weighted(self, vectors: NDArray[np.floating]) -> NDArray[np.float32]:
        """vectors: (n, dim) -> (n, directions), each by how reliably it tells groups apart."""
        reliable = np.sqrt(np.maximum(self.ratio, 0) / (1 + np.maximum(self.ratio, 0)))
        return np.asarray((vectors @ self.whitening) @ self.axes * reliable, np.float32)


def identity_directions(first: FrameVectors, second: FrameVectors) -> Directions:
    """What is the same in both halves of a recording and differs between people.

    Between people of the same diagnoses, where they are known, so that what tells diagnoses apart
    is no part of identity.
    """
    a, b = (rows.vectors.astype(np.float64) for rows in (first, second))
    apart = (a - b) / 2**0.5
    within = apart.T @ apart / len(a)
    _, rest = _by_labels((a + b) / 2, first.target)
    between = rest.T @ rest / len(a) - within / 2
    return discriminant(between, within)


def disease_directions(rows: FrameVectors) -> Directions:
    """What differs between diagnoses, of rows per recording: at most one direction per label."""
    own = rows.labeled()
    explained, rest = _by_labels(own.vectors.astype(np.float64), own.target)
    found = discriminant(explained.T @ explained / len(own), rest.T @ rest / len(own))
    real = int((found.ratio > _NOTHING).sum())
    return replace(found, axes=found.axes[:, :real], ratio=found.ratio[:real])


def random_directions(like: Directions, seed: int = 0) -> Directions:
    """As many directions as there are dimensions, at random: what removing anything costs."""
    dim = len(like.whitening)
    key = keyed_random.fold(keyed_random.member_keys([seed]), keyed_random.stream("directions"))
    draws = keyed_random.uniform(key, dim * dim)[0].view(dim, dim).numpy()
    axes = np.linalg.qr(draws - 0.5)[0]
    return replace(like, axes=axes, ratio=np.ones(dim))


def discriminant(between: Matrix, within: Matrix) -> Directions:
    """All directions by the ratio of variance between to within, both (dim, dim)."""
    dim = len(within)
    mean = np.trace(within) / dim
    if not mean > 0:
        raise SettingError("these vectors do not vary within groups; give more of them")
    within = (1 - _SHRINKAGE) * within + _SHRINKAGE * mean * np.eye(dim)
    variance, turned = np.linalg.eigh(within)
    whitening = (turned / np.sqrt(variance)) @ turned.T
    coloring = (turned * np.sqrt(variance)) @ turned.T
    ratio, axes = np.linalg.eigh(whitening @ between @ whitening)
    return Directions(whitening, coloring, axes[:, ::-1], ratio[::-1])


def standardized_by(train: FrameVectors, *many: FrameVectors) -> tuple[FrameVectors, ...]:
    """Each with the mean and spread of the training vectors taken out, dimension by dimension."""
    mean, spread = train.vectors.mean(axis=0), train.vectors.std(axis=0)
    spread = np.where(spread > 0, spread, 1)
    return tuple(replace(one, vectors=(one.vectors - mean) / spread) for one in many)


def _by_labels(x: Matrix, target: NDArray[np.uint8]) -> tuple[Matrix, Matrix]:
    """x: (n, dim) about its mean -> what its labels explain of it, and the rest."""
    x = x - x.mean(axis=0)
    labels = target - target.mean(axis=0)
    explained = labels @ np.linalg.lstsq(labels, x, rcond=None)[0]
    return explained, x - explained
