"""Which patients: cohorts by ID, in files to read, write and pass on; and filters of a search.

A file of a cohort is a CSV table with a column `patient` and, where several datasets are at hand,
`dataset`; or a text with one ID, or dataset:ID, per line. The explorer saves the former.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from clocs.errors import FileError, SettingError, suggestion
from clocs.files import MAX_TABLE_BYTES, csv_text, csv_value, file_error
from clocs.frames.splits import PARTS
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
    table = csv.reader(io.StringIO(text), delimiter=separator)
    names = [name.strip().lower() for name in next(table, [])]
    if "patient" in names:
        rows = [dict(zip(names, map(str.strip, row), strict=False)) for row in table]
        ids = ([csv_value(row.get(name, "")) for name in COLUMNS] for row in rows)
        listed = (f"{of}:{who}" if of and who else who for of, who in ids)
        return _cohort(str(path), listed)
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
    cohort: Cohort | Path | str | Iterable[str] | None, stores: Sequence[Store]
) -> list[NDArray[np.bool_] | None]:
    """For each store, (recordings,) whether the patient is in the cohort; None without one."""
    if cohort is None:
        return [None] * len(stores)
    chosen = as_cohort(cohort)
    tables = [
        store.table.select(pl.lit(store.manifest.dataset).alias("dataset"), "patient")
        for store in stores
    ]
    chosen.expect_known(pl.concat(tables), " and ".join(str(store.path) for store in stores))
    return [chosen.mask(table) for table in tables]


def _cohort(name: str, ids: Iterable[str]) -> Cohort:
    listed = frozenset(one.strip() for one in ids if one.strip())
    if not listed:
        raise SettingError(f"{name} lists no patient; give at least one ID")
    return Cohort(name, listed)


@dataclass(frozen=True)
class Where:
    """Which rows a search may return: all given conditions hold; an unknown age or sex fails."""

    label: str | None = None  # one of the row's labels
    min_age: float | None = None  # years, inclusive
    max_age: float | None = None
    sex: str | None = None  # 'male' or 'female'
    dataset: str | None = None
    split: str | None = None  # 'train', 'validation' or 'test'
    cohort: Cohort | None = None  # only its patients

    def __post_init__(self) -> None:
        for name, choices in (("sex", ("male", "female")), ("split", PARTS)):
            if (value := getattr(self, name)) is not None and value not in choices:
                raise SettingError(f"the {name} is {value!r}; choose one of {', '.join(choices)}")
        for name, age in (("lowest", self.min_age), ("highest", self.max_age)):
            if age is not None and math.isnan(age):
                raise SettingError(f"the {name} age is not a number; give years")
        if self.min_age is not None and self.max_age is not None and self.min_age > self.max_age:
            raise SettingError(
                f"the lowest age {self.min_age:g} is above the highest age {self.max_age:g}; "
                "swap the two"
            )

    def expect_known(self, rows: pl.DataFrame) -> None:
        """SettingError for a label, dataset or patient that no row has, most likely a mistake."""
        for name, known in (("label", rows["labels"].explode()), ("dataset", rows["dataset"])):
            wanted = getattr(self, name)
            if wanted is not None and wanted not in known:
                choices = known.drop_nulls().unique().sort().to_list()
                raise SettingError(
                    f"no patient has the {name} {wanted!r}; {suggestion(wanted, choices)}"
                )
        if self.cohort is not None:
            self.cohort.expect_known(rows, "the index")

    def mask(self, rows: pl.DataFrame) -> NDArray[np.bool_] | None:
        """(n,) which rows pass; None where no condition is given."""
        conditions = []
        age = pl.col("age").fill_nan(None)  # NaN would compare as the highest age
        if self.label is not None:
            conditions.append(pl.col("labels").list.contains(self.label))
        if self.min_age is not None:
            conditions.append(age >= self.min_age)
        if self.max_age is not None:
            conditions.append(age <= self.max_age)
        for name in ("sex", "dataset", "split"):
            if (value := getattr(self, name)) is not None:
                conditions.append(pl.col(name) == value)
        if not conditions and self.cohort is None:
            return None
        all_of = pl.all_horizontal(pl.lit(value=True), *conditions)
        passes = rows.with_columns(all_of.fill_null(value=False).alias("passes"))
        mask = np.asarray(passes["passes"].to_numpy(), np.bool_)
        return mask if self.cohort is None else mask & self.cohort.mask(rows)
