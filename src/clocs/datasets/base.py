"""What a dataset is: a listing of a source, the reading of one entry, and a row in the table.

Also what datasets share: from a source's file names to entries, the refusal of a source that is
something else, checks of a recording, and fields of headers.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cache
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Literal, Self

from clocs.errors import SettingError, SourceError, UnusableError, find_row, first_of
from clocs.files import MAX_HEADER_BYTES, MAX_TABLE_BYTES
from clocs.formats.base import SEXES
from clocs.formats.source import Source, open_source, stem
from clocs.formats.wfdb import WFDB
from clocs.formats.wfdb_header import Header, parse_header
from clocs.recording import FrameSpec, Recording
from clocs.registry import Option, chosen_options, rows_in

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
        patient_is_known: Whether reading cannot name another patient; shards go by patients.
    """

    id: str
    patient: str
    path: str
    info: Mapping[str, str] = field(default_factory=dict)
    labels: tuple[str, ...] | None = None
    fold: str | None = None
    patient_is_known: bool = True

    def __reduce__(self) -> tuple[type[Entry], tuple[object, ...]]:
        own = (self.id, self.patient, self.path, self.info)  # several times as fast as all fields
        return Entry, (*own, self.labels, self.fold, self.patient_is_known)


@dataclass(frozen=True, slots=True)
class Quarantined:
    """A recording that cannot be used, and why (see `UnusableError.REASONS`)."""

    id: str
    reason: str
    detail: str


def faults_by_kind(found: Iterable[Quarantined]) -> list[tuple[Quarantined, int]]:
    """The first of each kind of fault and how many there are of it, the most frequent first.

    Faults are of one kind where their details differ in names and numbers alone.
    """
    kinds: dict[tuple[str, str], list[Quarantined]] = {}
    for one in found:
        kinds.setdefault((one.reason, _VARYING.sub("…", one.detail)), []).append(one)
    return sorted(((own[0], len(own)) for own in kinds.values()), key=lambda kind: -kind[1])


def describe_faults(found: Iterable[Quarantined]) -> str:
    """The most frequent kinds of fault with an example of each, as a phrase."""
    kinds = [f"{n:,} {one.reason}, such as: {one.detail}" for one, n in faults_by_kind(found)]
    return first_of(kinds, _MAX_KINDS, "; ", "kinds") or "it is empty"


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
    """

    entries: tuple[Entry, ...]
    quarantined: tuple[Quarantined, ...] = ()
    rows_without_recording: tuple[str, ...] = ()
    fingerprint: str = ""
    files: Mapping[str, int] = field(default_factory=dict)
    notices: tuple[str, ...] = ()


def option(default: Any, text: str, **limits: Any) -> Any:
    """A field of a dataset that users choose: a keyword, and an option on the command line.

    Args:
        default: Its value where none is given.
        text: What it is, as a phrase.
        limits: Those of `Option`: `kind`, `minimum`, `maximum`, `above`, `choices`.
    """
    return field(default=default, metadata={"option": Option("", default, text, **limits)})


def declared_options(made: object) -> tuple[Option, ...]:
    """The options that a dataset declares among its fields, where it is a dataclass."""
    own = fields(made) if is_dataclass(made) else ()
    return tuple(
        replace(one.metadata["option"], name=one.name) for one in own if "option" in one.metadata
    )


class Dataset:
    """What preparing needs of a dataset, with values that most share; see docs/extending.md.

    Attributes:
        name: In stores.
        labels: Class names, in the order of the paper: a constant, or a property where options
            choose among sets of them.
        multilabel: Whether a recording may have several.
        frame: Of evaluation and of one-frame views.
        segment_frame: Of views that are consecutive segments (CMSC, CMSMLC); `frame` by default.
        resample: Whether a whole recording is resampled to the frame's rate, or frame by frame.
        batch_size: As in the paper.
        notices: What the user should know once all is read, one sentence each.
        skip_flat: Whether frames that are flat in a lead are skipped.
        keep_unlabeled: Whether frames outside of all labeled episodes are kept, without a label.
        settings: Options that change what is read (a label version, a seed), for the manifest.
    """

    name: str
    multilabel: bool = False
    frame: FrameSpec
    resample: Literal["recording", "frame"] = "recording"
    batch_size: int = 256
    notices: tuple[str, ...] = ()
    skip_flat: bool = False
    keep_unlabeled: bool = False

    def __post_init__(self) -> None:
        for one in declared_options(type(self)):
            one.checked(getattr(self, one.name))

    @property
    def labels(self) -> tuple[str, ...]:
        raise NotImplementedError

    @property
    def segment_frame(self) -> FrameSpec:
        return self.frame

    @property
    def settings(self) -> Mapping[str, str]:
        return {one.name: str(getattr(self, one.name)) for one in declared_options(type(self))}

    def list(self) -> Listing:
        """Every recording, before any is read."""
        raise NotImplementedError

    def read(self, entry: Entry) -> Recording:
        """Read one entry, fully checked; raises UnusableError. Thread-safe."""
        raise NotImplementedError

    def with_inferred_schema(self, table: pl.DataFrame) -> Self:
        """The dataset once all is read: its labels and frames may follow from a store's table."""
        return self


