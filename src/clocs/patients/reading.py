"""How recordings were read: what an encoder saw of each, and what was assumed or left out."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from clocs.recording import DERIVED, NOTES, UNNAMED_LEAD, Recording, notes_of

if TYPE_CHECKING:
    from clocs.frames.make import FramePlan

_NAMES = pl.List(pl.String)
READ_SCHEMA: dict[str, pl.DataType | type[pl.DataType]] = {
    "rate": pl.Float64,  # Hz, of the file
    "unit": pl.String,
    "leads_used": _NAMES,  # that have a signal
    "leads_missing": _NAMES,  # of those wanted: not there, or flat throughout
    "leads_derived": _NAMES,  # of those used: computed from I and II
    "notes": _NAMES,  # what was assumed or left out, one sentence each
}
READ_COLUMNS = tuple(READ_SCHEMA)


@dataclass(frozen=True, slots=True)
class Reading:
    """How one recording was read; the fields are those of `READ_SCHEMA`."""

    rate: float
    unit: str
    leads_used: tuple[str, ...]
    leads_missing: tuple[str, ...]
    leads_derived: tuple[str, ...]
    notes: tuple[str, ...]

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> Reading:
        """From `facts`."""
        values: dict[str, Any] = {name: facts[name] for name in READ_COLUMNS}
        lists = {name: tuple(one) for name, one in values.items() if isinstance(one, list)}
        return cls(**(values | lists))

    def facts(self) -> dict[str, Any]:
        """By column."""
        values = ((name, getattr(self, name)) for name in READ_COLUMNS)
        return {name: list(one) if isinstance(one, tuple) else one for name, one in values}

    def joined(self, later: Reading) -> Reading:
        """With a later stretch of the same recording."""
        used = tuple(dict.fromkeys((*self.leads_used, *later.leads_used)))
        return replace(
            self,
            leads_used=used,
            leads_missing=tuple(lead for lead in self.leads_missing if lead not in used),
            leads_derived=tuple(dict.fromkeys((*self.leads_derived, *later.leads_derived))),
            notes=tuple(dict.fromkeys((*self.notes, *later.notes))),
        )


def reading_of(recording: Recording, wanted: Sequence[str], there: NDArray[np.bool_]) -> Reading:
    """Of a recording as an encoder sees it; there: (wanted,) which leads have a signal."""
    used = tuple(lead for lead, has in zip(wanted, there, strict=True) if has)
    derived = recording.extra.get(DERIVED, "").split(", ")
    return Reading(
        recording.rate,
        recording.unit,
        used,
        tuple(lead for lead in wanted if lead not in used),
        tuple(lead for lead in used if lead in derived),
        notes_of(recording.extra),
    )


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
    assumed = [
        f"the lead without a name is taken as {lead}" for lead in stands_for.values() if lead
    ]
    known: dict[tuple[Any, ...], tuple[list[str], list[str], list[str]]] = {}
    columns: list[tuple[list[str], list[str], list[str]]] = []
    notes: list[list[str]] = []
    says = table["extra"].str.contains_any([f'"{key}"' for key in NOTES])
    for seen, own, extra, some in zip(
        there[chosen], table["leads"].to_list(), table["extra"], says, strict=True
    ):
        key = (seen.tobytes(), *own)
        if key not in known:
            names = [lead for lead, has in zip(plan.leads, seen, strict=True) if has]
            seen_as = [stands_for.get(lead, lead) for lead in names]
            lacking = [lead for lead in wanted if lead not in seen_as]
            known[key] = seen_as, lacking, [lead for lead in names if lead not in own]
        columns.append(known[key])
        said = list(notes_of(json.loads(extra))) if some else []
        notes.append([*said, *(assumed if own == [UNNAMED_LEAD] else [])])
    used, missing, derived = ([one[k] for one in columns] for k in range(3))
    values: list[Any] = [table["rate"], table["unit"], used, missing, derived, notes]
    dataset = pl.lit(plan.store.manifest.dataset).alias("dataset")
    return table.select(dataset, "patient", pl.col("id").alias("recording")).with_columns(
        pl.Series(name, one, kind)
        for (name, kind), one in zip(READ_SCHEMA.items(), values, strict=True)
    )


def readings_of_files(
    read: Sequence[tuple[Mapping[str, object], Reading | None]],
) -> pl.DataFrame:
    """As `readings_of_store`, of recordings with their rows."""
    rows = [
        {"dataset": "", "patient": row["patient"], "recording": row["recording"], **one.facts()}
        for row, one in read
        if one is not None
    ]
    ids = dict.fromkeys(("dataset", "patient", "recording"), pl.String)
    return pl.DataFrame(rows, schema={**ids, **READ_SCHEMA})


def with_readings(rows: pl.DataFrame, readings: pl.DataFrame) -> pl.DataFrame:
    """Rows of frames, recordings or patients, and how these were read.

    Where a patient's recordings have different rates or units, the patient's is null; leads and
    notes are those of all recordings.

    Args:
        rows: With the columns of `ROW_SCHEMA`.
        readings: One row per recording: dataset, patient, recording and `READ_SCHEMA`.
    """
    ids = ["dataset", "patient", "recording"]
    if rows.height and rows["recording"].null_count() == rows.height:  # patients
        ids = ids[:2]
        one = pl.col("rate", "unit")
        lists = [name for name, kind in READ_SCHEMA.items() if kind == _NAMES]
        readings = readings.group_by(ids, maintain_order=True).agg(
            pl.when(one.n_unique() == 1).then(one.first()),
            *(pl.col(name).explode().drop_nulls().unique(maintain_order=True) for name in lists),
        )
    found = rows.select(ids).join(
        readings.select(*ids, *READ_COLUMNS),
        on=ids,
        how="left",
        maintain_order="left",
        nulls_equal=True,
    )
    return rows.hstack(found.select(READ_COLUMNS))


def counted_notes(rows: pl.DataFrame) -> dict[str, int]:
    """Each note of `READ_SCHEMA`, and of how many recordings (or patients) it is."""
    if "notes" not in rows.columns:
        return {}
    ids = [name for name in ("dataset", "file", "patient", "recording") if name in rows.columns]
    each = rows.select(*ids, "notes").unique(ids).explode("notes").drop_nulls("notes")
    return dict(each["notes"].value_counts(sort=True).iter_rows())
