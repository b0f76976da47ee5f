"""Predictions: what each seed of a method said of every test row, and what was true.

All that paired tests, plots and reports need; one safetensors file. Knows nothing about encoders.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from clocs.errors import SettingError
from clocs.files import write_atomic

FORMAT = 1


@dataclass(frozen=True)
class Predictions:
    """Of the test part, by all seeds of one method.

    Attributes:
        method: How the encoders were learned.
        pretrain: On what; None where no data was seen.
        downstream: The dataset.
        content: Content hash of its store: rows of equal numbers are the same only where it agrees.
        protocol: How the encoders were asked.
        fraction: Of the training part that was labelled.
        by: What `fraction` counts.
        split_seed: Of the split.
        seeds: One a member.
        labels: Class names.
        multilabel: Whether a row can have several.
        probabilities: (members, rows, classes).
        targets: (rows, classes).
        thresholds: (members, classes) from which on to say yes, chosen on validation; nan where
            a class has none.
        patient: (rows,) number of the patient.
        recording: (rows,) number of the recording.
        frame: (rows,) number of the frame.
        lead: (rows,) number of the lead.
    """

    method: str
    pretrain: str | None
    downstream: str
    content: str
    protocol: str
    fraction: float
    by: str
    split_seed: int
    seeds: tuple[int, ...]
    labels: tuple[str, ...]
    multilabel: bool
    probabilities: NDArray[np.float64]
    targets: NDArray[np.uint8]
    thresholds: NDArray[np.float64]
    patient: NDArray[np.int32]
    recording: NDArray[np.int32]
    frame: NDArray[np.int64]
    lead: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def name(self) -> str:
        """The method and what it was trained on, for tables."""
        return self.method if self.pretrain is None else f"{self.method} ({self.pretrain})"

    def where(self, kept: NDArray[np.bool_]) -> Predictions:
        """Only those rows."""
        rows = {n: getattr(self, n)[kept] for n in ("targets", "patient", "recording", "frame")}
        return replace(
            self, probabilities=self.probabilities[:, kept], lead=self.lead[kept], **rows
        )

    def save(self, path: Path) -> None:
        """Write one safetensors file, whole or not at all."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        arrays = {k: v for k, v in values.items() if isinstance(v, np.ndarray)}
        facts = {k: v for k, v in values.items() if k not in arrays} | {"format": FORMAT}
        plain = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
        write_atomic(path, save(plain, {"clocs": json.dumps(facts)}))

    @classmethod
    def load(cls, path: Path) -> Predictions:
        """Read what `save` wrote."""
        try:
            with safe_open(path, framework="np") as file:
                facts = json.loads((file.metadata() or {})["clocs"])
                if facts.pop("format") != FORMAT:
                    raise SettingError(f"{path} holds predictions of another version of clocs")
                arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            facts |= {name: tuple(facts[name]) for name in ("seeds", "labels")}
            return cls(**facts, **arrays)
        except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
            raise SettingError(f"{path} holds no predictions of clocs ({error})") from error


def shared(many: list[Predictions]) -> list[Predictions]:
    """The same test rows of each: those that all of them have."""
    first = many[0]
    for other in many[1:]:
        for what in ("downstream", "content", "split_seed", "labels"):
            if getattr(other, what) != getattr(first, what):
                raise SettingError(
                    f"predictions can be compared on the same test rows only; {first.name} and "
                    f"{other.name} differ in {what}: {getattr(first, what)!r} and "
                    f"{getattr(other, what)!r}"
                )
    wide = 1 + max(int(p.lead.max(initial=0)) for p in many)
    keys = [p.frame * wide + p.lead for p in many]
    common = keys[0]
    for key in keys[1:]:
        common = np.intersect1d(common, key)
    return [p.where(np.isin(key, common)) for p, key in zip(many, keys, strict=True)]
