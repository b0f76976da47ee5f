"""Columns: what a map colours and filters by, as small numbers. Knows nothing about maps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from clocs.frames.frames import SEXES
from clocs.frames.splits import PARTS

MOST_LABELS = 31  # bits of a patient's mask; the last stands for all rarer ones
UNKNOWN_AGE = 255
OTHER = "other"


def label_names(rows: pl.DataFrame, first: Sequence[str]) -> tuple[str, ...]:
    """The labels that some patient has: `first` in their order, then others; rare ones as one."""
    counts = dict(rows["labels"].explode().drop_nulls().value_counts().iter_rows())
    known = [label for label in dict.fromkeys([*first, *sorted(counts)]) if counts.get(label)]
    if len(known) <= MOST_LABELS:
        return tuple(known)
    common = set(sorted(known, key=lambda label: -counts[label])[: MOST_LABELS - 1])
    return (*(label for label in known if label in common), OTHER)


def columns_of(
    rows: pl.DataFrame, labels: Sequence[str], datasets: Sequence[str]
) -> dict[str, NDArray[Any]]:
    """A value a patient: labels as bits, split, sex and dataset as codes, age in years."""
    bit = {label: 1 << i for i, label in enumerate(labels)}
    other = bit.get(OTHER, 0)
    # Most patients have one of a few sets of labels: look up sets, not patients.
    sets = rows["labels"].list.join("\0")
    mask_of = {
        text: sum({bit.get(label, other) for label in text.split("\0") if label})
        for text in sets.unique().to_list()
    }
    masks = sets.replace_strict(mask_of, return_dtype=pl.UInt32).to_numpy()
    age = rows["age"].fill_nan(None).clip(0, UNKNOWN_AGE - 1).round()
    return {
        "labels": np.asarray(masks, np.uint32),
        "split": _coded(rows["split"], {str(part): i for i, part in enumerate(PARTS)}, len(PARTS)),
        "sex": _coded(rows["sex"], {sex: i for i, sex in enumerate(SEXES)}, 0),
        "age": age.fill_null(UNKNOWN_AGE).cast(pl.UInt8).to_numpy(),
        "dataset": _coded(rows["dataset"], {name: i for i, name in enumerate(datasets)}, 0),
    }


def _coded(column: pl.Series, codes: Mapping[str, int], unknown: int) -> NDArray[np.uint8]:
    coded = column.replace_strict(codes, default=unknown, return_dtype=pl.UInt8)
    return coded.fill_null(unknown).to_numpy()
