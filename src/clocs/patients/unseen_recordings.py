"""Recordings of patients that no encoder has seen: those on which retrieval may be scored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from clocs.errors import LeakError, SettingError
from clocs.frames.splits import PARTS, assign
from clocs.store.store import Store
from clocs.training.checkpoint import Checkpoint
from clocs.training.leak_guard import seen_by


@dataclass(frozen=True)
class UnseenRecordings:
    """Recordings of a store to score encoders on.

    Attributes:
        only: (recordings of the store,) which.
        patients: Number of their patients.
        seen: Number of patients left out because an encoder has seen them.
        copies: Number of recordings left out because an earlier one has the same samples.
    """

    only: NDArray[np.bool_]
    patients: int
    seen: int
    copies: int


def unseen_recordings(
    checkpoints: Sequence[Checkpoint], store: Store, *, split: str = "test", split_seed: int = 0
) -> UnseenRecordings:
    """Recordings of a split (or 'all') of patients whom no encoder has seen.

    Raises:
        LeakError: There are none.
    """
    if split not in (*PARTS, "all"):
        raise SettingError(f"there is no split {split!r}; choose one of {', '.join(PARTS)} or all")
    table, dataset = store.table, store.manifest.dataset
    patients = table["patient"].to_list()
    digests = table["digest"].to_numpy().astype(np.uint64)
    only = np.ones(len(store), bool)
    if split != "all":
        parts = np.array(PARTS)[assign(patients, dataset, split_seed)]
        only = np.asarray(parts == split, np.bool_)
        if not only.any():
            raise SettingError(
                f"{dataset} has no patient in the split {split!r}; give another `split`, or a "
                "larger store"
            )
    trained_on = np.zeros(len(store), bool)
    for checkpoint in checkpoints:
        trained_on |= seen_by(checkpoint, dataset, patients, digests)
    # One seen recording makes its patient a seen one.
    seen_patients = table.filter(pl.Series(trained_on))["patient"].implode()
    known = table["patient"].is_in(seen_patients).to_numpy()
    seen = table.filter(pl.Series(only & known))["patient"].n_unique()
    only = only & ~known
    if not only.any():
        raise LeakError(
            f"the encoder has seen every patient in the split {split!r} of {dataset}; "
            "score it on the test split of its own split seed, or on another dataset"
        )
    first = np.zeros(len(store), bool)  # not a copy of an earlier recording
    rows = np.flatnonzero(only)
    first[rows[np.unique(digests[rows], return_index=True)[1]]] = True
    return UnseenRecordings(
        only=only & first,
        patients=table.filter(pl.Series(only & first))["patient"].n_unique(),
        seen=seen,
        copies=int((only & ~first).sum()),
    )
