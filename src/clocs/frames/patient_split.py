"""The patients of a store and their parts: by the hash of their IDs, or by official folds."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from clocs.errors import ClocsWarning, SettingError
from clocs.frames.folds import Folds, Split, chosen_folds
from clocs.frames.splits import assign
from clocs.store.store import Store


@dataclass(frozen=True)
class PatientSplit:
    """All patients of a store, in order of appearance, and their parts.

    Attributes:
        ids: Distinct patients.
        recording: (recordings of the store,) index into `ids`.
        part: (patients,) 0 train, 1 validation, 2 test.
        fold: The fold of each patient, '' where unknown; empty where the store has no folds.
        folds: Those that are tested and validated on; None where the hash decides.
    """

    ids: tuple[str, ...]
    recording: NDArray[np.int64]
    part: NDArray[np.int8]
    fold: tuple[str, ...]
    folds: Folds | None


def split_patients(store: Store, *, split: Split = None, split_seed: int = 0) -> PatientSplit:
    """Assign a store's patients to parts.

    Where nothing was asked for and the folds put recordings of one patient into two parts, the hash
    decides, with a warning.

    Raises:
        SettingError: The folds that were asked for are not there, or separate such recordings.
    """
    table, dataset = store.table, store.manifest.dataset
    people = table["patient"].unique(maintain_order=True)
    number = table["patient"].replace_strict(people, np.arange(len(people)), return_dtype=pl.Int64)
    recording, ids = number.to_numpy(), tuple(people.to_list())
    names = table["fold"].drop_nulls().unique().to_list()
    folds = chosen_folds(split, names, store=str(store.path))
    if folds is None and split is None and names:
        listed = ", ".join(sorted(names)[:10])
        warnings.warn(
            f"it is unclear which of the folds of {store.path} ({listed}) to test on, so "
            "patients are split by hash; `test_folds` names them",
            ClocsWarning,
            stacklevel=2,
        )
    fold = _first_folds(table, recording, len(ids)) if names else ()
    if folds is not None and (torn := _torn(table, recording, fold, folds)):
        place, other = torn[0]
        sentence = (
            f"{len({place for place, _ in torn})} patients of {store.path} have recordings in "
            f"folds of two parts, such as {ids[place]} in {fold[place]} and {other}, so the "
            "same person could be trained and tested on"
        )
        if split is not None:
            raise SettingError(f"{sentence}; split by 'hash' with `split`, or mend the folds")
        warnings.warn(f"{sentence}: patients are split by hash", ClocsWarning, stacklevel=2)
        folds = None
    if folds is None:
        part = assign(ids, dataset, split_seed)
    else:
        part = folds.parts([f"{dataset}:{name}" for name in ids], fold, split_seed)
    return PatientSplit(ids, recording, part, fold, folds)


def _first_folds(table: pl.DataFrame, recording: NDArray[np.int64], count: int) -> tuple[str, ...]:
    """The first fold of each patient, '' where there is none."""
    found = [""] * count
    for place, fold in zip(recording.tolist(), table["fold"], strict=True):
        found[place] = found[place] or fold or ""
    return tuple(found)


def _torn(
    table: pl.DataFrame, recording: NDArray[np.int64], fold: tuple[str, ...], folds: Folds
) -> list[tuple[int, str]]:
    """(patient, another fold) of recordings that are of another part than the patient's first."""

    def part(name: str) -> tuple[bool, bool]:
        return name in folds.test, name in folds.validation

    return [
        (place, own)
        for place, own in zip(recording.tolist(), table["fold"], strict=True)
        if own is not None and part(own) != part(fold[place])
    ]
