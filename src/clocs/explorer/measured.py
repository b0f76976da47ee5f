"""What `clocs measure` found of a store's recordings, as numbers of patients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from clocs.errors import ClocsError
from clocs.measurements.quality import signal_quality
from clocs.recording import Recording
from clocs.store.store import Store

UNMEASURED = (
    "Heart rate, PR, QRS, QT, axes and quality of {} are not measured yet: `clocs measure STORE` "
    "does it once, about 500 recordings per minute and core; then start the explorer again"
)
_SECONDS = 60.0  # of a recording that is shown


class ShownMeasurement(NamedTuple):
    """How a measurement is shown: `step` is the smallest difference."""

    title: str
    unit: str
    step: float = 1


MEASURED = {
    "heart_rate": ShownMeasurement("Heart rate", "bpm"),
    "pr": ShownMeasurement("PR", "ms"),
    "qrs": ShownMeasurement("QRS", "ms"),
    "qt": ShownMeasurement("QT", "ms"),
    "qtc_fridericia": ShownMeasurement("QTc (Fridericia)", "ms"),
    "qtc_bazett": ShownMeasurement("QTc (Bazett)", "ms"),
    "qrs_axis": ShownMeasurement("QRS axis", "°"),
    "t_axis": ShownMeasurement("T axis", "°"),
    "sdnn": ShownMeasurement("SDNN", "ms"),
    "rmssd": ShownMeasurement("RMSSD", "ms"),
    "sokolow_lyon": ShownMeasurement("Sokolow–Lyon", "mV", 0.1),
    "quality": ShownMeasurement("Quality", "%"),
}


def measurements_of(store: Store) -> pl.DataFrame | None:
    """The table of `clocs measure`, once all recordings of a store are in it."""
    from clocs.models.measure import kept_measurements

    table = kept_measurements(store).read()
    return table if table is not None and table.height == len(store) else None


def measured_patients(
    rows: pl.DataFrame, stores: Mapping[str, Store]
) -> tuple[dict[str, NDArray[np.float32]], str]:
    """(patients,) of each of `MEASURED`, nan where unknown; and a note where stores have none.

    The median of a patient's recordings; of angles the first. Nothing where no store is measured.

    Args:
        rows: `dataset` and `patient`, one row per patient.
        stores: By dataset.
    """
    keys, percent = ["dataset", "patient"], pl.col("quality") * 100
    tables = {dataset: measurements_of(store) for dataset, store in stores.items()}
    found = [
        table.select("patient", *MEASURED).with_columns(percent, dataset=pl.lit(dataset))
        for dataset, table in tables.items()
        if table is not None
    ]
    missing = [dataset for dataset, table in tables.items() if table is None]
    note = UNMEASURED.format(" and ".join(missing)) if missing else ""
    if not found:
        return {}, note
    each = [
        pl.col(name).first() if one.unit == "°" else pl.col(name).median()
        for name, one in MEASURED.items()
    ]
    medians = pl.concat(found).group_by(keys, maintain_order=True).agg(each)
    joined = rows.select(keys).join(medians, on=keys, how="left", maintain_order="left")
    numbers = {}
    for name, one in MEASURED.items():
        rounded = ((joined[name] / one.step).round() * one.step).fill_null(np.nan)
        numbers[name] = rounded.cast(pl.Float32).to_numpy()
    return numbers, note


def shown_measurements(recording: Recording) -> dict[str, Any]:
    """What a page shows of the first minute: marks by lead, values or why there are none."""
    from clocs.models.measure import measure

    part = recording.between(0, min(recording.samples, round(_SECONDS * recording.rate)))
    quality = signal_quality(part)
    facts: dict[str, Any] = {"waves": {}, "beats": [], "values": {}, "problem": None}
    try:
        facts |= measure(part).to_dict()
    except ClocsError as error:
        facts["problem"] = str(error)
    found = facts["values"]
    found["quality"] = {"value": 100 * quality.value, "reason": quality.reason}
    rows = [found[name] | one._asdict() for name, one in MEASURED.items() if name in found]
    return facts | {"values": rows, "seconds": part.seconds}
