"""Tables of numbers, wide or long, with columns of times; ECGs in Parquet files.

Parquet files have a column per lead, a row per recording with lists, or are long tables. Several
recordings of one file are told apart by a column of ids, or are one row each.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cached_property
from operator import methodcaller
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clocs.errors import UnknownRateError, UnusableError
from clocs.files import check_size
from clocs.formats import base
from clocs.formats.arrays import (
    by_meaning,
    find_axes,
    meaning_of,
    metadata_from,
    recording_from,
    split_unit,
    text_of,
)
from clocs.formats.base import FileMetadata, Part, ReadOptions, format_of_several, unreadable
from clocs.formats.source import Source, stem
from clocs.recording import UNITS_PER_MV, Recording

if TYPE_CHECKING:
    import polars as pl

_MAX_LEADS = 1000
_NO_LEADS = frozenset(
    {"id", "patient", "labels", "age", "sex", "recorded_at", "rate", "sample", "unit"}
)
_PER_SECOND = {"s": 1.0, "sec": 1.0, "seconds": 1.0, "ms": 1e3, "us": 1e6, "µs": 1e6, "μs": 1e6}
_PER_SECOND |= {"ns": 1e9}
# What recorders write beside an ECG, once per beat or second.
_OF_BEATS = re.compile(r"(?:hr|bpm|heart[ _]?rate|rr|rr[ _-]?intervals?)\b.*", re.IGNORECASE)
_UNIT_AT_END = re.compile(r"(?:^|[\W_])(ms|us|µs|ns|s|sec|seconds)\W*$", re.IGNORECASE)
_CLOCK = re.compile(r"\d{1,3}(?::\d{1,2}){1,2}(?:[.,]\d+)?\Z")
_STAMP = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?\s?(?:Z|[+-]\d\d:?\d\d)?\Z")
# Numbers as large as this count from 1970, so many to the second.
_SINCE_1970 = ((1e17, 1e9), (1e14, 1e6), (1e11, 1e3))
_DECIMALS = re.compile(r":\d+[.,](\d+)")
_LOOKED_AT = 20  # times, for how many decimals they have: some programs leave out zeros
_COARSEST = 2e-3  # of the duration of a recording whose rate its times give
_LONGEST_STEP = 0.02  # s, of the lowest rate that an ECG has
_FIELDS = ("rate", "unit", "patient", "id", "labels", "age", "sex", "recorded_at")
_TOGETHER = 64  # rows that are read at a time, since neighbors are wanted next


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


def _counts(column: NDArray[Any]) -> bool:
    """Whether values grow by one step throughout, as a counter's or a clock's do."""
    if len(column) < 3 or column.dtype.kind not in "iuf":
        return False
    column = column.astype(np.float64)
    step = (column[-1] - column[0]) / (len(column) - 1)
    return bool(step > 0 and np.abs(np.diff(column) - step).max() <= 0.01 * step)


def _add_rate(
    meta: FileMetadata,
    times: NDArray[Any],
    column: str,
    unit: str | None,
    *,
    name: str,
    given: float | None,
) -> None:
    """Add the rate that times give, and a notice; nothing where they only count samples.

    A rate that the user gives counts where the column's unit would have to be guessed.

    Args:
        meta: What the file says.
        times: One per sample; numbers, or text that `is_time`.
        column: Its name.
        unit: Its unit, where the header says it.
        name: Of the recording, for messages.
        given: The rate that the user gives, where files do not.

    Raises:
        UnusableError: unreadable, where times jump and no rate is given.
        UnknownRateError: They are too coarse to give it, and no rate is given.
    """
    if meta.rate is not None or len(times) < 2:
        return
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
        return
    even = bool(np.abs(steps - step).max() <= max(0.6 * step, 1.01 * digit))  # both are rounded
    coarse = digit > _COARSEST * (times[-1] - times[0])
    if given is not None and (coarse or not (per_second and even)):
        return
    if not even:
        row = int(np.abs(steps - step).argmax()) + 2
        jump = f"has times that jump in row {row:,}"
        raise unreadable(f"{name} {jump}; give the sampling rate in Hz as `rate`")
    if coarse:
        what = f"has times in steps of {digit:g} s, too coarse to tell its sampling rate"
        raise UnknownRateError.for_recording(name, what)
    source = column
    if not per_second:
        since = next((per for least, per in _SINCE_1970 if times[0] >= least), None)
        if step == 1 and since is None:  # a counter, or milliseconds at 1000 Hz
            return
        per_second = since or (1.0 if step <= _LONGEST_STEP else 1e3)
        kinds = {1.0: "seconds", 1e3: "milliseconds", 1e6: "microseconds", 1e9: "nanoseconds"}
        source = f"the column {column or 1} is taken as {kinds[per_second]}, which"
    rate = per_second / step
    rate = float(round(rate)) if abs(rate - round(rate)) < 1e-3 * rate else rate
    other = given is not None and abs(rate - given) > 0.01 * rate
    instead = f", not the {given:g} Hz that were given" if other else ""
    meta.rate = rate
    meta.notices.append(f"{source} gives a rate of {rate:g} Hz{instead}")


def from_table(
    table: pl.DataFrame,
    meta: FileMetadata,
    options: ReadOptions,
    *,
    name: str,
    names: Sequence[str] | None,
    units: Sequence[str | None],
) -> tuple[NDArray[Any], list[str | None]]:
    """(leads, samples) of a table, and the unit of each lead; none of a long table.

    Args:
        table: The columns, as numbers or text.
        meta: What else the file says; what the table says is added.
        options: By the user.
        name: Of the recording, for messages.
        names: Of the columns; None where there is no header.
        units: Of the columns, where the header says them.

    Raises:
        UnusableError: unreadable, where no column can be a lead, or a long table has leads that
            differ in length and nothing that orders them.
    """
    called = names or ("",) * table.width
    meanings = [meaning_of(one) for one in called]
    if {"lead", "value"} <= set(meanings):
        return _from_long(table, meta, name, called, options.rate), []
    text = [i for i, kind in enumerate(table.dtypes) if not kind.is_numeric()]
    timed = [i for i, u in enumerate(units) if i not in text and (u or "").lower() in _PER_SECOND]
    clock = timed[0] if timed else meanings.index("time") if "time" in meanings else None
    if clock is None:
        texts = (i for i in text if len(table) and is_time(str(table.to_series(i)[0])))
        clock = next(texts, None)
    # No lead rises by equal steps throughout, whatever the name of its column.
    if clock is None and table.width > 1 and _counts(table.to_series(0).to_numpy()):
        clock = 0
    no_leads = {i for i, meaning in enumerate(meanings) if meaning in _NO_LEADS}
    skipped = no_leads | {clock, *text, *timed}
    columns = [i for i in range(table.width) if i not in skipped]
    if beats := [i for i in columns if _OF_BEATS.fullmatch(called[i].strip())]:
        meta.notices.append(f"no leads, left out: {', '.join(called[i] for i in beats):.100}")
        columns = [i for i in columns if i not in beats]
    if not columns:
        raise unreadable(f"{name} has no column of numbers that could be a lead")
    other = ", ".join(called[i] for i in text if i != clock and called[i])
    if other:
        meta.notices.append(f"columns that are no numbers were left out: {other:.100}")
    if clock is not None:
        times, given = table.to_series(clock).to_numpy(), options.rate
        _add_rate(meta, times, called[clock], units[clock], name=name, given=given)
    values = table[:, columns].to_numpy().T
    if names is not None and (len(columns) > 1 or meanings[columns[0]] != "value"):
        meta.leads = [split_unit(called[i])[0] for i in columns]
    elif names is None and len(columns) > 1:
        find_axes((len(columns), len(table)), None, options, name=name)  # enough samples to tell
    return values, [units[i] for i in columns]


def _from_long(
    table: pl.DataFrame, meta: FileMetadata, name: str, columns: Sequence[str], given: float | None
) -> NDArray[np.float64]:
    """(leads, samples) of a table with one row per lead and sample, NaN where there is none."""
    import polars as pl

    places = {meaning_of(one): i for i, one in reversed(list(enumerate(columns)))}
    lead = table.to_series(places["lead"]).cast(pl.String).fill_null("")
    value: NDArray[Any] = table.to_series(places["value"]).to_numpy()
    if value.dtype.kind not in "iuf":
        raise unreadable(f"{name} has text in its column {columns[places['value']]}")
    value = value.astype(np.float64)
    names = [str(one) for one in lead.unique(maintain_order=True)]
    codes = lead.replace_strict(names, list(range(len(names)))).to_numpy().astype(np.intp)
    if len(names) > _MAX_LEADS:
        raise UnusableError("exceeds limits", f"{name} has {len(names):,} leads")
    key = places.get("sample", places.get("time"))
    if key is None:
        if len(set(np.bincount(codes, minlength=len(names)).tolist())) > 1:
            text = "has leads of different lengths and no column of samples or times"
            raise unreadable(f"{name} {text}")
        values = value[np.argsort(codes, kind="stable")].reshape(len(names), -1)
    else:
        moments = _seconds_of(table.to_series(key).to_numpy())
        if not np.isfinite(moments).all():
            raise unreadable(f"{name} has neither a number nor a time in its column {columns[key]}")
        unique, at = np.unique(moments, return_inverse=True)
        size = len(names) * len(unique)
        if size > 4 * len(value) + 1_000_000:
            raise unreadable(f"{name} has few rows for each sample")
        check_size(8 * size, packed=8 * len(value), name=name)
        values = np.full((len(names), len(unique)), np.nan)
        values[codes, at] = value
        if key == places.get("time"):
            column, unit = split_unit(columns[key])
            unit = unit if table.dtypes[key].is_numeric() else "s"
            _add_rate(meta, unique, column, unit, name=name, given=given)
    held = split_unit(columns[places["value"]])
    unit = next((one for one in held if one and one.lower() in UNITS_PER_MV), None)
    meta.leads, meta.unit = names, meta.unit or unit
    return values


class _ParquetFile(base.OpenFile):
    """A Parquet file, as far as its footer tells."""

    def __init__(self, source: Source, path: str, options: ReadOptions) -> None:
        import polars as pl

        self._name, self._block = stem(path), (-1, pl.DataFrame())
        disk = source.on_disk(path)
        self._file: Any = source.read(path) if disk is None else disk
        self._schema = dict(pl.read_parquet_schema(self._readable()))
        self._facts = by_meaning(pl.read_parquet_metadata(self._readable()))
        self._rows = int(self._scan().select(pl.len()).collect().item())
        numbers = sum(1 for kind in self._schema.values() if kind.is_numeric())
        packed = source.size(path)
        check_size(8 * self._rows * numbers, packed=packed, name=self._name, most=1 << 50)
        plain = by_meaning({name: name for name, k in self._schema.items() if not k.is_nested()})
        # Columns that are no signal, by meaning.
        self._fields = {key: plain[key] for key in _FIELDS if key in plain}
        # The one that tells recordings apart, where each has several rows.
        self._key = self._fields.get("id") or self._fields.get("patient")
        self._lists = [
            name
            for name, kind in self._schema.items()
            if kind.is_nested() and _inner(kind).is_numeric() and meaning_of(name) not in _FIELDS
        ]

    def _readable(self) -> Any:
        return io.BytesIO(self._file) if isinstance(self._file, bytes) else self._file

    def _scan(self) -> pl.LazyFrame:
        import polars as pl

        return pl.scan_parquet(self._readable())

    def _column(self, name: str, *, unique: bool = False) -> list[Any]:
        import polars as pl

        wanted = pl.col(name).unique(maintain_order=True) if unique else pl.col(name)
        return self._scan().select(wanted).collect().to_series().to_list()

    @cached_property
    def names(self) -> list[str]:
        """Names of the recordings; one that is '' where there is only one."""
        ids = self._fields.get("id")
        if self._lists:
            names = [] if ids is None else [text_of(one) for one in self._column(ids)]
            if ids is None or len(set(names)) < len(names):
                names = [str(row) for row in range(self._rows)]
        elif self._key is None:
            return [""]
        else:
            names = [text_of(one) for one in self._column(self._key, unique=True)]
            if ids is None:  # patients' names are no names of recordings
                names = [str(number) for number in range(len(names))]
        return names if len(names) > 1 else [""]

    def parts(self, options: ReadOptions) -> list[Part]:
        """One per recording."""
        patients: list[Any] = [None] * len(self.names)
        if "patient" in self._fields and self._lists:
            patients = self._column(self._fields["patient"])
        pairs = zip(self.names, patients, strict=True)
        return [Part(one, None, text_of(patient) or None) for one, patient in pairs]

    def read(self, options: ReadOptions) -> Recording:
        """The recording of `part` in the options."""
        import polars as pl

        name, number = self._name, self.names.index(options.part)
        if self._lists:
            block = number // _TOGETHER
            if self._block[0] != block:
                self._block = block, self._scan().slice(block * _TOGETHER, _TOGETHER).collect()
            table = self._block[1][number % _TOGETHER]
        else:
            rows = self._scan()
            if self._key is not None:
                wanted = pl.lit(self._column(self._key, unique=True)[number])
                rows = rows.filter(pl.col(self._key).eq_missing(wanted))
            table = rows.collect()
        fields = {key: table[column][0] for key, column in self._fields.items() if len(table)}
        meta = metadata_from({**self._facts, **fields})
        if self._lists:
            values, units = self._from_lists(table, meta, options)
        else:
            table = table.drop(self._fields.values())
            values, units = from_table(
                table,
                meta,
                options,
                name=name,
                names=table.columns,
                units=[split_unit(one)[1] for one in table.columns],
            )
        unit = units[0] if len(set(units)) == 1 else None
        unit = unit if unit and unit.lower() in UNITS_PER_MV else None
        meta.patient, meta.unit = meta.patient or name, meta.unit or unit
        label = f"{name}_{options.part}" if options.part else name
        return recording_from(values, meta, options, name=label)

    def _from_lists(
        self, row: pl.DataFrame, meta: FileMetadata, options: ReadOptions
    ) -> tuple[NDArray[Any], list[str | None]]:
        """As `from_table`, of one row that holds a list per lead, or a list of lists."""
        import polars as pl

        lists = self._lists
        columns = [row[column].explode() for column in lists]
        uneven = unreadable(f"{self._name} has lists of different lengths")
        if len(columns) == 1 and columns[0].dtype.is_nested():  # a list of lists
            outer = columns[0]
            inner = outer.explode()
            if inner.dtype.is_nested() or not len(outer) or len(inner) % len(outer):
                raise uneven
            if isinstance(outer.dtype, pl.List) and outer.list.len().n_unique() > 1:
                raise uneven
            values = inner.to_numpy().reshape(len(outer), -1)
            axes = find_axes(values.shape, None, options, name=self._name)
            turned = axes.lead is not None and axes.lead > axes.sample
            meta.notices += filter(None, [axes.notice])
            return values.T if turned else values, []
        if len({len(one) for one in columns}) > 1:
            raise uneven
        leads, units = zip(*map(split_unit, lists), strict=True)
        if len(lists) > 1 or meaning_of(lists[0]) != "value":
            meta.leads = leads
        return np.stack([one.to_numpy() for one in columns]), [*units]


def _inner(kind: Any) -> Any:
    """The type of the numbers in lists, however deep."""
    for _ in range(4):
        kind = getattr(kind, "inner", None) or kind
    return kind


_IS_PARQUET = methodcaller("startswith", b"PAR1")
PARQUET = format_of_several("Parquet", (".parquet",), _ParquetFile, recognize=_IS_PARQUET)
