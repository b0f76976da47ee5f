"""Official folds as the split: which are tested and validated on, and what is usual; numpy only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from clocs.errors import SettingError
from clocs.frames.splits import TRAIN_BELOW, VALIDATION_BELOW, keys_of

_TEST = ("test", "testing")
_VALIDATION = ("validation", "valid", "val", "dev")
_TRAIN = ("train", "training")


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

    def facts(self) -> dict[str, list[str]]:
        """Plain values for JSON."""
        return {"test": list(self.test), "validation": list(self.validation)}

    def __str__(self) -> str:
        validation = (
            f"validation {', '.join(self.validation)}"
            if self.validation
            else ("validation by hash")
        )
        return f"folds: test {', '.join(self.test)}; {validation}"

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
        if split not in (None, "hash", "folds"):
            raise SettingError(f"`split` is 'hash' or 'folds', not {split!r:.50}")
        return split  # type: ignore[return-value]
    if split == "hash" or not test:
        raise SettingError(
            "`validation_folds` is for a split by folds; give `test_folds` with it"
            if not test
            else "`test_folds` is for a split by folds; leave out `split`"
        )
    return Folds(tuple(map(str, test)), tuple(map(str, validation or ())))
