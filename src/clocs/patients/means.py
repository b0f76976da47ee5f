"""Means of unit vectors, and the rows they belong to: frames -> recordings -> patients.

Sums are kept in float64 and grow view by view in order, so that they do not depend on how views
come in batches.
"""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from clocs.patients.rows import ID_COLUMNS, ROW_SCHEMA, Level

_AT_ONCE = 65_536  # vectors looked at together


class Means:
    """Running sums of unit vectors, a group each.

    Attributes:
        sums: (groups, dim).
        views: (groups,) unit vectors added.
        dead: How many vectors were zero.
    """

    def __init__(self, groups: int, dim: int) -> None:
        self.sums = np.zeros((groups, dim))
        self.views = np.zeros(groups, np.int32)
        self.dead = 0

    def add(self, group: NDArray[np.int64], vectors: NDArray[np.float32]) -> None:
        """group: (n,) of each of (n, dim) vectors."""
        unit, alive = unit_vectors(vectors)
        self.dead += int((~alive).sum())
        np.add.at(self.sums, group[alive], unit[alive])
        np.add.at(self.views, group[alive], 1)

    def finish(self) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """(groups, dim) unit vectors, and (groups,) which of them have a direction."""
        return in_units(self.sums)


def unit_vectors(
    vectors: NDArray[np.floating],
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """(n, dim) -> the same of length 1, and (n,) which are not zero (these stay zero)."""
    wide = vectors.astype(np.float64)
    length = lengths(wide)
    alive = length > 0
    return wide / np.where(alive, length, 1.0)[:, None], alive


def in_units(vectors: NDArray[np.floating]) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """The same as float32, in bounded memory beside it."""
    unit, alive = np.empty(vectors.shape, np.float32), np.empty(len(vectors), bool)
    for start in range(0, len(vectors), _AT_ONCE):
        some = slice(start, start + _AT_ONCE)
        unit[some], alive[some] = unit_vectors(vectors[some])
    return unit, alive


def lengths(vectors: NDArray[np.floating]) -> NDArray[np.float64]:
    """(n, dim) -> (n,), in bounded memory."""
    found = np.empty(len(vectors))
    for start in range(0, len(vectors), _AT_ONCE):
        some = vectors[start : start + _AT_ONCE].astype(np.float64)
        found[start : start + len(some)] = np.sqrt(np.einsum("nd,nd->n", some, some))
    return found


def group_rows(frames: pl.DataFrame, level: Level) -> tuple[NDArray[np.int64], pl.DataFrame]:
    """Rows of frames -> the (n,) group of each, and the rows of the groups, in order.

    A recording has the labels that at least half of its frames have; a patient all of the
    recordings', and age and sex of the first recording where they are known.
    """
    if level == "frame":
        return np.arange(frames.height), frames
    labels = _most_labels(frames)
    recordings = _first(frames, "recording").with_columns(
        pl.lit(None, pl.Int32).alias("segment"), pl.lit(None, pl.String).alias("lead")
    )
    ids = list(ID_COLUMNS["recording"])
    recordings = _joined(recordings.drop("labels"), labels, ids)
    recordings = recordings.with_columns(pl.col("labels").fill_null([])).select(list(ROW_SCHEMA))
    groups = recordings
    if level == "patient":
        ids = list(ID_COLUMNS["patient"])
        union = pl.col("labels").explode().drop_nulls().unique(maintain_order=True)
        groups = recordings.group_by(ids, maintain_order=True).agg(
            pl.lit(None, pl.String).alias("recording"),
            pl.lit(None, pl.Int32).alias("segment"),
            pl.lit(None, pl.String).alias("lead"),
            union.alias("labels"),
            pl.col("split").first(),
            pl.col("age").drop_nulls().first(),
            pl.col("sex").drop_nulls().first(),
            pl.col("views").sum(),
            pl.lit(None, pl.UInt64).alias("digest"),
        )
        groups = groups.select(list(ROW_SCHEMA))
    places = groups.select(ids).with_row_index("group")
    group = _joined(frames.select(ids), places, ids)["group"]
    return group.to_numpy().astype(np.int64), groups


def _joined(left: pl.DataFrame, right: pl.DataFrame, ids: list[str]) -> pl.DataFrame:
    """Rows of the left with what the right knows of them; an id that is not given is one, too."""
    return left.join(right, on=ids, how="left", maintain_order="left", nulls_equal=True)


def _first(frames: pl.DataFrame, level: Level) -> pl.DataFrame:
    """The first row of each group, with the views of all."""
    ids = list(ID_COLUMNS[level])
    others = [name for name in ROW_SCHEMA if name not in (*ids, "views")]
    return frames.group_by(ids, maintain_order=True).agg(
        *(pl.col(name).first() for name in others), pl.col("views").sum()
    )


def _most_labels(frames: pl.DataFrame) -> pl.DataFrame:
    """Labels of each recording that hold for at least half of its rows."""
    ids = list(ID_COLUMNS["recording"])
    rows = frames.group_by(ids).agg(pl.len().alias("rows"))
    counts = (
        frames.select(*ids, "labels")
        .explode("labels")
        .drop_nulls("labels")
        .group_by([*ids, "labels"], maintain_order=True)
        .agg(pl.len().alias("count"))
    )
    most = _joined(counts, rows, ids).filter(pl.col("count") * 2 >= pl.col("rows"))
    return most.group_by(ids, maintain_order=True).agg(pl.col("labels"))
