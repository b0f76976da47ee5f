"""ECGs in Parquet files: a column per lead, a row per recording with lists, or a long table.

Several recordings of one file are told apart by a column of ids, or are one row each.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clocs.errors import UnusableError
from clocs.formats.array_files import identity
from clocs.formats.arrays import (
    by_meaning,
    find_axes,
    meaning_of,
    metadata_from,
    recording_from,
    split_unit,
    text_of,
)
from clocs.formats.base import FileFormat, FileMetadata, Part, ReadOptions, decoding, stretch
from clocs.formats.source import Source, stem
from clocs.formats.tables import from_long, from_wide
from clocs.limits import check_size
from clocs.recording import UNITS_PER_MV, Recording

if TYPE_CHECKING:
    import polars as pl

_FIELDS = ("rate", "unit", "patient", "id", "labels", "age", "sex", "recorded_at")
_TOGETHER = 64  # rows that are read at a time, since neighbors are wanted next


class _Table:
    """A file, as far as its footer tells."""

    def __init__(self, source: Source, path: str, key: tuple[Any, ...]) -> None:
        import polars as pl

        self.key, self._block = key, (-1, pl.DataFrame())
        disk = source.on_disk(path)
        self._file: Any = source.read(path) if disk is None else disk
        self.schema = dict(pl.read_parquet_schema(self._readable()))
        self.facts = by_meaning(pl.read_parquet_metadata(self._readable()))
        self.rows = int(self.scan().select(pl.len()).collect().item())
        numbers = sum(1 for kind in self.schema.values() if kind.is_numeric())
        packed = source.size(path)
        check_size(8 * self.rows * numbers, packed=packed, name=stem(path), most=1 << 50)
        plain = by_meaning({name: name for name, k in self.schema.items() if not k.is_nested()})
        # Columns that are no signal, by meaning.
        self.fields = {key: plain[key] for key in (*_FIELDS, "time", "sample") if key in plain}
        self.lists = [
            name
            for name, kind in self.schema.items()
            if kind.is_nested() and _inner(kind).is_numeric() and meaning_of(name) not in _FIELDS
        ]
        meanings = {meaning_of(name) for name in self.schema}
        self.is_long = {"lead", "value"} <= meanings and not self.lists

    def _readable(self) -> Any:
        return io.BytesIO(self._file) if isinstance(self._file, bytes) else self._file

    def scan(self) -> pl.LazyFrame:
        import polars as pl

        return pl.scan_parquet(self._readable())

    def column(self, name: str, *, unique: bool = False) -> list[Any]:
        import polars as pl

        wanted = pl.col(name).unique(maintain_order=True) if unique else pl.col(name)
        return self.scan().select(wanted).collect().to_series().to_list()

    @cached_property
    def names(self) -> list[str]:
        """Names of the recordings; one that is '' where there is only one."""
        ids, key = self.fields.get("id"), self.fields.get("id") or self.fields.get("patient")
        if self.lists:
            names = [] if ids is None else [text_of(one) for one in self.column(ids)]
            if ids is None or len(set(names)) < len(names):
                names = [str(row) for row in range(self.rows)]
        elif key is None:
            return [""]
        else:
            names = [text_of(one) for one in self.column(key, unique=True)]
            if ids is None:  # patients' names are no names of recordings
                names = [str(number) for number in range(len(names))]
        return names if len(names) > 1 else [""]

    def row(self, number: int) -> pl.DataFrame:
        """One row of a file that has one per recording."""
        block = number // _TOGETHER
        if self._block[0] != block:
            rows = self.scan().slice(block * _TOGETHER, _TOGETHER).collect()
            self._block = block, rows
        return self._block[1][number % _TOGETHER]


def _inner(kind: Any) -> Any:
    """The type of the numbers in lists, however deep."""
    for _ in range(4):
        kind = getattr(kind, "inner", None) or kind
    return kind


_LAST: list[_Table] = []  # the file that was read last: its next recordings are wanted next


@contextmanager
def _opened(source: Source, path: str) -> Iterator[_Table]:
    import polars as pl

    key = (os.getpid(), *identity(source, path))
    try:
        with decoding(stem(path), "Parquet"):
            if not _LAST or _LAST[0].key != key:
                _LAST[:] = [_Table(source, path, key)]
            yield _LAST[0]
    except pl.exceptions.PanicException as error:
        text = " ".join(str(error).split())[:100]
        raise UnusableError("unreadable", f"{stem(path)} is damaged: {text}") from None


def _read(source: Source, path: str, options: ReadOptions) -> Recording:
    name = stem(path)
    with _opened(source, path) as table:
        if options.part not in table.names:
            known = ", ".join(map(repr, table.names[:5]))
            detail = f"{name} has no recording {options.part!r}; it has {known} …"
            raise UnusableError("unreadable", detail)
        values, said = _values(table, table.names.index(options.part), options, name)
        said = replace(said, patient=said.patient or name)
        label = f"{name}_{options.part}" if options.part else name
        rate = said.rate if said.rate is not None else options.rate
        kept = slice(None)
        if rate is not None:
            kept = stretch(options, rate=rate, samples=values.shape[1], name=label)
        return recording_from(values[:, kept], said, options, name=label, sample=values)


def _values(
    table: _Table, number: int, options: ReadOptions, name: str
) -> tuple[NDArray[Any], FileMetadata]:
    """(leads, samples) of a recording, and what the file says about it."""
    import polars as pl

    named = table.fields
    if table.lists:
        row = table.row(number)
        fields = {key: row[column][0] for key, column in named.items()}
        said = metadata_from({**table.facts, **fields})
        return _from_lists(row, table.lists, said, options, name)
    frame = table.scan()
    column = named.get("id") or named.get("patient")
    if column is not None:
        wanted = table.column(column, unique=True)[number]
        frame = frame.filter(pl.col(column).eq_missing(pl.lit(wanted)))
    held = frame.collect()
    fields = {key: held[column][0] for key, column in named.items() if len(held)}
    said = metadata_from({**table.facts, **fields})
    if table.is_long:
        return from_long(held, said, name=name, columns=held.columns, given=options.rate)
    columns = held.columns
    odd = {one for one in columns if not held[one].dtype.is_numeric()} - {*named.values()}
    values, said, units = from_wide(
        held,
        said,
        options,
        name=name,
        names=columns,
        units=[split_unit(one)[1] for one in columns],
        text=[i for i, one in enumerate(columns) if one in odd],
    )
    return values, replace(said, unit=said.unit or _common_unit(units))


def _from_lists(
    row: pl.DataFrame, lists: Sequence[str], said: FileMetadata, options: ReadOptions, name: str
) -> tuple[NDArray[Any], FileMetadata]:
    import polars as pl

    columns = [row[column].explode() for column in lists]
    if len(columns) == 1 and columns[0].dtype.is_nested():  # a list of lists
        outer = columns[0]
        inner = outer.explode()
        if inner.dtype.is_nested() or not len(outer) or len(inner) % len(outer):
            raise UnusableError("unreadable", f"{name} has lists of different lengths")
        if isinstance(outer.dtype, pl.List) and outer.list.len().n_unique() > 1:
            raise UnusableError("unreadable", f"{name} has lists of different lengths")
        values = inner.to_numpy().reshape(len(outer), -1)
        axes = find_axes(values.shape, None, options, name=name)
        turned = axes.lead is not None and axes.lead > axes.sample
        notices = (*said.notices, axes.notice) if axes.notice else said.notices
        return values.T if turned else values, replace(said, notices=notices)
    if len({len(one) for one in columns}) > 1:
        raise UnusableError("unreadable", f"{name} has leads of different lengths")
    pairs = [split_unit(one) for one in lists]
    leads: list[str] | None = [lead for lead, _ in pairs]
    unit = said.unit or _common_unit([unit for _, unit in pairs])
    if len(lists) == 1 and meaning_of(lists[0]) == "value":
        leads = None
    return np.stack([one.to_numpy() for one in columns]), replace(said, leads=leads, unit=unit)


def _common_unit(units: Sequence[str | None]) -> str | None:
    unit = units[0] if len(set(units)) == 1 else None
    return unit if unit and unit.lower() in UNITS_PER_MV else None


def _parts(source: Source, path: str, options: ReadOptions) -> list[Part]:
    with _opened(source, path) as table:
        patients: list[Any] = [None] * len(table.names)
        if "patient" in table.fields and table.lists:
            patients = table.column(table.fields["patient"])
        return [
            Part(one, None, text_of(patient) or None)
            for one, patient in zip(table.names, patients, strict=True)
        ]


def _recognize(head: bytes) -> bool:
    return head.startswith(b"PAR1")


PARQUET = FileFormat("Parquet", ".parquet", _read, recognize=_recognize, parts=_parts)
