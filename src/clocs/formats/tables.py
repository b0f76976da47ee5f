"""What tables in text and in Parquet files share: wide and long tables, columns of times."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clocs.errors import UnknownRateError, UnusableError
from clocs.formats.arrays import find_axes, meaning_of, split_unit
from clocs.formats.base import FileMetadata, ReadOptions
from clocs.limits import check_size
from clocs.recording import UNITS_PER_MV

if TYPE_CHECKING:
    import polars as pl

_MAX_LEADS = 1000
_NO_LEADS = frozenset(
    {"id", "patient", "labels", "age", "sex", "recorded_at", "rate", "sample", "unit"}
)
_PER_SECOND = {"s": 1.0, "sec": 1.0, "seconds": 1.0, "ms": 1e3, "us": 1e6, "µs": 1e6, "μs": 1e6}
_PER_SECOND |= {"ns": 1e9}
_UNIT_AT_END = re.compile(r"(?:^|[\W_])(ms|us|µs|ns|s|sec|seconds)\W*$", re.IGNORECASE)
_CLOCK = re.compile(r"\d{1,3}(?::\d{1,2}){1,2}(?:[.,]\d+)?\Z")
_STAMP = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?\s?(?:Z|[+-]\d\d:?\d\d)?\Z")
# Numbers as large as this count from 1970, so many to the second.
_SINCE_1970 = ((1e17, 1e9), (1e14, 1e6), (1e11, 1e3))
_DECIMALS = re.compile(r":\d+[.,](\d+)")
_LOOKED_AT = 20  # times, for how many decimals they have: some programs leave out zeros
_COARSEST = 2e-3  # of the duration of a recording whose rate its times give
_LONGEST_STEP = 0.02  # s, of the lowest rate that an ECG has


def is_stamp(text: str) -> bool:
    """Whether it is a date with a time, such as '2024-01-01T12:00:00.004'."""
    return _STAMP.match(text.replace("/", "-")) is not None


def is_time(text: str) -> bool:
    """Whether it is a time such as '0:01.250' or '01:00:02', perhaps with a date."""
    return _CLOCK.match(text) is not None or is_stamp(text)


def stamp_of(text: str) -> datetime | None:
    """The moment that `is_stamp` is true of; None where there is no such day."""
    try:
        return datetime.fromisoformat(text.replace("/", "-").replace(" ", "T", 1).replace(" ", ""))
    except ValueError:
        return None


def _seconds_of(times: NDArray[Any]) -> NDArray[np.float64]:
    """Text that `is_time` as seconds, NaN for anything else; numbers as they are."""
    if times.dtype.kind in "iuf":
        return times.astype(np.float64)
    if times.dtype.kind == "M":
        missing = np.isnat(times)
        return np.where(missing, np.nan, times.astype("datetime64[ns]").astype(np.int64) / 1e9)
    return np.array([_seconds(str(one)) for one in times])


def _seconds(text: str) -> float:
    if _CLOCK.match(text):
        total = 0.0
        for part in text.replace(",", ".").split(":"):
            total = 60 * total + float(part)
        return total
    stamp = stamp_of(text) if is_stamp(text) else None
    return np.nan if stamp is None else stamp.replace(tzinfo=stamp.tzinfo or UTC).timestamp()


def counts(column: NDArray[Any]) -> bool:
    """Whether values grow by one step throughout, as a counter's or a clock's do."""
    if len(column) < 3 or column.dtype.kind not in "iuf":
        return False
    column = column.astype(np.float64)
    step = (column[-1] - column[0]) / (len(column) - 1)
    return bool(step > 0 and np.abs(np.diff(column) - step).max() <= 0.01 * step)


def rate_of_times(
    times: NDArray[Any], *, column: str, unit: str | None, name: str, given: float | None = None
) -> tuple[float | None, str]:
    """The rate in Hz and what to say about it; None where the column only counts samples.

    A rate that the user gives counts where the column's unit would have to be guessed.

    Args:
        times: One per sample; numbers, or text that `is_time`.
        column: Its name.
        unit: Its unit, where the header says it.
        name: Of the recording, for messages.
        given: The rate that the user gives, where files do not.

    Raises:
        UnusableError: unreadable, where times jump and no rate is given.
        UnknownRateError: They are too coarse to give it, and no rate is given.
    """
    if len(times) < 2:
        return None, ""
    ending = _UNIT_AT_END.search(column)
    per_second = _PER_SECOND.get((unit or (ending[1] if ending else "")).lower(), 0.0)
    digit = 0.0  # what the last digit of a clock stands for, in seconds
    if times.dtype.kind not in "iuf":
        per_second = 1.0
        some = times[:_LOOKED_AT].astype(str)
        digit = min(0.1 ** len("".join(_DECIMALS.findall(one))) for one in some)
    times = _seconds_of(times)
    if digit:  # a clock begins anew at midnight
        times += 86_400 * np.cumsum(np.diff(times, prepend=times[:1]) < -43_200)
    steps = np.diff(times)
    step = float((times[-1] - times[0]) / len(steps))
    if not step > 0:
        return None, ""
    even = bool(np.abs(steps - step).max() <= max(0.6 * step, 1.01 * digit))  # both are rounded
    coarse = digit > _COARSEST * (times[-1] - times[0])
    if given is not None and (coarse or not (per_second and even)):
        return None, ""
    if not even:
        row = int(np.abs(steps - step).argmax()) + 2
        raise UnusableError(
            "unreadable",
            f"{name} has times that jump in row {row:,}; give the sampling rate in Hz as `rate`",
        )
    if coarse:
        what = f"has times in steps of {digit:g} s, too coarse to tell its sampling rate"
        raise UnknownRateError.for_recording(name, what)
    guessed = not per_second
    if guessed:
        since = next((per for least, per in _SINCE_1970 if times[0] >= least), None)
        if step == 1 and since is None:  # a counter, or milliseconds at 1000 Hz
            return None, ""
        per_second = since or (1.0 if step <= _LONGEST_STEP else 1e3)
    rate = per_second / step
    rate = float(round(rate)) if abs(rate - round(rate)) < 1e-3 * rate else rate
    kind = {1.0: "seconds", 1e3: "milliseconds", 1e6: "microseconds"}.get(per_second, "nanoseconds")
    source = f"the column {column or 1} is taken as {kind}, which" if guessed else f"{column}"
    other = given is not None and abs(rate - given) > 0.01 * rate
    instead = f", not the {given:g} Hz that were given" if other else ""
    return rate, f"{source} gives a rate of {rate:g} Hz{instead}"


def from_long(
    table: pl.DataFrame,
    said: FileMetadata,
    *,
    name: str,
    columns: Sequence[str],
    given: float | None,
) -> tuple[NDArray[np.float64], FileMetadata]:
    """(leads, samples) of a table with one row per lead and sample, NaN where there is none.

    Args:
        table: Its columns, in the order of `columns`.
        said: What else the file says.
        name: Of the recording, for messages.
        columns: Their names.
        given: The rate that the user gives, where files do not.

    Raises:
        UnusableError: unreadable, where leads differ in length and nothing orders them.
    """
    import polars as pl

    places = {meaning_of(one): i for i, one in reversed(list(enumerate(columns)))}
    lead = table.to_series(places["lead"]).cast(pl.String).fill_null("")
    value: NDArray[Any] = table.to_series(places["value"]).to_numpy()
    if value.dtype.kind not in "iuf":
        detail = f"{name} has text in its column {columns[places['value']]}"
        raise UnusableError("unreadable", detail)
    value = value.astype(np.float64)
    names = [str(one) for one in lead.unique(maintain_order=True)]
    codes = lead.replace_strict(names, list(range(len(names)))).to_numpy().astype(np.intp)
    if len(names) > _MAX_LEADS:
        raise UnusableError("exceeds limits", f"{name} has {len(names):,} leads")
    key = places.get("sample", places.get("time"))
    if key is None:
        counts = np.bincount(codes, minlength=len(names))
        if counts.min() != counts.max():
            detail = f"{name} has leads of different lengths and no column of samples or times"
            raise UnusableError("unreadable", detail)
        values = value[np.argsort(codes, kind="stable")].reshape(len(names), -1)
    else:
        moments = _seconds_of(table.to_series(key).to_numpy())
        if not np.isfinite(moments).all():
            detail = f"{name} has neither a number nor a time in its column {columns[key]}"
            raise UnusableError("unreadable", detail)
        unique, at = np.unique(moments, return_inverse=True)
        size = len(names) * len(unique)
        if size > 4 * len(value) + 1_000_000:
            raise UnusableError("unreadable", f"{name} has few rows for each sample")
        check_size(8 * size, packed=8 * len(value), name=name)
        values = np.full((len(names), len(unique)), np.nan)
        values[codes, at] = value
        if key == places.get("time") and said.rate is None:
            column, unit = split_unit(columns[key])
            unit = unit if table.dtypes[key].is_numeric() else "s"
            said = _with_rate(said, unique, column, unit, name=name, given=given)
    held = split_unit(columns[places["value"]])
    unit = said.unit or next((one for one in held if one and one.lower() in UNITS_PER_MV), None)
    return values, replace(said, leads=names, unit=unit)


def _with_rate(
    said: FileMetadata,
    times: NDArray[Any],
    column: str,
    unit: str | None,
    *,
    name: str,
    given: float | None,
) -> FileMetadata:
    rate, notice = rate_of_times(times, column=column, unit=unit, name=name, given=given)
    return replace(said, rate=rate, notices=(*said.notices, *([notice] if notice else ())))


def from_wide(
    table: pl.DataFrame,
    said: FileMetadata,
    options: ReadOptions,
    *,
    name: str,
    names: Sequence[str] | None,
    units: Sequence[str | None],
    text: Collection[int],
) -> tuple[NDArray[Any], FileMetadata, list[str | None]]:
    """(leads, samples) of a table with one column per lead, and the unit of each.

    Args:
        table: The columns.
        said: What else the file says.
        options: By the user.
        name: Of the recording, for messages.
        names: Of the columns; None where there is no header.
        units: Of the columns, where the header says them.
        text: Columns that are not numbers.

    Raises:
        UnusableError: unreadable, where no column can be a lead.
    """
    called = names or ("",) * table.width
    meanings = [meaning_of(one) for one in called]
    notices = list(said.notices)
    clock = meanings.index("time") if "time" in meanings else None
    if clock is None:
        texts = (i for i in sorted(text) if len(table) and is_time(str(table.to_series(i)[0])))
        clock = next(texts, None)
    # No lead rises by equal steps throughout, whatever the name of its column.
    if clock is None and table.width > 1 and counts(table.to_series(0).to_numpy()):
        clock = 0
    skipped = {i for i, meaning in enumerate(meanings) if meaning in _NO_LEADS} | {clock, *text}
    columns = [i for i in range(table.width) if i not in skipped]
    other = [called[i] for i in sorted(set(text) - {clock}) if called[i]]
    if other:
        notices.append(f"columns that are no numbers were left out: {', '.join(other)[:100]}")
    if not columns:
        raise UnusableError("unreadable", f"{name} has no column of numbers that could be a lead")
    said = replace(said, notices=tuple(notices))
    if said.rate is None and clock is not None:
        times, given = table.to_series(clock).to_numpy(), options.rate
        said = _with_rate(said, times, called[clock], units[clock], name=name, given=given)
    values = table[:, columns].to_numpy().T
    leads = None if names is None else [split_unit(called[i])[0] for i in columns]
    if leads is None and len(columns) > 1:
        find_axes((len(columns), len(table)), None, options, name=name)  # enough samples to tell
    return values, replace(said, leads=leads), [units[i] for i in columns]
