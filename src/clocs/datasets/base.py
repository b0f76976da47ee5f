"""What a dataset is: a listing of a source, and the reading of one entry of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Protocol

from clocs.formats.source import Source
from clocs.recording import FrameSpec, Recording


@dataclass(frozen=True, slots=True)
class Entry:
    """One recording as listed, before it is read: small, and cheap to send to a worker."""

    id: str
    patient: str
    path: str  # of its main file inside the source; what it means is the dataset's own business
    info: Mapping[str, str] = field(default_factory=dict)  # from label tables: label, age, sex …


@dataclass(frozen=True, slots=True)
class Quarantined:
    """A recording that cannot be used, and why (see `UnusableError.REASONS`)."""

    id: str
    reason: str
    detail: str


@dataclass(frozen=True, slots=True)
class Listing:
    """Everything a source holds, in a stable order, before any signal is read."""

    entries: tuple[Entry, ...]
    quarantined: tuple[Quarantined, ...] = ()
    rows_without_recording: tuple[str, ...] = ()  # ids in a label table that have no file
    fingerprint: str = ""  # changes when the source does; guards resuming


class Dataset(Protocol):
    """A dataset: one file in this folder, one row in `DATASETS`."""

    @property
    def name(self) -> str: ...
    @property
    def labels(self) -> tuple[str, ...]:
        """Class names, in the order of the paper."""
        ...

    @property
    def multilabel(self) -> bool: ...
    @property
    def frame(self) -> FrameSpec:
        """The frame of evaluation and of one-frame views."""
        ...

    @property
    def segment_frame(self) -> FrameSpec:
        """The frame of views that are consecutive segments (CMSC, CMSMLC)."""
        ...

    @property
    def resample(self) -> Literal["recording", "frame"]:
        """Whether a whole recording is resampled to the frame's rate, or frame by frame."""
        ...

    @property
    def batch_size(self) -> int: ...
    @property
    def settings(self) -> Mapping[str, str]:
        """Options that change what is read (a label version, a seed), for the manifest."""
        ...

    def list(self) -> Listing: ...
    def read(self, entry: Entry) -> Recording:
        """Read one entry, fully checked; raises UnusableError. Thread-safe."""
        ...


@dataclass(frozen=True, eq=False)
class Published:
    """A dataset in a source, with what most of the published ones share; others say otherwise."""

    source: Source

    multilabel: ClassVar[bool] = False
    resample: ClassVar[Literal["recording", "frame"]] = "recording"
    batch_size: ClassVar[int] = 256

    @property
    def settings(self) -> Mapping[str, str]:
        return {}
