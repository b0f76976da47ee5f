"""Embeddings: vectors, and whose they are; one parquet file. Knows nothing about encoders.

At the level 'frame' a vector is what the encoder made of one lead of one frame. A recording's is
the mean of the unit vectors of its frames and leads, made a unit vector again; a patient's likewise
over all frames and leads of all recordings. A vector of zeros (a dead one) has no direction: it is
counted and left out of means; whoever has only such vectors is listed in `dead`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from clocs.errors import SettingError, StoreError
from clocs.files import replacing
from clocs.patients.means import Means, group_rows
from clocs.patients.rows import ID_COLUMNS, ROW_SCHEMA, Level, check_level, make_rows

FORMAT = 1
_FACTS = "clocs.embeddings"


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
        frame: Seconds of the frames that the encoder saw. It sees as many samples whatever their
            length, so vectors of two lengths have nothing to do with each other either; None where
            unknown.
    """

    vectors: NDArray[np.float32]
    rows: pl.DataFrame
    level: Level
    encoder: str
    dead: tuple[tuple[str, str, str], ...] = ()
    dead_views: int = 0
    problems: tuple[tuple[str, str], ...] = ()
    frame: float | None = None

    def __post_init__(self) -> None:
        check_level(self.level)
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
        return replace(self, vectors=self.vectors[kept], rows=self.rows.filter(pl.Series(kept)))

    def to(self, level: Level) -> Embeddings:
        """Means of the unit vectors of frames, for each recording or patient."""
        if self.level == level:
            return self
        if self.level != "frame":
            raise SettingError(
                f"embeddings of the level {self.level!r} cannot become {level!r}: means are taken "
                "over frames; embed at the level 'frame' first"
            )
        group, rows = group_rows(self.rows, level)
        means = Means(rows.height, self.dim)
        means.add(group, self.vectors)
        return from_means(means, rows, level, self.encoder, self.problems, self.frame)

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
            "frame": self.frame,
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            self.rows.with_columns(vector).write_parquet(
                temporary, metadata={_FACTS: json.dumps(facts)}
            )

    @classmethod
    def load(cls, path: Path | str) -> Embeddings:
        """Read what `save` wrote."""
        path = Path(path)
        facts = _read_facts(path)
        try:
            table = pl.read_parquet(path)
            kind = table.schema["vector"]
            if not isinstance(kind, pl.Array):
                raise ValueError("its column `vector` holds no arrays")
            vectors = table["vector"].to_numpy().astype(np.float32, copy=False)
            return cls(
                vectors=vectors.reshape(table.height, kind.size),
                rows=table.drop("vector"),
                level=facts["level"],
                encoder=facts["encoder"],
                dead=tuple((d, p, r) for d, p, r in facts["dead"]),
                dead_views=facts["dead_views"],
                problems=tuple((name, words) for name, words in facts["problems"]),
                frame=facts.get("frame"),
            )
        except (OSError, KeyError, ValueError, TypeError, pl.exceptions.PolarsError) as error:
            raise _no_embeddings(path, error) from error

    make_rows = staticmethod(make_rows)


def _read_facts(path: Path) -> dict[str, Any]:
    """What a file says of its embeddings, without reading them; StoreError where it has none."""
    try:
        facts: dict[str, Any] = json.loads(pl.read_parquet_metadata(path)[_FACTS])
        if facts["format"] == FORMAT:
            return facts
    except (OSError, KeyError, ValueError, TypeError, pl.exceptions.PolarsError) as error:
        raise _no_embeddings(path, error) from error
    raise StoreError(f"{path} holds embeddings of another format; make them again")


def _no_embeddings(path: Path, error: Exception) -> StoreError:
    why = (str(error).splitlines() or [type(error).__name__])[0]
    return StoreError(f"{path} holds no embeddings ({why}); make them with `clocs embed`")


def expect_replaceable(path: Path) -> None:
    """SettingError where embeddings should not be written: over something else."""
    if path.suffix != ".parquet":
        raise SettingError(f"--out is {path}; give a name that ends in .parquet")
    if path.is_dir():
        raise SettingError(f"--out is {path}, a folder; give a name of a file in it")
    if path.exists():
        try:
            _read_facts(path)
        except StoreError:
            raise SettingError(
                f"{path} is there and holds no embeddings; give another --out, or delete it"
            ) from None


def from_means(
    means: Means,
    rows: pl.DataFrame,
    level: Level,
    encoder: str,
    problems: tuple[tuple[str, str], ...] = (),
    frame: float | None = None,
) -> Embeddings:
    """Embeddings of groups; those without a direction are listed instead."""
    vectors, alive = means.finish()
    without = rows.filter(pl.Series(~alive)).select("dataset", "patient", "recording")
    return Embeddings(
        vectors=vectors[alive],
        rows=rows.with_columns(pl.Series("views", means.views)).filter(pl.Series(alive)),
        level=level,
        encoder=encoder,
        dead=tuple((d, p, r or "") for d, p, r in without.iter_rows()),
        dead_views=means.dead,
        problems=problems,
        frame=frame,
    )


def joined(parts: Sequence[Embeddings]) -> Embeddings:
    """Several embeddings of one encoder, frame and level as one; nobody may stand in two."""
    first = parts[0]
    if len(parts) == 1:
        return first
    if len({(part.level, part.encoder) for part in parts}) > 1:
        raise SettingError("embeddings of different levels or encoders cannot be joined")
    frames = sorted({part.frame for part in parts if part.frame is not None})
    if len(frames) > 1:
        raise SettingError(
            f"the sources are cut into frames of {' and '.join(f'{one:g} s' for one in frames)}, "
            "whose vectors cannot be compared; cut all alike with --frame SECONDS, or embed them "
            "one by one"
        )
    rows = pl.concat([part.rows for part in parts])
    ids = list(ID_COLUMNS[first.level])
    twice = rows.filter(rows.select(ids).is_duplicated())
    if twice.height:
        dataset, patient = twice.row(0)[:2]
        raise SettingError(
            f"{patient} of {dataset or 'the files'} stands in two of the sources; give it once"
        )
    return Embeddings(
        np.concatenate([part.vectors for part in parts]),
        rows,
        first.level,
        first.encoder,
        tuple(one for part in parts for one in part.dead),
        sum(part.dead_views for part in parts),
        tuple(one for part in parts for one in part.problems),
        first.frame,
    )
