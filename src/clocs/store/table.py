"""The columns of a recording in a store's table: their types, and how to write and read each.

Flat stretches, where a lead holds one value because an electrode is off or its input saturated, are
found when a recording is read, so that frames can be skipped before any signal is.

polars is not imported here: processes are forked after this module is read, and before polars.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from clocs.files import digest
from clocs.recording import Episode, Gap, Recording

if TYPE_CHECKING:
    import polars as pl

_as_json = json.JSONEncoder(ensure_ascii=False).encode


class Column(NamedTuple):
    """One column.

    Attributes:
        type: Name of the polars type; in brackets where it is a list of them.
        write: From a recording to the value; by default the attribute of the column's name.
        read: From the value to the attribute; None where it is computed from the samples.
        attribute: Of the recording; the column's name by default.
    """

    type: str
    write: Callable[[Recording], Any] | None = None
    read: Callable[[Any], Any] | None = lambda value: value
    attribute: str = ""


COLUMNS: Mapping[str, Column] = {
    "id": Column("String"),
    "patient": Column("String"),
    "offset": Column("Int64", lambda recording: 0, None),  # set when the samples are written
    "samples": Column("Int64", read=None),
    "leads": Column("[String]", read=tuple),
    "rate": Column("Float64"),
    "gain": Column(
        "[Float64]", lambda one: tuple(one.gain.tolist()), lambda v: np.array(v, np.float64)
    ),
    "baseline": Column(
        "[Int32]", lambda one: tuple(one.baseline.tolist()), lambda v: np.array(v, np.int32)
    ),
    "unit": Column("String"),
    "labels": Column("[String]", read=tuple),
    "episodes": Column("[Episode]", read=lambda v: tuple(Episode(**one) for one in v)),
    "age": Column("Float64"),
    "sex": Column("String"),
    "taken": Column("String", attribute="recorded_at"),  # ISO 8601
    "extra": Column("String", lambda one: _as_json(one.extra), json.loads),
    "digest": Column("UInt64", lambda one: digest(one.digital), None),
    "gaps": Column("[Gap]", read=lambda v: tuple(Gap(**one) for one in v)),
    "fold": Column("String"),
    "flat": Column("[Gap]", lambda recording: (), None),  # set for datasets with `skip_flat`
}
_AT_ONCE = 20_000  # rows that are checked together: it takes ten times their own memory
_WRITERS = [(name, c.write or attrgetter(c.attribute or name)) for name, c in COLUMNS.items()]
_READERS = [(c.attribute or name, name, c.read) for name, c in COLUMNS.items() if c.read]


def table_schema() -> dict[str, pl.DataType | type[pl.DataType]]:
    """The columns as polars types."""
    import polars as pl

    stretch = {"start": pl.Int64, "stop": pl.Int64}
    structs = {"Episode": stretch | {"label": pl.String}, "Gap": stretch | {"lead": pl.String}}
    schema: dict[str, pl.DataType | type[pl.DataType]] = {}
    for name, column in COLUMNS.items():
        kind = column.type.strip("[]")
        one = pl.Struct(structs[kind]) if kind in structs else getattr(pl, kind)
        schema[name] = pl.List(one) if column.type.startswith("[") else one
    return schema


def is_sound(table: pl.DataFrame) -> bool:
    """Whether every row can be read: its samples follow those before, and nothing is missing."""
    end = 0
    for rows in table.iter_slices(_AT_ONCE):
        if not _are_sound(rows, end):
            return False
        offset, samples, leads = rows.select("offset", "samples", "leads").row(-1)
        end = offset + samples * len(leads)
    return all(_are_stretches(table, name) for name in ("gaps", "flat"))


def _are_sound(rows: pl.DataFrame, start: int) -> bool:
    """As `is_sound`, of rows whose samples begin at `start`."""
    import polars as pl

    needed = [name for name in rows.columns if name not in ("age", "sex", "taken", "fold")]
    lists = [name for name in needed if isinstance(rows.schema[name], pl.List)]
    leads = pl.col("leads").list.len()
    ends = (pl.col("samples") * leads).cum_sum()
    sound = rows.select(
        pl.all_horizontal(
            *(pl.col(name).is_not_null() for name in needed),
            *(pl.col(one).list.len() == pl.col(one).list.drop_nulls().list.len() for one in lists),
            *(pl.col(name).list.len() == leads for name in ("gain", "baseline")),
            pl.col("samples") > 0,
            leads > 0,
            pl.col("leads").list.n_unique() == leads,
            pl.col("offset") == start + ends.shift(1, fill_value=0),
        ).all()
    )
    return sound.item() is True


def _are_stretches(table: pl.DataFrame, column: str) -> bool:
    """Whether each of a column is a stretch of a lead that its recording has."""
    import polars as pl

    gap = pl.col(column).struct
    inside = (
        table.filter(pl.col(column).list.len() > 0)
        .explode(column)
        .select(
            pl.all_horizontal(
                gap.field("start") >= 0,
                gap.field("start") < gap.field("stop"),
                gap.field("stop") <= pl.col("samples"),
                pl.col("leads").list.contains(gap.field("lead")),
            ).fill_null(value=False)
        )
    )
    return inside.to_series().all()


def without_unused(table: pl.DataFrame) -> pl.DataFrame:
    """The table without gaps, flat stretches and folds where no recording has any."""
    used = {name: (table[name].list.len() > 0).any() for name in ("gaps", "flat")}
    used["fold"] = table["fold"].count() > 0
    return table.drop(name for name, is_used in used.items() if not is_used)


def row_of(recording: Recording) -> dict[str, Any]:
    """The row of a recording; its offset is still 0."""
    return {name: write(recording) for name, write in _WRITERS}


def recording_of(row: Mapping[str, Any], flat: NDArray[np.int16]) -> Recording:
    """The recording of a row and its samples, lead after lead; ValueError where it cannot be."""
    facts = {attribute: read(row[name]) for attribute, name, read in _READERS}
    return Recording(digital=flat.reshape(len(row["leads"]), row["samples"]), **facts)
