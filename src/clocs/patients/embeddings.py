"""Embeddings: vectors, and whose they are; one parquet file. Knows nothing about encoders.

At the level 'frame' a vector is what the encoder made of one lead of one frame. A recording's is
the mean of the unit vectors of its frames and leads, made a unit vector again; a patient's likewise
over all frames and leads of all recordings. A vector of zeros (a dead one) has no direction: it is
counted and left out of means; whoever has only such vectors is listed in `dead`.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import polars as pl
from numpy.typing import NDArray

from clocs.errors import SettingError, StoreError
from clocs.files import write_atomic

Level = Literal["frame", "recording", "patient"]
LEVELS: tuple[Level, ...] = get_args(Level)
FORMAT = 1
_FACTS = "clocs.embeddings"

ROW_SCHEMA: dict[str, pl.DataType | type[pl.DataType]] = {
    "dataset": pl.String,  # '' for a file that belongs to none
    "patient": pl.String,  # the dataset's own id; a file's name where it has no other
    "recording": pl.String,  # null at the level 'patient'
    "segment": pl.Int32,  # null above the level 'frame'
    "lead": pl.String,  # null above the level 'frame'
    "labels": pl.List(pl.String),  # a patient's: those of all recordings
    "split": pl.String,  # train, validation, test; null for files
    "age": pl.Float64,  # in years, null where unknown; a patient's at the first recording
    "sex": pl.String,  # male, female or null
    "views": pl.Int32,  # unit vectors in the mean; 1 for a frame, 0 for a dead one
}
ID_COLUMNS: dict[Level, tuple[str, ...]] = {
    "frame": ("dataset", "patient", "recording", "segment", "lead"),
    "recording": ("dataset", "patient", "recording"),
    "patient": ("dataset", "patient"),
}


@dataclass(frozen=True, eq=False)
class Embeddings:
    """Vectors and whose they are.

    Attributes:
        vectors: (n, dim) float32; unit vectors above the level 'frame', as the encoder gave them
            there.
        rows: One a vector, of the columns of `ROW_SCHEMA`.
        level: What a vector stands for.
        encoder: The sha256 of the weights that made them; vectors of two encoders have nothing to
            do with each other.
        dead: (dataset, patient, recording) of those without any direction; recording is '' at the
            level 'patient'. They have no row, except at the level 'frame'.
        dead_views: Frames × leads with a vector of zeros.
        problems: (name, sentence) of the files that could not be embedded.
    """

    vectors: NDArray[np.float32]
    rows: pl.DataFrame
    level: Level
    encoder: str
    dead: tuple[tuple[str, str, str], ...] = ()
    dead_views: int = 0
    problems: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        if self.level not in LEVELS:
            raise SettingError(f"the level is {self.level!r}; choose one of {', '.join(LEVELS)}")
        if self.vectors.ndim != 2 or len(self.vectors) != self.rows.height:
            raise SettingError(
                f"{self.rows.height} rows need as many vectors, not an array {self.vectors.shape}"
            )
        if dict(self.rows.schema) != ROW_SCHEMA:
            raise SettingError(f"rows need the columns {', '.join(ROW_SCHEMA)}, in this order")

    def __len__(self) -> int:
        return len(self.vectors)

    @property
    def dim(self) -> int:
        return int(self.vectors.shape[1])

    def where(self, kept: NDArray[np.bool_]) -> Embeddings:
        """Only these rows."""
        return Embeddings(
            self.vectors[kept],
            self.rows.filter(pl.Series(kept)),
            self.level,
            self.encoder,
            self.dead,
            self.dead_views,
            self.problems,
        )

    def to(self, level: Level) -> Embeddings:
        """Means of the unit vectors of frames, for each recording or patient."""
        raise NotImplementedError

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Everything as plain arrays, by name: `vectors` and a column each (labels as lists)."""
        columns = {name: self.rows[name].to_numpy() for name in ROW_SCHEMA}
        return {"vectors": self.vectors, **columns}

    def save(self, path: Path | str) -> None:
        """Write one parquet file, whole or not at all: the rows, and a column `vector`."""
        path = Path(path)
        vector = pl.Series(
            "vector", np.ascontiguousarray(self.vectors), dtype=pl.Array(pl.Float32, self.dim)
        )
        facts = {
            "format": FORMAT,
            "level": self.level,
            "encoder": self.encoder,
            "dead": self.dead,
            "dead_views": self.dead_views,
            "problems": self.problems,
        }
        buffer = io.BytesIO()
        self.rows.with_columns(vector).write_parquet(buffer, metadata={_FACTS: json.dumps(facts)})
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, buffer.getbuffer())

    @classmethod
    def load(cls, path: Path | str) -> Embeddings:
        """Read what `save` wrote."""
        path = Path(path)
        try:
            facts = json.loads(pl.read_parquet_metadata(path)[_FACTS])
            if facts["format"] != FORMAT:
                raise StoreError(f"{path} holds embeddings of another format; make them again")
            table = pl.read_parquet(path)
            vectors = table["vector"].to_numpy().astype(np.float32, copy=False)
            return cls(
                vectors=vectors.reshape(table.height, -1),
                rows=table.drop("vector"),
                level=facts["level"],
                encoder=facts["encoder"],
                dead=tuple((d, p, r) for d, p, r in facts["dead"]),
                dead_views=facts["dead_views"],
                problems=tuple((name, words) for name, words in facts["problems"]),
            )
        except (OSError, KeyError, ValueError, TypeError, pl.exceptions.PolarsError) as error:
            raise StoreError(
                f"{path} holds no embeddings ({str(error).splitlines()[0]}); "
                "make them with `clocs embed`"
            ) from error

    @staticmethod
    def make_rows(columns: Mapping[str, Sequence[Any] | NDArray[Any]], n: int) -> pl.DataFrame:
        """(n) rows of all columns, null where not given; for vectors of your own."""
        unknown = set(columns) - set(ROW_SCHEMA)
        if unknown:
            raise SettingError(f"rows have no column {', '.join(sorted(unknown))}")
        given: dict[str, Any] = {"views": np.ones(n, np.int32), "labels": [[]] * n, **columns}
        return pl.DataFrame(
            {
                name: pl.Series(name, given.get(name, [None] * n), kind, strict=False)
                for name, kind in ROW_SCHEMA.items()
            }
        )
