"""Frames: a dataset cut into frames and held in memory, ready for a device.

All that training and evaluation need, in plain arrays: int16 signals and each frame's start,
patient, label and split. Saves and loads as one safetensors file, without zarr or polars.
"""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clocs.errors import SettingError, StoreError
from clocs.frames.signals import allocate_signals, memory_for_signals
from clocs.frames.splits import Folds, parts_of, without_copies
from clocs.recording import (
    UNNAMED_LEAD,
    FrameSpec,
    unnamed_lead,
)
from clocs.sealed import ArrayFile

FILE = ArrayFile(
    "a readable Frames file",
    key="clocs.frames",
    format=3,
    remedy="make it again from its store with `clocs export --to frames`",
)
SEXES = ("unknown", "male", "female")
SEVERAL = "+"  # between the names of joined datasets
ABSENT = -1  # in `starts`: this frame has no signal in this lead
_CODED = 1 << 22  # samples per piece of the coded signals
_TOGETHER = 4096  # windows computed at once
_PER_FRAME = ("starts", "scale", "recording", "patient", "segment", "split", "target")


@dataclass(frozen=True)
class Frames:
    """Frames of one dataset, one row each; every lead of a row is one single-lead view.

    Attributes:
        dataset: Its name; with the patient, the key of splits and of the leak guard.
        content: The store's content hash.
        spec: Duration and samples of a frame.
        leads: Names, in the order requested.
        labels: Class names.
        multilabel: Whether a frame can have several.
        batch_size: The paper's for this dataset.
        split_seed: Random seed of `split`.
        unit: Unit of `scale`: 'mV', 'adu' where the gain is unpublished, or 'mixed'.
        patient_ids: Distinct patients, in order of appearance; by hash, those who share a
            recording are one.
        recording_ids: Distinct recordings, in order of appearance.
        digests: (recordings,) content key of each recording.
        age: (recordings,) in years; nan where unknown.
        sex: (recordings,) index into `SEXES`.
        signals: (samples,) all windows, one after another.
        starts: (frames, leads) where each window of `spec.samples` begins in `signals`; `ABSENT`
            where the recording does not have the lead, or a gap touches the frame.
        scale: (frames, leads) mV per step; nan where absent.
        recording: (frames,) index into `recording_ids`.
        patient: (frames,) index into `patient_ids`.
        segment: (frames,) position in the recording, from 0.
        split: (frames,) 0 train, 1 validation, 2 test; −1 where a copy is in a later part.
        target: (frames, classes) 1 where the label holds; a row of zeros where none is known.
        joined: Whether it combines several datasets; ids then begin with their dataset's name.
        without_signal: How many frames × leads of recordings that have the lead are absent: in gaps
            or flat.
        fold: Of each patient, in an official split; '' where unknown, empty where there is none.
        folds: Of each dataset that is split by its folds, those that are tested and validated on;
            the others are split by the hash of their patients.
    """

    dataset: str
    content: str
    spec: FrameSpec
    leads: tuple[str, ...]
    labels: tuple[str, ...]
    multilabel: bool
    batch_size: int
    split_seed: int
    unit: str
    patient_ids: tuple[str, ...]
    recording_ids: tuple[str, ...]
    digests: NDArray[np.uint64]
    age: NDArray[np.float32]
    sex: NDArray[np.int8]
    signals: NDArray[np.int16]
    starts: NDArray[np.int64]
    scale: NDArray[np.float32]
    recording: NDArray[np.int32]
    patient: NDArray[np.int32]
    segment: NDArray[np.int32]
    split: NDArray[np.int8]
    target: NDArray[np.uint8]
    joined: bool = False
    without_signal: int = 0
    fold: tuple[str, ...] = ()
    folds: Mapping[str, Folds] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def has_label(self) -> NDArray[np.bool_]:
        """(frames,) whether a label is known."""
        return np.asarray(self.target.any(axis=1), np.bool_)

    @property
    def present(self) -> NDArray[np.bool_]:
        """(frames, leads) whether a frame has a signal in a lead."""
        return np.asarray(self.starts != ABSENT, np.bool_)

    def keyed(self, ids: Iterable[str]) -> list[str]:
        """IDs of patients or recordings with their dataset, unique across datasets."""
        return list(ids) if self.joined else [f"{self.dataset}:{name}" for name in ids]

    def patients_of(self, *splits: int) -> list[str]:
        """IDs of the patients in these parts, sorted."""
        rows = np.unique(self.patient[np.isin(self.split, splits)])
        return sorted(self.patient_ids[row] for row in rows)

    def windows(self, rows: NDArray[np.int64], lead: int = 0) -> NDArray[np.float32]:
        """rows: (n,) -> (n, samples) of one lead in mV; nan where it is absent."""
        at = np.maximum(self.starts[rows, lead], 0)[:, None] + np.arange(self.spec.samples)
        return np.asarray(self.signals[at] * self.scale[rows, lead][:, None], np.float32)

    def with_split_seed(self, split_seed: int) -> Frames:
        """The same frames with their patients split by another seed, or by their folds."""
        keyed = self.keyed(self.patient_ids)
        part = parts_of(keyed, split_seed)
        for dataset, folds in self.folds.items():
            own = np.array([name.startswith(f"{dataset}:") for name in keyed], bool)
            part = np.where(own, folds.parts(keyed, self.fold, split_seed), part)
        return replace(self, split_seed=split_seed, split=self.without_copies(part[self.patient]))

    def without_copies(self, split: NDArray[np.int8]) -> NDArray[np.int8]:
        """split: (frames,) -> the same, −1 where a copy of the recording is in a later part."""
        of_recording = np.zeros(len(self.recording_ids), np.int8)
        of_recording[self.recording] = split
        return without_copies(of_recording, self.digests)[self.recording]

    def take(self, rows: NDArray[Any]) -> Frames:
        """Only these frames: by number, or (frames,) bool."""
        return replace(self, **{name: getattr(self, name)[rows] for name in _PER_FRAME})

    def with_leads(self, leads: Sequence[str]) -> Frames:
        """The same frames with only these leads, in this order; those with none are left out."""
        absent = [lead for lead in leads if lead not in self.leads]
        if absent or not leads:
            raise SettingError(
                f"these frames of {self.dataset} have the leads {', '.join(self.leads)}, not "
                f"{', '.join(absent) or 'none'}; choose from them"
            )
        places = [self.leads.index(lead) for lead in leads]
        some = np.flatnonzero(self.present[:, places].any(axis=1))
        own = self if len(some) == len(self) else self.take(some)
        starts, scale = np.ascontiguousarray(own.starts[:, places]), own.scale[:, places]
        return replace(own, leads=tuple(leads), starts=starts, scale=np.ascontiguousarray(scale))

    def for_leads(self, leads: Sequence[str]) -> Frames:
        """The same frames with these leads, in this order, absent where they have no such lead.

        Those with none of them are left out. A single lead without a name, as recorders of one lead
        have it, takes the place of a named one: see `unnamed_lead`.
        """
        if self.leads == (UNNAMED_LEAD,) and UNNAMED_LEAD not in leads:
            return replace(self, leads=(unnamed_lead(self.dataset),)).for_leads(leads)
        shared = [lead for lead in leads if lead in self.leads]
        if not shared:
            raise SettingError(
                f"these frames of {self.dataset} have the leads {', '.join(self.leads)}, but the "
                f"encoder sees {', '.join(leads)}: none of them"
            )
        own = self.with_leads(shared)
        starts = np.full((len(own), len(leads)), ABSENT, np.int64)
        scale = np.full((len(own), len(leads)), np.nan, np.float32)
        places = [leads.index(lead) for lead in shared]
        starts[:, places], scale[:, places] = own.starts, own.scale
        return replace(own, leads=tuple(leads), starts=starts, scale=scale)

    def with_step(self, step: float) -> Frames:
        """The same frames in steps of so many mV, or coarser ones where 16 bits need it."""
        if not step > 0:
            raise SettingError(f"`step` must be above 0, not {step:g}")
        made = self.packed()
        scale = np.where(made.present, np.float32(step), np.float32(np.nan))
        windows = made.signals.reshape(-1, made.spec.samples)  # packed: one after another
        for lead in range(len(made.leads)):
            present = np.flatnonzero(made.present[:, lead])
            for rows in np.split(present, range(_TOGETHER, len(present), _TOGETHER)):
                values = made.windows(rows, lead).astype(np.float64)
                own = np.maximum(step, np.abs(values).max(axis=1) / 32767)
                scale[rows, lead] = own
                places = made.starts[rows, lead] // made.spec.samples
                windows[places] = np.rint(values / own[:, None])
        return replace(made, scale=scale)

    def packed(self) -> Frames:
        """The same frames without unused signals; windows of a lead of a recording in one piece."""
        rows, leads = np.nonzero(self.present)
        order = np.lexsort((rows, leads, self.recording[rows]))
        place = rows[order], leads[order]
        samples = self.spec.samples
        starts = np.full(self.starts.shape, ABSENT, np.int64)
        starts[place] = np.arange(len(order)) * samples
        windows = np.lib.stride_tricks.sliding_window_view(self.signals, samples)
        return replace(self, signals=windows[self.starts[place]].ravel(), starts=starts)

    def save(self, path: Path) -> None:
        """Write one safetensors file, complete or not at all; signals are compressed."""
        facts = {one.name: getattr(self, one.name) for one in fields(self)}
        pieces = _encode(facts.pop("signals"))
        names = [name for name, value in facts.items() if isinstance(value, np.ndarray)]
        arrays = {name: facts.pop(name) for name in names}
        folds = {name: folds.to_dict() for name, folds in self.folds.items()}
        facts |= {"spec": self.spec.to_dict(), "samples": len(self.signals), "folds": folds}
        arrays["signals.bytes"] = np.frombuffer(b"".join(pieces), np.uint8)
        arrays["signals.sizes"] = np.array([len(piece) for piece in pieces], np.int64)
        FILE.write(path, facts, arrays)

    @staticmethod
    def facts(path: Path) -> dict[str, Any]:
        """Everything in a saved file but its arrays, which are not read."""
        return _plain(FILE.read_facts(path))

    @classmethod
    def load(cls, path: Path) -> Frames:
        """Read what `save` wrote, and compare it with its checksums."""
        facts, arrays = FILE.read(path)
        signals = _decode(
            arrays.pop("signals.bytes"), arrays.pop("signals.sizes"), facts.pop("samples")
        )
        arrays.pop("day", None)  # earlier versions kept dates, which nothing needs
        return cls(signals=signals, **_plain(facts), **arrays)


