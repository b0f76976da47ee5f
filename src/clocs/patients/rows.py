"""Rows: what is known about each vector, and how its recording was read.

Frames -> recordings -> patients: a recording has the labels of at least half of its frames, a
patient those of all recordings.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import polars as pl
from numpy.typing import NDArray

from clocs.datasets.base import parse_age, parse_sex
from clocs.errors import SettingError
from clocs.files import csv_cell, digest, replacing, writing
from clocs.frames.splits import PARTS
from clocs.recording import NOTES, UNNAMED_LEAD, Recording, notes_of
from clocs.sealed import seal_parquet

if TYPE_CHECKING:
    from clocs.frames.make import FramePlan

Level = Literal["frame", "recording", "patient"]
LEVELS: tuple[Level, ...] = get_args(Level)

_NAMES = pl.List(pl.String)
ROW_SCHEMA: dict[str, pl.DataType | type[pl.DataType]] = {
    "dataset": pl.String,  # '' for files
    "patient": pl.String,  # the dataset's own ID; a file's name unless a table names the patient
    "recording": pl.String,  # null at the level 'patient'
    "segment": pl.Int32,  # null above the level 'frame'
    "lead": pl.String,  # null above the level 'frame'
    "labels": _NAMES,  # of a patient: those of all recordings
    "split": pl.String,  # train, validation, test; null for files
    "age": pl.Float64,  # years, null where unknown; of a patient: at the first recording
    "sex": pl.String,  # male, female or null
    "views": pl.Int32,  # unit vectors in the mean; 1 for a frame, 0 for a zero vector
    "digest": pl.UInt64,  # content key of the recording's samples; null at the level 'patient'
}
READ_SCHEMA: dict[str, pl.DataType | type[pl.DataType]] = {
    "rate": pl.Float64,  # Hz, of the file
    "unit": pl.String,
    "leads_used": _NAMES,  # that have a signal
    "leads_missing": _NAMES,  # of those wanted: not there, or flat throughout
    "leads_derived": _NAMES,  # of those used: computed from I and II
    "notes": _NAMES,  # what was assumed or left out, one sentence each
}
ID_COLUMNS: dict[Level, tuple[str, ...]] = {
    "frame": ("dataset", "patient", "recording", "segment", "lead"),
    "recording": ("dataset", "patient", "recording"),
    "patient": ("dataset", "patient"),
}


def make_rows(columns: Mapping[str, Any], n: int) -> pl.DataFrame:
    """(n) rows of all columns, from sequences or arrays by name; null where not given.

    A missing dataset is ''; an age that is not a number is null.
    """
    if unknown := sorted(columns.keys() - ROW_SCHEMA.keys()):
        raise SettingError(f"rows have no column {', '.join(unknown)}")
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


def write_rows(rows: pl.DataFrame, path: Path, metadata: dict[str, str] | None = None) -> None:
    """Write a parquet file with a digest, or a .csv, complete or not at all."""
    with writing(path), replacing(path) as temporary:
        if path.suffix == ".csv":
            flat = rows.with_columns(pl.col(pl.List(pl.String)).list.join("; "))
            text = pl.col(pl.String).map_elements(csv_cell, pl.String)
            flat.with_columns(text).write_csv(temporary)
            return
        rows.write_parquet(temporary, metadata=metadata)
        seal_parquet(temporary)


def check_level(level: str) -> None:
    """SettingError for an unknown level."""
    if level not in LEVELS:
        raise SettingError(f"the level is {level!r}; choose one of {', '.join(LEVELS)}")


def frame_rows(
    plan: FramePlan, chosen: NDArray[np.int64], *, all_leads: str | None = None
) -> pl.DataFrame:
    """One row per frame and lead with a signal of the chosen recordings, frame by frame.

    With a name for `all_leads`, one row per frame, of that lead.
    """
    used = plan.kept & np.isin(plan.cuts.recording, chosen)
    there = plan.present & used[:, None]
    names_of_leads = plan.leads if all_leads is None else (all_leads,)
    keep, lead = np.nonzero(there if all_leads is None else there.any(axis=1, keepdims=True))
    recording = plan.cuts.recording[keep]
    # There are few distinct sets of labels: make each once and look it up.
    kinds, kind = np.unique(plan.target[keep], axis=0, return_inverse=True)
    names = np.array(plan.store.manifest.labels)
    sets = pl.Series([names[row > 0].tolist() for row in kinds], dtype=_NAMES)
    table = plan.table.select("patient", "id", "age", "sex", "digest")[recording]
    columns = {name: table[name] for name in ("patient", "age", "sex", "digest")} | {
        "dataset": pl.Series([plan.store.manifest.dataset]).new_from_index(0, table.height),
        "recording": table["id"],
        "segment": plan.cuts.frame[keep].astype(np.int32),
        "lead": pl.Series(names_of_leads)[lead],
        "labels": sets[kind.ravel()],
        "split": pl.Series(PARTS)[plan.split[plan.patient[recording]]],
    }
    return make_rows(columns, table.height)


def file_row(recording: Recording) -> dict[str, object]:
    """What a file says about its patient; PhysioNet headers have age and sex as comments."""
    comments = {key.lower(): value for key, value in recording.extra.items()}
    age = recording.age if recording.age is not None else parse_age(comments.get("age"))
    return {
        "patient": recording.patient,
        "recording": recording.id,
        "labels": list(recording.labels),
        "age": age,
        "sex": recording.sex or parse_sex(comments.get("sex")),
        "digest": digest(recording.digital),
    }


def rows_of_files(
    recordings: Sequence[Mapping[str, object]],
    present: Sequence[NDArray[np.bool_]],
    leads: Sequence[str],
) -> pl.DataFrame:
    """One row per frame and lead with a signal.

    recordings: One row each; present: for each, (frames, leads) which of them have a signal.
    """
    names = recordings[0] if recordings else ()
    columns = {name: [row[name] for row in recordings] for name in names}
    places = [np.nonzero(there) for there in present]
    owner = np.repeat(np.arange(len(recordings)), [len(segment) for segment, _ in places])
    segments, of_leads = (
        np.concatenate([place[axis] for place in places] or [np.zeros(0, np.int64)])
        for axis in (0, 1)
    )
    return make_rows(columns, len(recordings))[owner].with_columns(
        pl.Series("segment", segments, pl.Int32),
        pl.Series("lead", [leads[place] for place in of_leads], pl.String),
    )


def group_rows(frames: pl.DataFrame, level: Level) -> tuple[NDArray[np.int64], pl.DataFrame]:
    """Rows of frames -> the (n,) group of each, and one row per group, in order.

    A patient has the age and sex of the first recording in which they are known.
    """
    labels = pl.col("labels").explode().drop_nulls()
    names = labels.unique(maintain_order=True)
    numbered = frames.with_row_index("row")
    groups = numbered.group_by(ID_COLUMNS["recording"], maintain_order=True).agg(
        pl.col("split", "age", "sex", "digest").first(),
        pl.col("views").sum(),
        names.filter(labels.unique_counts() * 2 >= pl.len()),
        pl.col("row"),
    )
    if level == "patient":
        groups = groups.group_by(ID_COLUMNS["patient"], maintain_order=True).agg(
            names,
            pl.col("split").first(),
            pl.col("age", "sex").drop_nulls().first(),
            pl.col("views").sum(),
            pl.col("row").explode(),
        )
    group = np.empty(frames.height, np.int64)
    group[groups["row"].explode()] = np.repeat(np.arange(groups.height), groups["row"].list.len())
    return group, make_rows(groups.drop("row").to_dict(), groups.height)


def _left_join(left: pl.DataFrame, right: pl.DataFrame, ids: list[str]) -> pl.DataFrame:
    """Left join in which missing IDs are equal to each other."""
    return left.join(right, on=ids, how="left", maintain_order="left", nulls_equal=True)


def readings_of_store(
    plan: FramePlan, chosen: NDArray[np.int64], wanted: Sequence[str], stands_for: Mapping[str, str]
) -> pl.DataFrame:
    """One row per chosen recording: dataset, patient, recording and the columns of `READ_SCHEMA`.

    Args:
        plan: The store's frames.
        chosen: Recordings of the plan.
        wanted: Leads that the encoder would see.
        stands_for: Leads by the names that the store has for them.
    """
    there = np.zeros(plan.has.shape, np.bool_)
    np.logical_or.at(there, plan.cuts.recording, plan.present & plan.kept[:, None])
    table = plan.table.select("patient", "id", "rate", "unit", "leads", "extra")[chosen]
    assumed = [f"the lead without a name is taken as {lead}" for lead in stands_for.values()]
    noted = table["extra"].str.contains_any([f'"{key}"' for key in NOTES])
    notes_in = pl.when(noted).then(table["extra"]).otherwise(pl.lit("{}"))
    seen = pl.Series(map(bytes, there[chosen]), dtype=pl.Binary)
    rows = table.select("leads", notes_in.alias("notes"), seen.alias("seen"))
    # Few recordings differ in these: each kind is described once and looked up.
    kinds = rows.unique(maintain_order=True)
    kind = _left_join(rows, kinds.with_row_index("kind"), rows.columns)["kind"]
    columns: dict[str, list[list[str]]] = {name: [] for name in list(READ_SCHEMA)[2:]}
    for own, extra, has in kinds.iter_rows():
        names = [lead for lead, one in zip(plan.leads, has, strict=True) if one]
        used = [stands_for.get(lead, lead) for lead in names]
        notes = list(notes_of(json.loads(extra)))
        columns["leads_used"].append(used)
        columns["leads_missing"].append([lead for lead in wanted if lead not in used])
        columns["leads_derived"].append([lead for lead in names if lead not in own])
        columns["notes"].append([*notes, *assumed] if own == [UNNAMED_LEAD] else notes)
    dataset = pl.lit(plan.store.manifest.dataset).alias("dataset")
    return table.select(
        dataset, "patient", pl.col("id").alias("recording"), "rate", "unit"
    ).with_columns(pl.Series(name, values, _NAMES)[kind] for name, values in columns.items())


def with_readings(rows: pl.DataFrame, readings: pl.DataFrame) -> pl.DataFrame:
    """Rows of frames, recordings or patients, and how these were read.

    Where a patient's recordings have different rates or units, the patient's is null; leads and
    notes are those of all recordings.

    Args:
        rows: With the columns of `ROW_SCHEMA`.
        readings: One row per recording: dataset, patient, recording and `READ_SCHEMA`.
    """
    ids = list(ID_COLUMNS["recording"])
    if rows.height and rows["recording"].null_count() == rows.height:  # patients
        ids = list(ID_COLUMNS["patient"])
        one = pl.col("rate", "unit")
        lists = [name for name, kind in READ_SCHEMA.items() if kind == _NAMES]
        readings = readings.group_by(ids, maintain_order=True).agg(
            pl.when(one.n_unique() == 1).then(one.first()),
            *(pl.col(name).explode().drop_nulls().unique(maintain_order=True) for name in lists),
        )
    return _left_join(rows, readings.select(*ids, *READ_SCHEMA), ids)
