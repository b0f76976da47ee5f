"""PatientIndex: the nearest patients or recordings by cosine. Knows nothing about ECGs.

Unit vectors, compared by their inner product; FAISS underneath. Exact up to a million vectors;
beyond, an approximate index finds candidates, whose distances are then computed exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from clocs.patients.embeddings import Embeddings
from clocs.patients.filters import Where
from clocs.patients.rows import Level

Kind = Literal["exact", "hnsw", "ivf"]


@dataclass(frozen=True)
class Hits:
    """What a search found, nearest first.

    Attributes:
        rows: (queries, k) rows of the index; -1 where there are fewer.
        cosine: (queries, k) cosine distance, 1 − inner product; infinite where there are fewer.
        euclidean: (queries, k) distance of the unit vectors, √(2 · cosine).
    """

    rows: NDArray[np.int64]
    cosine: NDArray[np.float32]
    euclidean: NDArray[np.float32]


class PatientIndex:
    """Unit vectors with their rows, searchable; build one, or load it from its folder.

    Attributes:
        rows: One a vector, of the columns of `ROW_SCHEMA`.
        level: 'patient' or 'recording' (or 'frame').
        encoder: The sha256 of the weights that made the vectors.
        kind: How it searches.
        vectors: (n, dim) unit vectors, perhaps memory-mapped.
    """

    rows: pl.DataFrame
    level: Level
    encoder: str
    kind: Kind
    vectors: NDArray[np.float32]

    def __len__(self) -> int:
        raise NotImplementedError

    @classmethod
    def build(
        cls, embeddings: Embeddings, kind: Literal["auto", "exact", "hnsw", "ivf"] = "auto"
    ) -> PatientIndex:
        """An index of these; 'auto' is 'exact' up to a million vectors, then 'hnsw', then 'ivf'."""
        raise NotImplementedError

    def add(self, embeddings: Embeddings, *, replace: bool = False) -> int:
        """Append rows without rebuilding; how many were added.

        Raises:
            SettingError: Of another level, or a patient (recording) is there already and `replace`
                is not set.
            CheckpointError: Made by another encoder.
        """
        raise NotImplementedError

    def search(
        self,
        vectors: Embeddings | NDArray[np.float32],
        k: int = 10,
        *,
        where: Where | NDArray[np.bool_] | None = None,
        exclude: Sequence[tuple[str, str] | None] | None = None,
    ) -> Hits:
        """The k nearest rows of each query.

        Args:
            vectors: (queries, dim), or embeddings, which are checked to be of the same encoder.
            k: How many.
            where: Rows that may be returned: conditions, or a mask (n,). Results are exact under
                it up to a million passing rows, whatever the kind.
            exclude: One a query: the (dataset, patient) never to be returned; for `Embeddings`,
                their own patients by default.
        """
        raise NotImplementedError

    def row_of(self, patient: str, dataset: str | None = None) -> NDArray[np.int64]:
        """Rows of a patient (or recording); SettingError where none is, or in two datasets."""
        raise NotImplementedError

    def similar(self, patient: str, k: int = 10, *, where: Where | None = None) -> pl.DataFrame:
        """The k nearest to a patient: their rows with `cosine` and `euclidean`, nearest first."""
        raise NotImplementedError

    def table(self, hits: Hits, query: int = 0) -> pl.DataFrame:
        """The rows that one query found, with `cosine` and `euclidean`, nearest first."""
        raise NotImplementedError

    def save(self, folder: Path | str) -> None:
        """Write the folder; its manifest last."""
        raise NotImplementedError

    @classmethod
    def load(cls, folder: Path | str) -> PatientIndex:
        """Open a folder; vectors stay on disk, memory-mapped."""
        raise NotImplementedError