def _plain(facts: dict[str, Any]) -> dict[str, Any]:
    """Facts as they were before they became JSON."""
    if "derive" in facts:
        raise StoreError(f"this Frames file leaves out limb leads, as none does now; {FILE.remedy}")
    tuples = {name: tuple(v) if isinstance(v, list) else v for name, v in facts.items()}
    folds = {name: Folds(**one) for name, one in facts.get("folds", {}).items()}
    return tuples | {"spec": FrameSpec.from_dict(facts["spec"]), "folds": folds}


def _encode(signals: NDArray[np.int16]) -> list[bytes]:
    def piece(start: int) -> bytes:
        delta = np.diff(signals[start : start + _CODED], prepend=np.int16(0))
        zigzag = ((delta << 1) ^ (delta >> 15)).view(np.uint8).reshape(-1, 2)
        return zlib.compress(np.ascontiguousarray(zigzag.T).tobytes(), level=6)  # low, high bytes

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(piece, range(0, len(signals), _CODED)))


def _decode(coded: NDArray[np.uint8], sizes: NDArray[np.int64], samples: int) -> NDArray[np.int16]:
    signals = np.empty(samples, np.int16)
    ends = np.cumsum(sizes)

    def piece(i: int) -> None:
        planes = np.frombuffer(
            zlib.decompress(coded[ends[i] - sizes[i] : ends[i]].tobytes()), np.uint8
        )
        zigzag = np.ascontiguousarray(planes.reshape(2, -1).T).view(np.uint16)[:, 0]
        delta = ((zigzag >> 1) ^ -(zigzag & 1)).view(np.int16)
        np.cumsum(delta, dtype=np.int16, out=signals[i * _CODED : i * _CODED + len(delta)])

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(piece, range(len(sizes))))
    return signals


