"""Frames of several datasets as one, to learn from all of them at once.

Patients keep their own dataset's split; one who is in two stores of the same dataset stays one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clocs.errors import SettingError
from clocs.frames.folds import Folds
from clocs.frames.frames import ABSENT, SEVERAL, Frames
from clocs.frames.signal_memory import allocate_signals, memory_for_signals


def join(
    parts: Sequence[Frames], *, beside: Path | None = None, memory: int | None = None
) -> Frames:
    """One Frames of all parts, in their order; a single part is returned as it is.

    Labels are kept where all parts have the same classes, else nothing is labeled. `beside` and
    `memory` are as for `allocate_signals`, but by default only half as many bytes stay in memory,
    as the parts are there too.
    """
    first = parts[0]
    if len(parts) == 1:
        return first
    for part in parts[1:]:
        for what in ("spec", "leads", "split_seed"):
            if getattr(part, what) != getattr(first, what):
                raise SettingError(
                    f"{first.dataset} and {part.dataset} differ in their {what.replace('_', ' ')} "
                    f"({getattr(first, what)} and {getattr(part, what)}); only frames of one "
                    "kind can be learned from together"
                )
    patients = [name for part in parts for name in part.keyed(part.patient_ids)]
    distinct = tuple(dict.fromkeys(patients))
    number = {name: i for i, name in enumerate(distinct)}
    place = np.array([number[name] for name in patients], np.int32)
    same_labels = all((p.labels, p.multilabel) == (first.labels, first.multilabel) for p in parts)
    signals = allocate_signals(
        sum(len(part.signals) for part in parts),
        beside=beside,
        memory=memory_for_signals() // 2 if memory is None else memory,
    )
    names = ("digests", "age", "sex", "day", "scale", "segment", "split")
    targets = [part.target if same_labels else part.target[:, :0] for part in parts]
    arrays: dict[str, Any] = {
        name: np.concatenate([getattr(part, name) for part in parts]) for name in names
    }
    return replace(
        first,
        dataset=SEVERAL.join(dict.fromkeys(part.dataset for part in parts)),
        content=hashlib.sha256(" ".join(part.content for part in parts).encode()).hexdigest(),
        labels=first.labels if same_labels else (),
        unit=first.unit if len({part.unit for part in parts}) == 1 else "mixed",
        patient_ids=distinct,
        recording_ids=tuple(n for part in parts for n in part.keyed(part.recording_ids)),
        signals=np.concatenate([part.signals for part in parts], out=signals),
        starts=_starts(parts),
        recording=_shifted(parts, "recording", [len(part.recording_ids) for part in parts]),
        patient=place[_shifted(parts, "patient", [len(part.patient_ids) for part in parts])],
        target=np.concatenate(targets),
        joined=True,
        without_signal=sum(part.without_signal for part in parts),
        fold=_folds_of(patients, distinct, parts),
        folds=_joined_folds(parts),
        **arrays,
    )


def _folds_of(
    patients: Sequence[str], distinct: Sequence[str], parts: Sequence[Frames]
) -> tuple[str, ...]:
    """The fold of each distinct patient; empty where nobody has one."""
    folds = [fold for part in parts for fold in part.fold or [""] * len(part.patient_ids)]
    known = dict(reversed([pair for pair in zip(patients, folds, strict=True) if pair[1]]))
    return tuple(known.get(name, "") for name in distinct) if known else ()


def _joined_folds(parts: Sequence[Frames]) -> dict[str, Folds]:
    found: dict[str, Folds | None] = {}
    for part in parts:
        for name in part.dataset.split(SEVERAL):
            own = part.folds.get(name)
            if found.setdefault(name, own) != own:
                raise SettingError(
                    f"two stores of {name} are split in two ways ({found[name]} and {own}); split "
                    "both by 'hash' with `split`"
                )
    return {name: folds for name, folds in found.items() if folds is not None}


def _starts(parts: Sequence[Frames]) -> NDArray[np.int64]:
    shifted = _shifted(parts, "starts", [len(part.signals) for part in parts])
    absent = np.concatenate([~part.present for part in parts])
    return np.where(absent, ABSENT, shifted)


def _shifted(parts: Sequence[Frames], name: str, sizes: list[int]) -> NDArray[Any]:
    """Indices into arrays that are joined as well."""
    before = np.cumsum([0, *sizes[:-1]])
    shifted = [
        getattr(part, name) + shift.astype(getattr(part, name).dtype)
        for part, shift in zip(parts, before, strict=True)
    ]
    return np.concatenate(shifted)
