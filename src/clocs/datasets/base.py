"""What a dataset is: a listing of a source, the reading of one entry, and a row in the table."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, Self

from clocs.errors import first_of
from clocs.formats.source import Source
from clocs.recording import FrameSpec, Recording
from clocs.registry import Option

if TYPE_CHECKING:
    import polars as pl

# Names of files and recordings, quotations and numbers in the detail of a fault.
_VARYING = re.compile(r"^\S+|'[^']*'|\"[^\"]*\"|\S*[\d/\\]\S*")
_MAX_KINDS = 5


@dataclass(frozen=True, slots=True)
class Entry:
    """One recording as listed, before it is read: small, and cheap to send to a worker.

    Attributes:
        id: Of the recording.
        patient: As far as is known.
        path: Of its main file in the source, or whatever the dataset's `read` understands.
        info: For the dataset's `read` alone, such as a table's row with whatever columns it has.
        labels: Where the listing knows them.
        fold: Of an official split, where the listing knows it.
        patient_is_known: Whether reading cannot name another patient.
    """

    id: str
    patient: str
    path: str
    info: Mapping[str, str] = field(default_factory=dict)
    labels: tuple[str, ...] | None = None
    fold: str | None = None
    patient_is_known: bool = False

    def __reduce__(self) -> tuple[type[Entry], tuple[object, ...]]:
        own = (self.id, self.patient, self.path, self.info)  # several times as fast as all fields
        return Entry, (*own, self.labels, self.fold, self.patient_is_known)


@dataclass(frozen=True, slots=True)
class Quarantined:
    """A recording that cannot be used, and why (see `UnusableError.REASONS`)."""

    id: str
    reason: str
    detail: str


def by_kind(found: Iterable[Quarantined]) -> list[tuple[Quarantined, int]]:
    """The first of each kind of fault and how many there are of it, the most frequent first.

    Faults are of one kind where their details differ in names and numbers alone.
    """
    kinds: dict[tuple[str, str], list[Quarantined]] = {}
    for one in found:
        kinds.setdefault((one.reason, _VARYING.sub("…", one.detail)), []).append(one)
    return sorted(((own[0], len(own)) for own in kinds.values()), key=lambda kind: -kind[1])


def said_by_kind(found: Iterable[Quarantined]) -> str:
    """The most frequent kinds of fault with an example of each, as a phrase."""
    said = [f"{n:,} {one.reason}, such as: {one.detail}" for one, n in by_kind(found)]
    return first_of(said, _MAX_KINDS, "; ", "kinds") or "it is empty"


@dataclass(frozen=True, slots=True)
class Listing:
    """All recordings of a source, in a stable order, before any signal is read.

    Attributes:
        entries: The recordings.
        quarantined: Recordings that cannot be used, as far as names tell.
        rows_without_recording: IDs in a label table that have no file.
        fingerprint: Changes when the source does; guards resuming.
        files: How many files there are of each kind, where kinds differ.
        notices: What the user should know, one sentence each.
        patients_by_reading: Whether files may name other patients than their entries do, unless
            the entry's patient is known.
    """

    entries: tuple[Entry, ...]
    quarantined: tuple[Quarantined, ...] = ()
    rows_without_recording: tuple[str, ...] = ()
    fingerprint: str = ""
    files: Mapping[str, int] = field(default_factory=dict)
    notices: tuple[str, ...] = ()
    patients_by_reading: bool = False


class Dataset(Protocol):
    """What preparing needs of a dataset; see docs/extending.md."""

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

    def concluded(self, table: pl.DataFrame) -> Dataset:
        """The dataset once all is read: its labels and frames may follow from a store's table."""
        ...

    @property
    def notices(self) -> tuple[str, ...]:
        """What the user should know once all is read, one sentence each."""
        ...


class DatasetDefaults:
    """The constants of a dataset, with values that most datasets share."""

    name: ClassVar[str]
    frame: ClassVar[FrameSpec]
    segment_frame: ClassVar[FrameSpec]
    multilabel: ClassVar[bool] = False
    resample: ClassVar[Literal["recording", "frame"]] = "recording"
    batch_size: ClassVar[int] = 256
    notices: ClassVar[tuple[str, ...]] = ()
    # Both may be left out, as False. Whether frames that are flat in a lead are skipped, and
    # whether those outside of all labeled episodes are kept, without a label.
    skip_flat: ClassVar[bool] = False
    keep_unlabeled: ClassVar[bool] = False

    @property
    def labels(self) -> tuple[str, ...]:
        """Class names: a constant, or a property where options choose among sets of them."""
        raise NotImplementedError

    @property
    def settings(self) -> Mapping[str, str]:
        return {}

    def concluded(self, table: pl.DataFrame) -> Self:
        return self


@dataclass(frozen=True, eq=False)
class PublishedDataset(DatasetDefaults):
    """A dataset whose files are in a source."""

    source: Source


@dataclass(frozen=True, slots=True)
class DatasetRow:
    """How a dataset is opened and recognized; declared at the end of the dataset's module.

    Attributes:
        name: On the command line and in stores.
        open: Makes the dataset, from a source (where `has_source`) and options by keyword.
        recognize: Whether a source holds this dataset.
        options: The dataset's own.
        has_source: Whether the dataset reads files at all.
        saved_options: Options that lie beside the data; those that are given win.
    """

    name: str
    open: Callable[..., Dataset]
    recognize: Callable[[Source], bool] = lambda source: False
    options: tuple[Option, ...] = ()
    has_source: bool = True
    saved_options: Callable[[Source], Mapping[str, Any]] = lambda source: {}
