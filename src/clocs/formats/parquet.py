"""ECGs in Parquet files: a column per lead, a row per recording with lists, or a long table.

Several recordings of one file are told apart by a column of ids, or are one row each.
"""

from __future__ import annotations

import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clocs.errors import UnusableError
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
_TOGETHER = 64  # rows that are read at a time, since neighbours are wanted next


@dataclass(frozen=True)
class _Table:
    """A file, as far as its footer tells.

    Attributes:
        file: Its path, or its bytes.
        key: What changes when the file does.
        schema: Types of columns by name.
        rows: How many there are.
        facts: Of the file as a whole, by meaning.
    """

    file: Any
    key: tuple[Any, ...]
    schema: Mapping[str, Any]
    rows: int
    facts: Mapping[str, Any]

    def scan(self) -> pl.LazyFrame:
        import polars as pl

        return pl.scan_parquet(io.BytesIO(self.file) if isinstance(self.file, bytes) else self.file)

    def by_meaning(self) -> dict[str, str]:
        """Columns that are no signal, by meaning."""
        plain = {name: name for name, kind in self.schema.items() if not kind.is_nested()}
        found = by_meaning(plain)
        return {key: name for key, name in found.items() if key in (*_FIELDS, "time", "sample")}

    def lists(self) -> list[str]:
        return [
            name
            for name, kind in self.schema.items()
            if kind.is_nested() and _inner(kind).is_numeric() and meaning_of(name) not in _FIELDS
        ]

    def is_long(self) -> bool:
        return {"lead", "value"} <= {meaning_of(name) for name in self.schema} and not self.lists()

    def ids(self) -> list[str]:
        """Names of the recordings; one that is '' where there is only one."""
        import polars as pl

        named = self.by_meaning()
        column = named.get("id")
        if self.lists():
            if column is None:
                names = [str(row) for row in range(self.rows)]
            else:
                held = self.scan().select(column).collect().to_series()
                names = [text_of(one) for one in held.to_list()]
                if len(set(names)) < len(names):
                    names = [str(row) for row in range(self.rows)]
        else:
            key = column or named.get("patient")
            if key is None:
                return [""]
            unique = self.scan().select(pl.col(key).unique(maintain_order=True))
            names = [text_of(one) for one in unique.collect().to_series().to_list()]
            if column is None:  # patients' names are no names of recordings
                names = [str(number) for number in range(len(names))]
        return names if len(names) > 1 else [""]


def _inner(kind: Any) -> Any:
    """The type of the numbers in lists, however deep."""
    for _ in range(4):
        kind = getattr(kind, "inner", None) or kind
    return kind


def _open(source: Source, path: str) -> _Table:
    import polars as pl

    disk = source.on_disk(path)
    file: Any = disk if disk is not None else source.read(path)
    readable: Any = io.BytesIO(file) if disk is None else disk
    schema = pl.read_parquet_schema(readable)
    facts = pl.read_parquet_metadata(io.BytesIO(file) if disk is None else disk)
    key: tuple[Any, ...] = (os.getpid(), source, path)
    if disk is not None:
        state = os.stat(disk)  # noqa: PTH116
        key = (os.getpid(), disk, state.st_mtime_ns, state.st_size)
    table = _Table(file, key, dict(schema), 0, by_meaning(facts))
    rows = int(table.scan().select(pl.len()).collect().item())
    numbers = sum(1 for kind in schema.values() if kind.is_numeric())
    packed = source.size(path)
    check_size(8 * rows * numbers, packed=packed, name=stem(path), most=1 << 50)
    return _Table(file, key, dict(schema), rows, by_meaning(facts))


def _read(source: Source, path: str, options: ReadOptions) -> Recording:
    import polars as pl

    name = stem(path)
    try:
        with decoding(name, "Parquet"):
            table = _open(source, path)
            names = _LAST.names(table)
            if options.part not in names:
                known = ", ".join(map(repr, names[:5]))
                detail = f"{name} has no recording {options.part!r}; it has {known} …"
                raise UnusableError("unreadable", detail)
            values, said = _values(table, names.index(options.part), options, name)
            if said.patient is None:
                said = replace(said, patient=name)
            label = f"{name}_{options.part}" if options.part else name
            rate = said.rate if said.rate is not None else options.rate
            kept = slice(None)
            if rate is not None:
                kept = stretch(options, rate=rate, samples=values.shape[1], name=label)
            return recording_from(values[:, kept], said, options, name=label, sample=values)
    except pl.exceptions.PanicException as error:
        text = " ".join(str(error).split())[:100]
        raise UnusableError("unreadable", f"{name} is damaged: {text}") from None


class _Last:
    """What was read last of a file of several recordings, since its next ones are wanted next."""

    def __init__(self) -> None:
        self._key: tuple[Any, ...] | None = None
        self._names: list[str] = []
        self._blocks: dict[int, pl.DataFrame] = {}

    def names(self, table: _Table) -> list[str]:
        if self._key != table.key:
            self._key, self._names, self._blocks = table.key, table.ids(), {}
        return self._names

    def row(self, table: _Table, number: int) -> pl.DataFrame:
        """One row of a file that has one per recording."""
        self.names(table)
        block = number // _TOGETHER
        if block not in self._blocks:
            rows = table.scan().slice(block * _TOGETHER, _TOGETHER).collect()
            self._blocks = {block: rows}
        return self._blocks[block][number % _TOGETHER]


_LAST = _Last()


def _values(
    table: _Table, number: int, options: ReadOptions, name: str
) -> tuple[NDArray[Any], FileMetadata]:
    """(leads, samples) of a recording, and what the file says about it."""
    import polars as pl

    named = table.by_meaning()
    if table.lists():
        row = _LAST.row(table, number)
        fields = {key: row[column][0] for key, column in named.items()}
        said = metadata_from({**table.facts, **fields})
        return _from_lists(row, table.lists(), said, options, name)
    frame = table.scan()
    column = named.get("id") or named.get("patient")
    if column is not None:
        wanted = frame.select(pl.col(column).unique(maintain_order=True)).collect()
        frame = frame.filter(pl.col(column).eq_missing(wanted.to_series()[number]))
    held = frame.collect()
    fields = {key: held[column][0] for key, column in named.items() if len(held)}
    said = metadata_from({**table.facts, **fields})
    if table.is_long():
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
    import polars as pl

    name = stem(path)
    try:
        with decoding(name, "Parquet"):
            table = _open(source, path)
            names = _LAST.names(table)
            patients: list[Any] = [None] * len(names)
            column = table.by_meaning().get("patient")
            if column is not None and table.lists():
                patients = table.scan().select(column).collect().to_series().to_list()
            return [
                Part(one, None, text_of(patient) or None)
                for one, patient in zip(names, patients, strict=True)
            ]
    except pl.exceptions.PanicException as error:
        text = " ".join(str(error).split())[:100]
        raise UnusableError("unreadable", f"{name} is damaged: {text}") from None


def _recognize(head: bytes) -> bool:
    return head.startswith(b"PAR1")


PARQUET = FileFormat("Parquet", ".parquet", _read, recognize=_recognize, parts=_parts)
