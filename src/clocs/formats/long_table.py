"""Long tables: one row per lead and sample, with columns for the lead, the sample and the value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clocs.errors import UnusableError
from clocs.formats.arrays import Said
from clocs.formats.field_names import meaning_of, split_unit
from clocs.formats.times import rate_of_times, seconds_of
from clocs.limits import check_size
from clocs.recording import UNITS_PER_MV

if TYPE_CHECKING:
    import polars as pl

_MAX_LEADS = 1000


def from_long(
    table: pl.DataFrame, said: Said, *, name: str, taken: Sequence[str], given: float | None
) -> tuple[NDArray[np.float64], Said]:
    """(leads, samples) of a long table, NaN where a lead has no row for a sample.

    Args:
        table: Its columns, in the order of `taken`.
        said: What else the file says.
        name: Of the recording, for messages.
        taken: Names of the columns.
        given: The rate that the user gives, where files do not.

    Raises:
        UnusableError: unreadable, where leads differ in length and nothing orders them.
    """
    import polars as pl

    columns = {meaning_of(one): i for i, one in reversed(list(enumerate(taken)))}
    lead = table.to_series(columns["lead"]).cast(pl.String)
    value: NDArray[Any] = table.to_series(columns["value"]).to_numpy()
    if value.dtype.kind not in "iuf":
        detail = f"{name} has text in its column {taken[columns['value']]}"
        raise UnusableError("unreadable", detail)
    value = value.astype(np.float64)
    codes, names = _numbered(lead)
    if len(names) > _MAX_LEADS:
        raise UnusableError("exceeds limits", f"{name} has {len(names):,} leads")
    key = columns.get("sample", columns.get("time"))
    if key is None:
        counts = np.bincount(codes, minlength=len(names))
        if counts.min() != counts.max():
            detail = f"{name} has leads of different lengths and no column of samples or times"
            raise UnusableError("unreadable", detail)
        order = np.argsort(codes, kind="stable")
        values = value[order].reshape(len(names), -1)
    else:
        moments = seconds_of(table.to_series(key).to_numpy())
        if not np.isfinite(moments).all():
            detail = f"{name} has neither a number nor a time in its column {taken[key]}"
            raise UnusableError("unreadable", detail)
        unique, at = np.unique(moments, return_inverse=True)
        size = len(names) * len(unique)
        if size > 4 * len(value) + 1_000_000:
            raise UnusableError("unreadable", f"{name} has few rows for each sample")
        check_size(8 * size, packed=8 * len(value), name=name)
        values = np.full((len(names), len(unique)), np.nan)
        values[codes, at] = value
        if key == columns.get("time") and said.rate is None:
            column, unit = split_unit(taken[key])
            if not table.dtypes[key].is_numeric():
                unit = "s"
            rate, notice = rate_of_times(unique, column=column, unit=unit, name=name, given=given)
            said = replace(said, rate=rate, notices=(*said.notices, *([notice] if notice else ())))
    held = split_unit(taken[columns["value"]])
    unit = said.unit or next((one for one in held if one and one.lower() in UNITS_PER_MV), None)
    return values, replace(said, leads=names, unit=unit)


def _numbered(lead: pl.Series) -> tuple[NDArray[np.intp], list[str]]:
    """The number of each row's lead, and the leads in order of appearance."""
    names = ["" if one is None else str(one) for one in lead.unique(maintain_order=True)]
    numbers = {one: i for i, one in enumerate(names)}
    found = lead.fill_null("").replace_strict(list(numbers), list(numbers.values()))
    return found.to_numpy().astype(np.intp), names