@dataclass(frozen=True, eq=False)
class PublishedDataset(Dataset):
    """A dataset whose files are in a source."""

    source: Source

    def require(self, found: int, looked_for: str) -> None:
        """Refuse a source that holds nothing of this dataset, or another dataset.

        Raises:
            SourceError: What was expected, what is there and what to do.
        """
        source, rows = self.source, datasets()
        own, other = rows.get(self.name), None
        if own is None or not own.recognize(source):
            other = next((row.name for row in rows.values() if row.recognize(source)), None)
        if found and other is None:
            return
        problem = f"{source.path} holds no {self.name} recordings"
        remedy = "give the dataset's folder or its zip as downloaded"
        if other is not None:
            problem = f"{source.path} looks like {other}, not {self.name}"
            remedy = f"prepare it as {other} or give another source"
        files_found = count_files(source)
        raise SourceError(f"{problem} ({looked_for} expected, {files_found} found); {remedy}")


@dataclass(frozen=True, slots=True)
class DatasetRow:
    """How a dataset is opened and recognized; declared at the end of the dataset's module.

    Attributes:
        name: On the command line and in stores.
        open: Makes the dataset, from a source (where `has_source`) and options by keyword.
        recognize: Whether a source holds this dataset.
        options_in: The dataclass whose fields are the dataset's options; `open` by default.
        has_source: Whether the dataset reads files at all.
    """

    name: str
    open: Callable[..., Dataset]
    recognize: Callable[[Source], bool] = lambda source: False
    options_in: type | None = None
    has_source: bool = True

    @property
    def options(self) -> tuple[Option, ...]:
        return declared_options(self.options_in or self.open)


@cache
def datasets() -> dict[str, DatasetRow]:
    """Every dataset by name: of each module of this package that declares a `DatasetRow`."""
    return rows_in("clocs.datasets", DatasetRow)


def open_dataset(
    name: str,
    source_path: str | os.PathLike[str] | None = None,
    *,
    follow_links: bool = False,
    **options: object,
) -> Dataset:
    """Open a dataset by its name.

    Args:
        name: One of `datasets()`.
        source_path: A folder or zip; None for a dataset without files.
        follow_links: Read also what links in the folder lead to outside of it.
        options: The dataset's own, such as `reference="v3"` for physionet2017.

    Raises:
        SettingError: No such dataset or option, or a source that is missing or not needed.
        SourceError: The source cannot be opened.
    """
    row = find_row(datasets(), name, "dataset")
    if row.has_source == (source_path is None):
        if source_path is not None:
            raise SettingError(f"{name} has no source; leave out {source_path}")
        raise SettingError(f"{name} needs a source: its folder, or its zip as downloaded")
    chosen = chosen_options(row, options)  # refused before the source is listed
    if source_path is None:
        return row.open(**chosen)
    return row.open(open_source(source_path, follow_links=follow_links), **chosen)


def with_suffix(source: Source, suffix: str | tuple[str, ...]) -> list[str]:
    """Names in the source with this ending (one of these), in upper or lower case."""
    return [name for name in source.names if name.lower().endswith(suffix)]


