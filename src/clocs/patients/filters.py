"""Where: which rows may be returned by a search: by label, age, sex, dataset or split."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray


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

    def mask(self, rows: pl.DataFrame) -> NDArray[np.bool_] | None:
        """(n,) which rows pass; None where nothing is asked."""
        asked = []
        if self.label is not None:
            asked.append(pl.col("labels").list.contains(self.label))
        if self.min_age is not None:
            asked.append(pl.col("age") >= self.min_age)
        if self.max_age is not None:
            asked.append(pl.col("age") <= self.max_age)
        for name in ("sex", "dataset", "split"):
            if (value := getattr(self, name)) is not None:
                asked.append(pl.col(name) == value)
        if not asked:
            return None
        passes = rows.select(pl.all_horizontal(asked).fill_null(value=False).alias("passes"))
        return np.asarray(passes["passes"].to_numpy(), np.bool_)
