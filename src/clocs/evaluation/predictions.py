"""Predictions: the probabilities from each seed of a method for every test row, and the targets.

One safetensors file holds all that paired tests, figures and reports need. Rows are identified by
recording, frame and lead, so that they can be joined with the table of the store.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clocs.errors import SettingError
from clocs.frames.splits import keys_of, row_keys
from clocs.sealed import ArrayFile

FILE = ArrayFile(
    "a file of predictions", key="clocs", format=3, remedy="evaluate again to write it anew"
)


@dataclass(frozen=True)
class Predictions:
    """Predictions for the test part by all seeds of one method.

    A class is predicted where its probability reaches its threshold, chosen on validation.
    """

    method: str
    pretrain: str | None  # the dataset the encoders were trained on; None where they saw no data
    downstream: str  # the dataset of these rows
    content: str  # content hash of its store
    protocol: str
    fraction: float  # the labeled fraction of the training part
    by: str  # what `fraction` counts
    split_seed: int  # of the patient split
    seeds: tuple[int, ...]  # one per member
    labels: tuple[str, ...]
    multilabel: bool  # whether a row can have several classes
    probabilities: NDArray[np.float64]  # (members, rows, classes)
    targets: NDArray[np.uint8]  # (rows, classes)
    thresholds: NDArray[np.float64]  # (members, classes); nan where a class has none
    patient_ids: tuple[str, ...]  # test patients, as the store names them
    recording_ids: tuple[str, ...]  # test recordings, as the store names them
    leads: tuple[str, ...]
    patient: NDArray[np.int64]  # (rows,) index into `patient_ids`
    recording: NDArray[np.int64]  # (rows,) index into `recording_ids`
    frame: NDArray[np.int32]  # (rows,) number of the frame within the recording, from 0
    lead: NDArray[np.int64]  # (rows,) index into `leads`
    # what a row is: 'row', a frame of a lead (or of `ALL_LEADS` at once), or 'recording'
    per: str = "row"

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def name(self) -> str:
        """The method and the dataset it was trained on, for tables."""
        return self.method if self.pretrain is None else f"{self.method} ({self.pretrain})"

    def where(self, kept: NDArray[np.bool_]) -> Predictions:
        """Only those rows."""
        names = ("targets", "patient", "recording", "frame", "lead")
        rows = {name: getattr(self, name)[kept] for name in names}
        return replace(self, probabilities=self.probabilities[:, kept], **rows)

    def columns(self) -> dict[str, NDArray[Any]]:
        """One row per frame and lead, or per recording, for a data frame.

        `recording`, `patient` and `lead` are names, `frame` counts from 0; one more column per
        class holds its probability, the mean over the seeds. A row of a whole recording has frame 0
        and, as one of a frame in all leads, the lead 'all'.
        """
        return {
            "recording": np.array(self.recording_ids)[self.recording],
            "patient": np.array(self.patient_ids)[self.patient],
            "frame": self.frame,
            "lead": np.array(self.leads)[self.lead],
        } | dict(zip(self.labels, self.probabilities.mean(axis=0).T, strict=True))

    def save(self, path: Path) -> None:
        """Write one safetensors file, whole or not at all."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        arrays = {k: v for k, v in values.items() if isinstance(v, np.ndarray)}
        if self.per == "row":  # as in files of earlier versions
            del values["per"]
        FILE.write(path, {k: v for k, v in values.items() if k not in arrays}, arrays)

    @classmethod
    def load(cls, path: Path | str) -> Predictions:
        """Read what `save` wrote, and compare it with its checksums."""
        facts, arrays = FILE.read(Path(path))
        facts = {k: tuple(v) if isinstance(v, list) else v for k, v in facts.items()}
        return cls(**facts, **arrays)


def numbered(name: str, rows: NDArray[np.integer], ids: Sequence[str]) -> dict[str, Any]:
    """`NAME_ids`, those that occur in `rows`, and `NAME`, (rows,) indices into them."""
    occurring, index = np.unique(rows, return_inverse=True)
    return {name: index, f"{name}_ids": tuple(ids[number] for number in occurring)}


def shared_rows(many: Sequence[Predictions]) -> list[Predictions]:
    """The same test rows of each: those that all of them have."""
    first = many[0]
    for other in many[1:]:
        for what in ("downstream", "content", "split_seed", "labels", "per"):
            if getattr(other, what) != getattr(first, what):
                raise SettingError(
                    f"predictions can be compared on the same test rows only; {first.name} and "
                    f"{other.name} differ in {what}: {getattr(first, what)!r} and "
                    f"{getattr(other, what)!r}"
                )
    keys = [
        row_keys(keys_of(p.recording_ids)[p.recording], p.frame, keys_of(p.leads)[p.lead])
        for p in many
    ]
    common = reduce(np.intersect1d, keys)
    return [p.where(np.isin(key, common)) for p, key in zip(many, keys, strict=True)]