def join(
    parts: Sequence[Frames], *, beside: Path | None = None, memory: int | None = None
) -> Frames:
    """Frames of several datasets as one, in their order, to learn from all of them at once.

    Patients keep their own dataset's split; one who is in two stores of the same dataset stays one.
    A recording whose copy is in a later part of another dataset is left out.
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
    folds = [fold for part in parts for fold in part.fold or [""] * len(part.patient_ids)]
    known = dict(reversed([pair for pair in zip(patients, folds, strict=True) if pair[1]]))
    number = {name: i for i, name in enumerate(dict.fromkeys(patients))}
    place = np.array([number[name] for name in patients], np.int32)
    same_labels = all((p.labels, p.multilabel) == (first.labels, first.multilabel) for p in parts)
    memory = memory_for_signals() // 2 if memory is None else memory
    signals = allocate_signals(sum(len(p.signals) for p in parts), beside=beside, memory=memory)
    names = ("digests", "age", "sex", "scale", "segment", "split")
    arrays: dict[str, Any] = {
        name: np.concatenate([getattr(part, name) for part in parts]) for name in names
    }
    absent = np.concatenate([~part.present for part in parts])
    starts = _shifted(parts, "starts", [len(part.signals) for part in parts])
    joined = replace(
        first,
        dataset=SEVERAL.join(dict.fromkeys(part.dataset for part in parts)),
        content=hashlib.sha256(" ".join(part.content for part in parts).encode()).hexdigest(),
        labels=first.labels if same_labels else (),
        unit=first.unit if len({part.unit for part in parts}) == 1 else "mixed",
        patient_ids=tuple(number),
        recording_ids=tuple(n for part in parts for n in part.keyed(part.recording_ids)),
        signals=np.concatenate([part.signals for part in parts], out=signals),
        starts=np.where(absent, ABSENT, starts),
        recording=_shifted(parts, "recording", [len(part.recording_ids) for part in parts]),
        patient=place[_shifted(parts, "patient", [len(part.patient_ids) for part in parts])],
        target=np.concatenate([p.target if same_labels else p.target[:, :0] for p in parts]),
        joined=True,
        without_signal=sum(part.without_signal for part in parts),
        fold=tuple(known.get(name, "") for name in number) if known else (),
        folds=_joined_folds(parts),
        **arrays,
    )
    return replace(joined, split=joined.without_copies(joined.split))


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


def _shifted(parts: Sequence[Frames], name: str, sizes: list[int]) -> NDArray[Any]:
    """Indices into arrays that are joined as well."""
    before = np.cumsum([0, *sizes[:-1]])
    shifted = [
        getattr(part, name) + shift.astype(getattr(part, name).dtype)
        for part, shift in zip(parts, before, strict=True)
    ]
    return np.concatenate(shifted)
