"""Where: which rows may be returned by a search: by label, age, sex, dataset or split."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from clocs.errors import SettingError
from clocs.frames.splits import PARTS


@dataclass(frozen=True)
class Where:
    """All conditions that are given must hold; a row whose age or sex is unknown fails them.

    Attributes:
        label: Among the row's labels.
        min_age: In years, inclusive.
        max_age: In years, inclusive.
        sex: 'male' or 'female'.
        dataset: Its name.
        split: 'train', 'validation' or 'test'.
    """

    label: str | None = None
    min_age: float | None = None
    max_age: float | None = None
    sex: str | None = None
    dataset: str | None = None
    split: str | None = None

    def __post_init__(self) -> None:
        for name, choices in (("sex", ("male", "female")), ("split", PARTS)):
            if (value := getattr(self, name)) is not None and value not in choices:
                raise SettingError(f"the {name} is {value!r}; choose one of {', '.join(choices)}")
        for name, age in (("least", self.min_age), ("greatest", self.max_age)):
            if age is not None and math.isnan(age):
                raise SettingError(f"the {name} age is no number; give years")
        if self.min_age is not None and self.max_age is not None and self.min_age > self.max_age:
            raise SettingError(
                f"nobody is at least {self.min_age:g} and at most {self.max_age:g} years old; "
                "exchange the two"
            )

    def expect_known(self, rows: pl.DataFrame) -> None:
        """SettingError where no row has the label, or is of the dataset: a typing error."""
        for name, known in (("label", rows["labels"].explode()), ("dataset", rows["dataset"])):
            wanted = getattr(self, name)
            if wanted is not None and wanted not in known:
                there = ", ".join(known.drop_nulls().unique().sort().to_list())
                raise SettingError(
                    f"nobody here has the {name} {wanted!r}; choose one of {there or 'none'}"
                )

    def mask(self, rows: pl.DataFrame) -> NDArray[np.bool_] | None:
        """(n,) which rows pass; None where nothing is asked."""
        asked = []
        age = pl.col("age").fill_nan(None)  # not a number would pass for older than anybody
        if self.label is not None:
            asked.append(pl.col("labels").list.contains(self.label))
        if self.min_age is not None:
            asked.append(age >= self.min_age)
        if self.max_age is not None:
            asked.append(age <= self.max_age)
        for name in ("sex", "dataset", "split"):
            if (value := getattr(self, name)) is not None:
                asked.append(pl.col(name) == value)
        if not asked:
            return None
        passes = rows.select(pl.all_horizontal(asked).fill_null(value=False).alias("passes"))
        return np.asarray(passes["passes"].to_numpy(), np.bool_)
