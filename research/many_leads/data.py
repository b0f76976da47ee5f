"""The data of the comparison: frames of 5 s at 100 Hz of the paper's four datasets, in memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from clocs.errors import SettingError
from clocs.experiments.data import simulated_datasets
from clocs.frames.frames import Frames, join
from clocs.recording import STANDARD_LEADS, FrameSpec
from research.many_leads.items import DATASETS

_THINNED = 20  # simulated frames keep every so many-th sample


class StudyData:
    """Frames by dataset, loaded when first needed."""

    def __init__(self, folder: Path | None, *, patients: int | None = None) -> None:
        """Saved frames of a folder, or simulated ones; `patients` limits those of each part."""
        self.folder, self.patients = folder, patients
        self._loaded: dict[str, Frames] = {}
        if folder is None:
            found = simulated_datasets(patients=3 * (patients or 40))
            self.names: tuple[str, ...] = tuple(name for name in DATASETS if name in found)
            self._loaded = {name: self._prepared(_thinned(found[name])) for name in self.names}
            return
        self.names = tuple(name for name in DATASETS if _file(folder, name).is_file())
        if not self.names:
            raise SettingError(
                f"{folder} holds none of {', '.join(_file(folder, name).name for name in DATASETS)}"
                "; make them with `clocs export --to frames`"
            )

    def frames(self, *datasets: str) -> Frames:
        """Those of a dataset, or of several together; twelve leads where it has them."""
        for name in datasets:
            if name not in self._loaded and self.folder is not None:
                self._loaded[name] = self._prepared(Frames.load(_file(self.folder, name)))
        parts = [self._loaded[name] for name in datasets]
        return join([part.for_leads(STANDARD_LEADS) for part in parts])

    def facts(self) -> dict[str, str]:
        """Content hashes, by dataset."""
        if self.folder is None:
            return {name: frames.content for name, frames in self._loaded.items()}
        return {n: str(Frames.facts(_file(self.folder, n))["content"]) for n in self.names}

    def _prepared(self, frames: Frames) -> Frames:
        return frames if self.patients is None else few_patients(frames, self.patients)


def few_patients(frames: Frames, patients: int) -> Frames:
    """The frames of the first so many patients of each part."""
    kept = np.zeros(len(frames), np.bool_)
    for split in range(3):
        own = frames.split == split
        kept |= own & np.isin(frames.patient, np.unique(frames.patient[own])[:patients])
    return frames.take(kept).packed()


def _thinned(frames: Frames) -> Frames:
    """Simulated frames at a lower rate, to be quick."""
    packed = frames.packed()
    spec = FrameSpec(packed.spec.seconds, packed.spec.samples // _THINNED)
    signals = np.ascontiguousarray(packed.signals[::_THINNED])
    starts = np.where(packed.present, packed.starts // _THINNED, packed.starts)
    return replace(packed, spec=spec, signals=signals, starts=starts)


def _file(folder: Path, dataset: str) -> Path:
    return folder / f"{dataset}-frame.safetensors"
