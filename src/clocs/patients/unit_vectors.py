"""What of embeddings can be indexed: distinct rows with a direction, as unit vectors."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from clocs.errors import SettingError
from clocs.patients.embeddings import Embeddings
from clocs.patients.means import in_units, lengths
from clocs.patients.rows import ID_COLUMNS


def units(vectors: NDArray[np.floating]) -> NDArray[np.float32]:
    """(n, dim) of length 1: the very same array where they are, perhaps memory-mapped."""
    length = lengths(vectors)
    if vectors.dtype == np.float32 and np.allclose(length, 1, rtol=0, atol=1e-6):
        return vectors if vectors.flags.c_contiguous else np.ascontiguousarray(vectors, np.float32)
    return in_units(vectors)[0]


def living(embeddings: Embeddings) -> Embeddings:
    """Without vectors of zeros, which have no direction; `Embeddings` counts them."""
    length = lengths(embeddings.vectors)
    if not np.isfinite(length).all():
        whose = embeddings.rows.row(int(np.flatnonzero(~np.isfinite(length))[0]))[1]
        raise SettingError(f"the vector of {whose} is not finite; embed it again")
    alive = length > 0
    return embeddings if alive.all() else embeddings.where(alive)


def expect_distinct(embeddings: Embeddings) -> None:
    ids = embeddings.rows.select(ID_COLUMNS[embeddings.level])
    twice = embeddings.rows.filter(ids.is_duplicated())
    if twice.height:
        raise SettingError(f"{twice.row(0)[1]} stands twice among the embeddings; give it once")
