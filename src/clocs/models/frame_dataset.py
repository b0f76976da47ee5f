"""`clocs.torch_dataset`: the frames of a store as a dataset of torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import torch
from torch.utils.data import Dataset

from clocs.errors import SettingError
from clocs.frames.frames import Frames
from clocs.frames.make import make_frames
from clocs.frames.splits import PARTS
from clocs.recording import FrameSpec
from clocs.store.store import Store, as_store
from clocs.training.signals import min_max, standardize

Normalize: TypeAlias = Literal[False, True, "standardized"]


def torch_dataset(
    store: Store | Path | str,
    *,
    split: str | None = None,
    split_seed: int = 0,
    leads: Sequence[str] | None = None,
    frame: FrameSpec | float | None = None,
    normalize: Normalize = False,
    labeled: bool = False,
) -> FrameDataset:
    """The frames of a store as a `torch.utils.data.Dataset`, for `torch.utils.data.DataLoader`.

    Signals are read once and kept in memory, 16 bits per sample, or mapped from a temporary file
    where they would take more than half of the memory. Workers of a `DataLoader` share them.

    Args:
        store: Prepared recordings.
        split: Only this part: 'train', 'validation' or 'test'; all frames where None. Official
            folds decide where the store has some, else the hash of patients.
        split_seed: Random seed for the patient split.
        leads: By name, in this order; II, V2, aVL, aVR where present, else all.
        frame: Seconds of a frame, as 2,500 samples, or a `clocs.FrameSpec`; the store's by default.
        normalize: Scale each lead of each frame to 0 … 1, as encoders of one lead see them, instead
            of mV; 'standardized' gives each mean 0 and variance 1, as encoders of many leads do.
        labeled: Leave out frames without a label.
    """
    opened = as_store(store)
    filters = opened.manifest.frame.filters
    spec = frame if isinstance(frame, FrameSpec | None) else FrameSpec(frame, filters=filters)
    frames = make_frames(opened, spec=spec, leads=leads, split_seed=split_seed)
    rows = np.ones(len(frames), bool)
    if split is not None:
        if split not in PARTS:
            raise SettingError(f"there is no split {split!r}; choose one of {', '.join(PARTS)}")
        rows &= frames.split == PARTS.index(split)
    if labeled:
        rows &= frames.has_label
    return FrameDataset(frames, np.flatnonzero(rows), normalize=normalize)


class FrameDataset(Dataset[dict[str, Any]]):
    """Frames, one item each; made by `torch_dataset`.

    An item is a dict, which the loader's usual `collate_fn` turns into a batch:

        signal     (leads, samples) float32, in mV or normalized; nan in a lead that is missing
        has_lead   (leads,) bool: whether the lead has a signal here
        target     (classes,) float32: 1 where the label holds; zeros where none is known
        patient    number of the patient, an index into `patients`
        recording  ID of the recording
        segment    position of the frame in its recording, from 0

    Attributes:
        leads: Names of the leads.
        labels: Class names.
        patients: IDs of the patients, by number.
        spec: Duration and samples of a frame.
        unit: Of signals that are not normalized: 'mV', 'adu' where it is unknown, or 'mixed'.
    """

    def __init__(self, frames: Frames, rows: np.ndarray[Any, Any], *, normalize: Normalize) -> None:
        """Take these rows of frames; their signals are not copied."""
        self.leads, self.labels, self.spec = frames.leads, frames.labels, frames.spec
        self.patients, self.unit = frames.patient_ids, "" if normalize else frames.unit
        if normalize not in get_args(Normalize):
            raise SettingError(
                f"`normalize` is {normalize!r:.50}; give False, True or 'standardized'"
            )
        self._normalize = normalize
        self._recording_ids = frames.recording_ids
        # Tensors, which processes that are started afresh share, too, where they would copy arrays.
        self._signals = torch.from_numpy(frames.signals)
        names = ("starts", "scale", "target", "patient", "recording", "segment")
        self._rows = {name: torch.from_numpy(getattr(frames, name)[rows]) for name in names}

    def __len__(self) -> int:
        return len(self._rows["starts"])

    def __getitem__(self, index: int) -> dict[str, Any]:
        own = {name: tensor[index] for name, tensor in self._rows.items()}
        starts = own["starts"]
        has_lead = starts >= 0
        windows = self._signals.unfold(0, self.spec.samples, 1)
        steps = windows[starts.clamp(min=0)].float()
        if self._normalize == "standardized":
            signal = standardize(steps)
        elif self._normalize:
            signal = min_max(steps)
        else:
            signal = steps * own["scale"][:, None]
        signal[~has_lead] = torch.nan
        return {
            "signal": signal,
            "has_lead": has_lead,
            "target": own["target"].float(),
            "patient": int(own["patient"]),
            "recording": self._recording_ids[int(own["recording"])],
            "segment": int(own["segment"]),
        }
