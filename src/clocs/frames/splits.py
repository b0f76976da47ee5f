"""Which part a patient belongs to, and which training rows are labeled; without polars.

By a stable hash of the patient, or by the official folds of a dataset. No random generator is used:
by hash, a patient's part depends on the patient alone, so adding or dropping recordings moves no
other patient, and every method sees the same labeled rows.

Published datasets hold some recordings twice, under two names. By hash, patients who share a
recording are one patient, under the first of their IDs. Official folds stay as published: there, a
recording is left out of training where a copy of it is validated or tested on, and out of
validation where one is tested on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clocs.errors import SettingError, warn

if TYPE_CHECKING:
    from clocs.store.store import Store

PARTS: tuple[Literal["train", "validation", "test"], ...] = ("train", "validation", "test")
# what of the validation part is labeled: the same share as of the training part, or all of it
ValidationLabels: TypeAlias = Literal["share", "all"]
LEFT_OUT = -1  # in place of a part: a copy of the recording is in a later one
TRAIN_BELOW, VALIDATION_BELOW = 0.6, 0.8

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_TEST = ("test", "testing")
_VALIDATION = ("validation", "valid", "val", "dev")
_TRAIN = ("train", "training")


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


@dataclass(frozen=True, slots=True)
class Folds:
    """The folds of an official split to test and to validate on; all others are trained on.

    Attributes:
        test: Names of folds.
        validation: Names of folds; where there is none, a quarter of the other patients is
            validated on, chosen by the hash of `splits`.
    """

    test: tuple[str, ...]
    validation: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("test", "validation"):  # they may come from a file
            values = getattr(self, name)
            if not isinstance(values, list | tuple) or not all(isinstance(v, str) for v in values):
                raise SettingError(f"the {name} folds must be names, not {values!r:.50}")
            object.__setattr__(self, name, tuple(values))
        if not self.test or set(self.test) & set(self.validation):
            raise SettingError(
                f"folds are tested on ({', '.join(self.test) or 'none'}) or validated on "
                f"({', '.join(self.validation) or 'none'}); give at least one to test on, and none "
                "for both"
            )

    def to_dict(self) -> dict[str, list[str]]:
        """Plain values for JSON."""
        return {"test": list(self.test), "validation": list(self.validation)}

    def __str__(self) -> str:
        validation = ", ".join(self.validation) or "by hash"
        return f"folds: test {', '.join(self.test)}; validation {validation}"

    def parts(self, keyed: Sequence[str], fold: Sequence[str], split_seed: int) -> NDArray[np.int8]:
        """(n,) 0 train, 1 validation, 2 test of patients, "dataset:patient", by their folds.

        A patient without a fold ('') is never tested on.
        """
        test, validation = np.isin(fold, self.test), np.isin(fold, self.validation)
        if not self.validation:
            u = keys_of(f"{split_seed}:{patient}" for patient in keyed) / 2.0**64
            validation = ~test & (u >= TRAIN_BELOW / VALIDATION_BELOW)
        return (2 * test.astype(np.int8) + validation.astype(np.int8)).astype(np.int8)


# By the hash of patients, by the usual folds of a store, or by these; None: by the usual folds
# where there are some.
Split: TypeAlias = Literal["hash", "folds"] | Folds | None


def usual_folds(names: Sequence[str]) -> Folds | None:
    """What folds of these names usually mean; None where it cannot be told.

    Names such as train, val and test mean what they say. Of numbers, the highest is tested and the
    next validated on, as the authors of PTB-XL recommend.
    """
    distinct = sorted(set(names))
    known = {name: name.strip().lower() for name in distinct}
    if distinct and all(k in (*_TEST, *_VALIDATION, *_TRAIN) for k in known.values()):
        test = tuple(name for name in distinct if known[name] in _TEST)
        validation = tuple(name for name in distinct if known[name] in _VALIDATION)
        return Folds(test, validation) if test else None
    try:
        ordered = sorted(distinct, key=int)
    except ValueError:
        return None
    if len(ordered) < 2:
        return None
    return Folds(tuple(ordered[-1:]), tuple(ordered[-2:-1]) if len(ordered) > 2 else ())


def chosen_folds(split: Split, names: Sequence[str], *, store: str) -> Folds | None:
    """The folds to split by; None for the hash.

    Args:
        split: What was asked for.
        names: Those that the store's recordings have.
        store: Its name, for messages.
    """
    if split == "hash" or (split is None and not names):
        return None
    listed = ", ".join(sorted(set(names), key=lambda name: (len(name), name)))
    if isinstance(split, Folds):
        absent = [name for name in (*split.test, *split.validation) if name not in names]
        if absent:
            raise SettingError(
                f"{store} has no fold {', '.join(absent)}; it has {listed or 'no folds'}"
            )
        return split
    if split not in (None, "folds"):
        raise SettingError(f"`split` is 'hash' or 'folds', not {split!r:.50}")
    if not names:
        raise SettingError(f"{store} has no folds; leave out `split` to split patients by hash")
    found = usual_folds(names)
    if found is None and split == "folds":
        raise SettingError(
            f"it is unclear which of the folds of {store} ({listed:.200}) to test on; name "
            "them with `test_folds` and `validation_folds`"
        )
    return found


def split_of(
    split: str | None, test: Sequence[str] | None, validation: Sequence[str] | None
) -> Split:
    """What `split`, `test_folds` and `validation_folds` ask for together."""
    if test is None and validation is None:
        return split  # type: ignore[return-value]  # `chosen_folds` checks it
    if split == "hash" or not test:
        raise SettingError(
            "`validation_folds` is for a split by folds; give `test_folds` with it"
            if not test
            else "`test_folds` is for a split by folds; leave out `split`"
        )
    return Folds(tuple(map(str, test)), tuple(map(str, validation or ())))


@dataclass(frozen=True)
class PatientSplit:
    """All patients of a store, in order of appearance, and their parts.

    Attributes:
        ids: Distinct patients; by hash, those who share a recording are one.
        recording: (recordings of the store,) index into `ids`.
        part: (patients,) 0 train, 1 validation, 2 test.
        recording_part: (recordings of the store,) the patient's part, or `LEFT_OUT`.
        fold: The fold of each patient, '' where unknown; empty where the store has no folds.
        folds: Those that are tested and validated on; None where the hash decides.
    """

    ids: tuple[str, ...]
    recording: NDArray[np.int64]
    part: NDArray[np.int8]
    recording_part: NDArray[np.int8]
    fold: tuple[str, ...]
    folds: Folds | None


def split_patients(store: Store, *, split: Split = None, split_seed: int = 0) -> PatientSplit:
    """Assign a store's patients to parts.

    Where nothing was asked for and the folds put recordings of one patient into two parts, the hash
    decides, with a warning.

    Raises:
        SettingError: The folds that were asked for are not there, or separate such recordings.
    """
    import polars as pl

    table, dataset = store.table, store.manifest.dataset
    people = table["patient"].unique(maintain_order=True)
    number = table["patient"].replace_strict(people, np.arange(len(people)), return_dtype=pl.Int64)
    recording, ids = number.to_numpy(), tuple(people.to_list())
    names = table["fold"].drop_nulls().unique().to_list()
    folds = chosen_folds(split, names, store=str(store.path))
    if folds is None and split is None and names:
        listed = ", ".join(sorted(names)[:10])
        warn(
            f"it is unclear which of the folds of {store.path} ({listed}) to test on, so "
            "patients are split by hash; `test_folds` names them"
        )
    every = zip(recording.tolist(), table["fold"], strict=True) if names else ()
    given = [(place, own) for place, own in every if own]
    first = dict(reversed(given))
    fold = tuple(first.get(place, "") for place in range(len(ids))) if names else ()
    torn = []
    if folds is not None:
        parts = {name: (name in folds.test, name in folds.validation) for name in names}
        torn = [(place, own) for place, own in given if parts[own] != parts[first[place]]]
    if torn:
        place, other = torn[0]
        sentence = (
            f"{len({place for place, _ in torn})} patients of {store.path} have recordings in "
            f"folds of two parts, such as {ids[place]} in {fold[place]} and {other}, so the "
            "same person could be trained and tested on"
        )
        if split is not None:
            raise SettingError(f"{sentence}; split by 'hash' with `split`, or mend the folds")
        warn(f"{sentence}: patients are split by hash")
        folds = None
    digests = table["digest"].to_numpy()
    if folds is None:
        person, owner = np.unique(one_person(ids, recording, digests), return_inverse=True)
        ids, recording = tuple(ids[i] for i in person), owner[recording]
        fold = tuple(fold[i] for i in person) if fold else ()
        part = assign(ids, dataset, split_seed)
    else:
        part = folds.parts([f"{dataset}:{name}" for name in ids], fold, split_seed)
    return PatientSplit(ids, recording, part, without_copies(part[recording], digests), fold, folds)


def one_person(
    ids: Sequence[str], recording: NDArray[np.int64], digests: NDArray[Any]
) -> NDArray[np.int64]:
    """(patients,) of each patient, the one of the first ID among those who share recordings.

    Args:
        ids: The patients.
        recording: (recordings,) index of the patient of each.
        digests: (recordings,) content key of each.
    """
    first = list(range(len(ids)))

    def person(i: int) -> int:
        while first[i] != i:
            i = first[i]
        return i

    order = np.argsort(digests, kind="stable")
    same = np.flatnonzero(digests[order[1:]] == digests[order[:-1]])
    for pair in zip(
        recording[order[same]].tolist(), recording[order[same + 1]].tolist(), strict=True
    ):
        one, other = sorted(map(person, pair), key=lambda i: ids[i])
        first[other] = one
    return np.array([person(i) for i in range(len(ids))], np.int64)


def without_copies(part: NDArray[np.int8], digests: NDArray[Any]) -> NDArray[np.int8]:
    """part: (recordings,) -> the same, `LEFT_OUT` where a copy is in a later part."""
    made = part.copy()
    for later in range(1, len(PARTS)):
        made[(part < later) & np.isin(digests, digests[part == later])] = LEFT_OUT
    return made
