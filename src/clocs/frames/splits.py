"""Which part a patient belongs to, and which training rows are labeled: stable hashes, numpy only.

No random generator is used: a patient's part depends on the patient alone, so adding or dropping
recordings moves no other patient, and every method sees the same labeled rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clocs.errors import SettingError

PARTS: tuple[Literal["train", "validation", "test"], ...] = ("train", "validation", "test")
TRAIN_BELOW, VALIDATION_BELOW = 0.6, 0.8

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def keys_of(texts: Iterable[str]) -> NDArray[np.uint64]:
    """(n,) the first 8 bytes, big-endian, of the sha256 of each text."""
    first = b"".join(hashlib.sha256(text.encode()).digest()[:8] for text in texts)
    return np.frombuffer(first, dtype=">u8").astype(np.uint64)


def assign(patients: Sequence[str], dataset: str, split_seed: int = 0) -> NDArray[np.int8]:
    """(n,) the part of each patient: 0 train, 1 validation, 2 test.

    u = first 8 bytes, big-endian, of sha256("{split_seed}:{dataset}:{patient}") / 2**64; train
    where u < 0.6, validation where u < 0.8, test otherwise. numpy rounds a uint64 to the nearest
    float64 and the division by a power of two is exact, so u is the same float as Python's own
    `int / 2**64`.
    """
    return parts_of([f"{dataset}:{patient}" for patient in patients], split_seed)


def parts_of(keyed_patients: Iterable[str], split_seed: int) -> NDArray[np.int8]:
    """(n,) the part of each patient, given as "dataset:patient"; see `assign`."""
    u = keys_of(f"{split_seed}:{patient}" for patient in keyed_patients) / 2.0**64
    return (u >= TRAIN_BELOW).astype(np.int8) + (u >= VALIDATION_BELOW).astype(np.int8)


def row_keys(
    recordings: NDArray[np.uint64], segments: ArrayLike, leads: NDArray[np.uint64]
) -> NDArray[np.uint64]:
    """(n,) one key per row, from its recording (`keys_of` ids), segment and lead (`keys_of` names).

    The arguments broadcast. Keys depend on names, never on positions, so a row keeps its key in
    any order, subset or choice of leads.
    """
    segment = np.asarray(segments, dtype=np.uint64)
    mixed: NDArray[np.uint64] = _mix(_mix(_mix(recordings) ^ segment) ^ leads)
    return mixed


def labeled_subset(
    keys: NDArray[np.uint64],
    *,
    dataset: str,
    split_seed: int,
    seed: int,
    fraction: float,
    by: Literal["frame", "patient", "recording"],
) -> NDArray[np.bool_]:
    """(n,) which training rows are labeled.

    The distinct keys are put into an order that depends on (dataset, split seed, seed, by) alone;
    the first round(fraction × their number), at least one, are labeled, with all their rows. So
    the subset for a smaller fraction is contained in that for a larger one, the count is exact, and
    it does not depend on method, lead order or batch size.

    Args:
        keys: One per training row: `row_keys` where `by` is "frame", the `keys_of` its patient or
            recording otherwise (then all rows of a chosen one are labeled).
        dataset: Its name.
        split_seed: Random seed of the patient split.
        seed: Random seed of the training.
        fraction: In (0, 1], of the units that `by` names.
        by: The unit.
    """
    if not 0.0 < fraction <= 1.0:
        raise SettingError(f"`fraction` must be above 0 and at most 1, not {fraction}")
    if by not in ("frame", "patient", "recording"):
        raise SettingError(f"`by` must be 'frame', 'patient' or 'recording', not {by!r}")
    units, unit_of_row = np.unique(np.asarray(keys, dtype=np.uint64), return_inverse=True)
    if units.size == 0:
        return np.zeros(0, dtype=np.bool_)
    salt = keys_of([f"{split_seed}:{dataset}:labelled:{seed}:{by}"])
    # The mixing is a bijection, so distinct keys cannot tie.
    order = np.argsort(_mix(units ^ salt))
    chosen = np.zeros(units.size, dtype=np.bool_)
    chosen[order[: max(1, round(fraction * units.size))]] = True
    return chosen[unit_of_row]


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's finalizer: a bijection of 64-bit words that mixes all bits."""
    x = x + _GOLDEN
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