def complete_listing(
    entries: Iterable[Entry],
    lost: Iterable[Quarantined] = (),
    *,
    rows: Iterable[str] = (),
    fingerprint: str,
) -> Listing:
    """The listing of these entries by ID, the first of each; later ones go to quarantine.

    Args:
        entries: In any order.
        lost: Recordings that are in quarantine already.
        rows: IDs in the label tables.
        fingerprint: Of the source and the label tables.
    """
    ordered = sorted(entries, key=lambda entry: (entry.id, entry.path))
    first, repeated = without_repeats(ordered)
    quarantined = (*lost, *repeated)
    known = {entry.id for entry in first} | {one.id for one in quarantined}
    unmatched = set(rows) - known
    return Listing(tuple(first), quarantined, tuple(sorted(unmatched)), fingerprint)


def without_repeats(entries: Iterable[Entry]) -> tuple[list[Entry], list[Quarantined]]:
    """The first entry of each ID, in order, and quarantine for the others."""
    first: dict[str, Entry] = {}
    repeated: list[Quarantined] = []
    for entry in entries:
        kept = first.setdefault(entry.id, entry)
        if kept is not entry:
            detail = f"{entry.path} has the ID of {kept.path}, which is used"
            repeated.append(Quarantined(entry.id, "duplicate id", detail))
    return list(first.values()), repeated


def wfdb_entries(
    source: Source, info: Mapping[str, Mapping[str, str]]
) -> tuple[list[Entry], list[Quarantined]]:
    """One entry per header, with the label table's row; signal files without one in quarantine."""
    headers = with_suffix(source, ".hea")
    described = {name[:-4] for name in headers}
    entries = [Entry(one, one, name, info.get(one, {})) for name in headers if (one := stem(name))]
    lost = [
        Quarantined(stem(name), "unreadable", f"{name} has no header beside it")
        for name in source.names
        if name.lower().endswith(WFDB.companions) and name[: name.rfind(".")] not in described
    ]
    return entries, lost


def label_tables(source: Source, name: str) -> list[bytes]:
    """Every table of this name in the source; for a zip, else the one beside it."""
    wanted = name.lower()
    inside = [found for found in source.names if found.lower().rpartition("/")[2] == wanted]
    try:
        found = [source.read(path, MAX_TABLE_BYTES) for path in inside]
        beside = None if found else source.read_sibling(name, MAX_TABLE_BYTES)
    except UnusableError as error:
        raise SourceError(f"{name} of {source.path} cannot be read: {error.detail}") from None
    return found if beside is None else [beside]


def fingerprint_of(source: Source, contents: Iterable[bytes]) -> str:
    """The fingerprint of the source and of label tables, which may be outside it."""
    marks = hashlib.sha256(source.fingerprint.encode())
    for content in contents:
        marks.update(hashlib.sha256(content).digest())
    return marks.hexdigest()[:32]


def first_headers(source: Source) -> Iterator[Header]:
    """The first WFDB headers of a source that can be read, to recognize a dataset by."""
    for name in with_suffix(source, ".hea")[:5]:
        try:
            yield parse_header(source.read(name, MAX_HEADER_BYTES), name=name)
        except UnusableError:
            continue


def count_files(source: Source) -> str:
    """The files of a source by suffix, as a phrase."""
    counts = Counter(PurePosixPath(name).suffix.lower() or "other" for name in source.names)
    if not counts:
        return "no files"
    parts = [f"{count:,} {suffix}" for suffix, count in counts.most_common(4)]
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if parts[1:] else parts) + " files"


def parse_age(text: str | None) -> float | None:
    """Years, or None where unknown ('', 'NaN', '-1' …)."""
    try:
        age = float(text or "nan")
    except ValueError:
        return None
    return age if 0 <= age < math.inf else None


def parse_sex(text: str | None) -> str | None:
    """'male', 'female' or None."""
    return SEXES.get((text or "").strip().lower())


def header_extra(recording: Recording) -> dict[str, str]:
    """Header fields other than age and sex, by lower-case name."""
    fields = {key.lower(): value for key, value in recording.extra.items()}
    return {key: value for key, value in fields.items() if key not in ("age", "sex")}
