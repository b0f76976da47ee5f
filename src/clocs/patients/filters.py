"""Filters: which rows a search may return, by label, age, sex, dataset or split."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from clocs.errors import SettingError
from clocs.frames.splits import PARTS
from clocs.patients.cohort import Cohort


@dataclass(frozen=True)
class Where:
    """All given conditions must hold; an unknown age or sex does not pass.

    Attributes:
        label: Return only those with this label.
        min_age: Lowest age in years; unknown ages do not pass.
        max_age: Highest age in years; unknown ages do not pass.
        sex: Return only this sex, male or female; unknown does not pass.
        dataset: Return only those of this dataset.
        split: Return only this part: 'train', 'validation' or 'test'.
        cohort: Return only its patients.
    """

    label: str | None = None
    min_age: float | None = None
    max_age: float | None = None
    sex: Literal["female", "male"] | None = None
    dataset: str | None = None
    split: str | None = None
    cohort: Cohort | None = None

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
                choices = ", ".join(known.drop_nulls().unique().sort().to_list())
                raise SettingError(
                    f"no patient has the {name} {wanted!r}; choose one of {choices or 'none'}"
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
