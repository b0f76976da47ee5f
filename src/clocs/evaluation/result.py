"""Evaluation: the scores of one method on one dataset."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clocs.sealed import ArrayFile


@dataclass(frozen=True)
class Evaluation:
    """Scores of one method on one dataset; the fields are those of `clocs evaluate --json`.

    `auc`, `ap` (average precision), `f1` and `accuracy` are per frame and lead, as in the paper, or
    per recording where `per` says so;
    `auc_recording` and `ap_recording` are per recording; `auc_validation` is the AUC per frame on
    the validation patients, by which settings may be chosen; `auc_logits` is that of raw logits, as
    the authors' code computed it. Lists have one value per seed, `…_per_class` is the mean over
    seeds; a class that is missing where it is needed has None and is left out of the macro mean.
    `thresholds` (one per seed) are chosen on validation. `by_sex` and `by_age` are scores of groups
    of test patients. `ci95` is over seeds and test patients.

    `leads` are those evaluated, `encoder_leads` those that the encoder was trained on.
    `labels_count` is the number of what `by` counts, where it was given. `random_…` compare with
    the stronger untrained encoder, p corrected for the number of methods; None where there was no
    comparison. `random_encoder` is its kind where it is not the method's own, whose weights cannot
    be drawn anew. `pretrain` is 'unknown' where it is not known what an outside encoder was
    trained on. `better_than` names the other methods given that this one beats in a paired test,
    corrected for all pairs; None where there was only one. `curve` is the validation AUC after
    every epoch, one list per seed, where recorded. `unlabeled_recordings` are in no part.
    `split` says whether patients are split by the hash of their IDs or by which official folds.
    `folds` has the scores of each fold, where every patient was tested on once; all other scores
    are then of all folds together, and `labeled` is the mean over them. `labeled` counts what
    `per` names of the training part, and `labeled_validation` of the validation part;
    `validation_labels` is 'share' where both parts have the same share of labels, and 'all' where
    the validation part has all of them, as in the paper and in results of earlier versions.
    `left_out_copies` counts recordings whose copy is tested on, or was trained on by an encoder of
    an earlier version; `copies_together` says that copies are of one patient, which earlier
    versions did not have.
    """

    protocol: str
    method: str
    pretrain: str | None
    downstream: str
    fraction: float
    by: str
    seeds: list[int]
    auc: list[float]
    auc_mean: float
    auc_std: float | None
    auc_recording: list[float]
    auc_recording_mean: float
    auc_logits: list[float]
    auc_logits_mean: float
    ci95: list[float] | None
    auc_per_class: dict[str, float | None]
    undefined_classes: list[str]
    embedding_dim: int
    leads: list[str]
    split_seed: int
    labeled: list[int]
    test_patients: int
    test_frames: int
    left_out_copies: int
    settings: dict[str, Any]
    encoder_leads: list[str] = field(default_factory=list)
    labels_count: int | None = None
    class_weights: bool = False
    auc_validation: list[float] = field(default_factory=list)
    auc_validation_mean: float = math.nan
    ap: list[float] = field(default_factory=list)
    ap_mean: float = math.nan
    ap_recording: list[float] = field(default_factory=list)
    ap_recording_mean: float = math.nan
    ap_per_class: dict[str, float | None] = field(default_factory=dict)
    accuracy: list[float] = field(default_factory=list)
    accuracy_mean: float = math.nan
    f1: list[float] = field(default_factory=list)
    f1_mean: float = math.nan
    f1_per_class: dict[str, float | None] = field(default_factory=dict)
    thresholds: dict[str, list[float | None]] = field(default_factory=dict)
    by_sex: dict[str, dict[str, Any]] = field(default_factory=dict)
    by_age: dict[str, dict[str, Any]] = field(default_factory=dict)
    random_method: str | None = None
    random_encoder: str | None = None
    random_auc_mean: float | None = None
    random_difference: float | None = None
    random_difference_ci95: list[float] | None = None
    random_p: float | None = None
    beats_random: bool | None = None
    better_than: list[str] | None = None
    curve: list[list[float]] | None = None
    unlabeled_recordings: int = 0
    split: str = "hash"
    folds: list[dict[str, Any]] | None = None
    per: str = "row"
    validation_labels: str = "all"
    labeled_validation: list[int] = field(default_factory=list)
    copies_together: bool = True

    @property
    def name(self) -> str:
        """The method and the dataset it was trained on, for tables."""
        return self.method if self.pretrain is None else f"{self.method} ({self.pretrain})"

    def json(self) -> dict[str, Any]:
        """Plain values for JSON; numbers that are not finite are None."""
        return {name: plain(value) for name, value in asdict(self).items()}


def plain(value: Any) -> Any:
    """The same for JSON: numbers that are not finite are None."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return value


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
    validation_labels: str = "all"  # or 'share': the same fraction as of the training part

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
        for name, usual in (("per", "row"), ("validation_labels", "all")):
            if values[name] == usual:  # as in files of earlier versions
                del values[name]
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
