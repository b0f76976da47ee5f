"""Rows: whose a vector is. The columns that embeddings and indexes share; knows no vectors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

import numpy as np
import polars as pl

from clocs.errors import SettingError

Level = Literal["frame", "recording", "patient"]
LEVELS: tuple[Level, ...] = get_args(Level)

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
    "digest": pl.UInt64,  # content key of the recording's samples; null at the level 'patient'
}
ID_COLUMNS: dict[Level, tuple[str, ...]] = {
    "frame": ("dataset", "patient", "recording", "segment", "lead"),
    "recording": ("dataset", "patient", "recording"),
    "patient": ("dataset", "patient"),
}


def make_rows(columns: Mapping[str, Any], n: int) -> pl.DataFrame:
    """(n) rows of all columns, from sequences or arrays by name; null where not given.

    A dataset that is not given is ''; an age that is no number is null, as unknown ones are.
    """
    unknown = set(columns) - set(ROW_SCHEMA)
    if unknown:
        raise SettingError(f"rows have no column {', '.join(sorted(unknown))}")
    given: dict[str, Any] = {
        "dataset": [""] * n,
        "views": np.ones(n, np.int32),
        "labels": [[]] * n,
        **columns,
    }
    series = [
        pl.Series(name, given[name], kind, strict=False)
        if name in given
        else pl.Series(name, [None], kind).new_from_index(0, n)
        for name, kind in ROW_SCHEMA.items()
    ]
    return pl.DataFrame(series).with_columns(pl.col("age").fill_nan(None))


def check_level(level: str) -> None:
    """SettingError where there is no such level."""
    if level not in LEVELS:
        raise SettingError(f"the level is {level!r}; choose one of {', '.join(LEVELS)}")
