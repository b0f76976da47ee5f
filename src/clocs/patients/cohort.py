"""Cohorts: groups of patients by ID, as files that researchers can read, write and pass on.

A file of a cohort is a CSV table with a column `patient` and, where several datasets are at hand,
`dataset`; or a text with one ID, or dataset:ID, per line. The explorer saves the former.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from clocs.errors import FileError, SettingError
from clocs.files import csv_text, csv_value, file_error
from clocs.limits import MAX_TABLE_BYTES
from clocs.store.store import Store

COLUMNS = ("dataset", "patient")


@dataclass(frozen=True)
class Cohort:
    """A group of patients.

    Attributes:
        name: Where it comes from, for messages.
        ids: 'ID' or 'dataset:ID' of each patient.
    """

    name: str
    ids: frozenset[str]

    def mask(self, rows: pl.DataFrame) -> NDArray[np.bool_]:
        """(rows,) whether the patient of each row, by `dataset` and `patient`, belongs to it."""
        named = pl.Series(list(self.ids), dtype=pl.String).implode()
        full = pl.concat_str(*COLUMNS, separator=":")
        found = rows.select((pl.col("patient").is_in(named) | full.is_in(named)).alias("in"))
        return np.asarray(found["in"].to_numpy(), np.bool_)

    def expect_known(self, rows: pl.DataFrame, where: str) -> None:
        """SettingError for patients that are not among these rows, or in two datasets of them."""
        found = rows.filter(self.mask(rows)).select(COLUMNS).unique()
        short = found.filter(pl.col("patient").is_in(list(self.ids)))
        if (twice := short.filter(pl.col("patient").is_duplicated()).sort(COLUMNS)).height:
            dataset, patient = twice.row(0)
            raise SettingError(
                f"{self.name} lists {patient!r}, which is an ID in {dataset!r} and in "
                f"{twice['dataset'][1]!r}; say which one, as {dataset}:{patient}"
            )
        full = found.select(pl.concat_str(*COLUMNS, separator=":"))
        known = {*found["patient"].to_list(), *full.to_series().to_list()}
        if unknown := sorted(self.ids - known):
            raise SettingError(
                f"{len(unknown)} of the {len(self.ids)} patients of {self.name} are not in {where},"
                f" such as {unknown[0]!r}; remove them from the list, or give what holds them"
            )


def as_cohort(given: Cohort | Path | str | Iterable[str]) -> Cohort:
    """A cohort, the file of one, or patients' IDs."""
    if isinstance(given, Cohort):
        return given
    if isinstance(given, Path | str):
        return read_cohort(Path(given))
    return _cohort("`cohort`", given)


def read_cohort(path: Path) -> Cohort:
    """The cohort of a file; see this module."""
    try:
        if path.stat().st_size > MAX_TABLE_BYTES:
            raise FileError(f"{path} is larger than a list of patients; give a smaller file")
        text = path.read_text("utf-8-sig")
    except OSError as error:
        raise file_error(error, path, doing="read") from error
    except UnicodeDecodeError:
        raise SettingError(
            f"{path} is not a text; give a CSV table with a column patient, or one ID per line"
        ) from None
    head = text.partition("\n")[0]
    separator = next((mark for mark in ",;\t" if mark in head), ",")
    names = [name.strip().lower() for name in next(csv.reader([head], delimiter=separator), [])]
    if "patient" in names:
        table = csv.reader(io.StringIO(text), delimiter=separator)
        next(table)
        return _cohort(str(path), _of_rows(names, table))
    if "code" in names:
        raise SettingError(
            f"{path} has the explorer's pseudonyms instead of IDs; save the group there, and give "
            "the file of the saved cohort"
        )
    if len(names) > 1:
        raise SettingError(
            f"{path} has the columns {', '.join(names[:5])} but none called patient; rename the "
            "column of patients' IDs"
        )
    return _cohort(str(path), text.splitlines())


def cohort_text(patients: Iterable[tuple[str, str]]) -> str:
    """The file of a cohort of (dataset, ID)s, sorted."""
    return csv_text(COLUMNS, sorted(set(patients)))


def of_cohort(
    cohort: Cohort | Path | str | Iterable[str] | None,
    stores: Sequence[Store],
    files: Sequence[object] = (),
) -> list[NDArray[np.bool_] | None]:
    """For each store, (recordings,) whether the patient is in the cohort; None without one."""
    if cohort is None:
        return [None] * len(stores)
    if files:
        raise SettingError("`cohort` chooses patients of stores; leave it out with files")
    chosen = as_cohort(cohort)
    tables = [
        store.table.select(pl.lit(store.manifest.dataset).alias("dataset"), "patient")
        for store in stores
    ]
    chosen.expect_known(pl.concat(tables), " and ".join(str(store.path) for store in stores))
    return [chosen.mask(table) for table in tables]


def _of_rows(names: list[str], table: Iterable[list[str]]) -> Iterable[str]:
    patient = names.index("patient")
    dataset = names.index("dataset") if "dataset" in names else None
    for row in table:
        if len(row) <= patient or not row[patient].strip():
            continue
        who = csv_value(row[patient].strip())
        of = row[dataset].strip() if dataset is not None and dataset < len(row) else ""
        yield f"{csv_value(of)}:{who}" if of else who


def _cohort(name: str, ids: Iterable[str]) -> Cohort:
    listed = frozenset(one.strip() for one in ids if one.strip())
    if not listed:
        raise SettingError(f"{name} lists no patient; give at least one ID")
    return Cohort(name, listed)
