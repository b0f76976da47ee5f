"""Whose a frame is: rows from what a store or a file tells. Knows nothing about vectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

from clocs.datasets.checks import parse_age, parse_sex
from clocs.files import digest
from clocs.frames.make import FramePlan
from clocs.frames.splits import PARTS
from clocs.patients.rows import make_rows
from clocs.recording import Recording


def frame_rows(plan: FramePlan, chosen: NDArray[np.int64]) -> pl.DataFrame:
    """One row a frame and lead of these recordings, frame by frame."""
    keep = np.flatnonzero(plan.kept & np.isin(plan.cuts.recording, chosen))
    recording, leads = plan.cuts.recording[keep], len(plan.leads)
    # Few distinct sets of labels: each is made once, and looked up.
    kinds, kind = np.unique(plan.target[keep], axis=0, return_inverse=True)
    names = np.array(plan.store.manifest.labels)
    sets = pl.Series([names[row > 0].tolist() for row in kinds], dtype=pl.List(pl.String))
    table = plan.table[recording.repeat(leads)]
    return make_rows(
        {
            "dataset": pl.Series([plan.store.manifest.dataset]).new_from_index(0, table.height),
            "patient": table["patient"],
            "recording": table["id"],
            "segment": plan.cuts.frame[keep].astype(np.int32).repeat(leads),
            "lead": list(plan.leads) * len(keep),
            "labels": sets[kind.ravel().repeat(leads)],
            "split": np.array(PARTS)[plan.split[plan.patient[recording]]].repeat(leads),
            "age": table["age"],
            "sex": table["sex"],
            "digest": table["digest"],
        },
        table.height,
    )


def file_row(recording: Recording) -> dict[str, object]:
    """What a file tells about its patient; PhysioNet's headers have age and sex as comments."""
    told = {key.lower(): value for key, value in recording.extra.items()}
    age = recording.age if recording.age is not None else parse_age(told.get("age"))
    return {
        "dataset": "",
        "patient": recording.patient,
        "recording": recording.id,
        "labels": list(recording.labels),
        "age": age,
        "sex": recording.sex or parse_sex(told.get("sex")),
        "digest": digest(recording.digital),
    }


def rows_of_files(
    told: Sequence[Mapping[str, object]], frames: Sequence[int], leads: Sequence[str]
) -> pl.DataFrame:
    """One row a frame and lead of recordings of so many frames each, frame by frame."""
    columns = {name: [row[name] for row in told] for name in told[0]} if told else {}
    owner = np.repeat(np.arange(len(told)), np.asarray(frames, np.int64) * len(leads))
    segment = [np.arange(count, dtype=np.int32).repeat(len(leads)) for count in frames]
    return make_rows(columns, len(told))[owner].with_columns(
        pl.Series("segment", np.concatenate(segment) if segment else [], pl.Int32),
        pl.Series("lead", list(leads) * sum(frames), pl.String),
    )
