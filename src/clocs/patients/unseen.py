"""Which recordings of a store may be used to judge encoders: of patients that none has seen."""

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
class Unseen:
    """Recordings to judge by.

    Attributes:
        only: (recordings of the store,) which.
        patients: How many patients they are of.
        seen: Patients of the part that were left out because an encoder has seen them.
        copies: Recordings left out because their very samples stand in the part before them.
    """

    only: NDArray[np.bool_]
    patients: int
    seen: int
    copies: int


def unseen(
    checkpoints: Sequence[Checkpoint], store: Store, *, split: str = "test", split_seed: int = 0
) -> Unseen:
    """Recordings of a part ('all' for all parts) of patients whom no encoder has seen.

    Raises:
        LeakError: There is none.
    """
    if split not in (*PARTS, "all"):
        raise SettingError(f"there is no part {split!r}; choose one of {', '.join(PARTS)} or all")
    table, dataset = store.table, store.manifest.dataset
    patients = table["patient"].to_list()
    digests = table["digest"].to_numpy().astype(np.uint64)
    only = np.ones(len(store), bool)
    if split != "all":
        parts = np.array(PARTS)[assign(patients, dataset, split_seed)]
        only = np.asarray(parts == split, np.bool_)
        if not only.any():
            raise SettingError(
                f"nobody of {dataset} is in the part {split!r}; judge by another part, or by a "
                "larger store"
            )
    met = np.zeros(len(store), bool)
    for checkpoint in checkpoints:
        met |= seen_by(checkpoint, dataset, patients, digests)
    # One known recording makes the whole patient known.
    known = table["patient"].is_in(table.filter(pl.Series(met))["patient"].implode()).to_numpy()
    seen = table.filter(pl.Series(only & known))["patient"].n_unique()
    only = only & ~known
    if not only.any():
        raise LeakError(
            f"the encoder has seen every patient of the part {split!r} of {dataset}; "
            "judge it by the test part of its own split seed, or by another dataset"
        )
    first = np.zeros(len(store), bool)
    rows = np.flatnonzero(only)
    first[rows[np.unique(digests[rows], return_index=True)[1]]] = True
    return Unseen(
        only=only & first,
        patients=table.filter(pl.Series(only & first))["patient"].n_unique(),
        seen=seen,
        copies=int((only & ~first).sum()),
    )
