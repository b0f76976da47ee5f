"""Embedding recordings that are not in a store: files, in threads ahead of the encoder.

A table names the patient of each file; without one, each file counts as one patient.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import TypeAlias

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from clocs.datasets.checks import check_signal
from clocs.errors import ClocsError, ClocsWarning, SettingError, UnusableError
from clocs.formats.base import ReadOptions
from clocs.formats.read import Found, find_recordings, known_suffixes, read_several
from clocs.frames.positions import cut, frame_count
from clocs.frames.present import bridged, touched
from clocs.frames.resample import LONG, TOGETHER, cut_windows
from clocs.frames.views import ALL_LEADS
from clocs.parallel import ahead, alike
from clocs.patients.embeddings import Embeddings
from clocs.patients.encode import (
    Windows,
    collect,
    encoded,
    fitted,
    frame_of_rows,
    known_leads,
    leads_of,
    placed,
    side_by_side,
)
from clocs.patients.rows import Level, check_level, file_row, rows_of_files
from clocs.recording import FrameSpec, Recording
from clocs.training.checkpoint import Checkpoint

_AHEAD = 4  # times `TOGETHER` recordings cut ahead of the encoder

RecordingOrError: TypeAlias = Recording | tuple[str, ClocsError]  # or its name and the error
CutFrames: TypeAlias = tuple[Recording, NDArray[np.int16]]  # (frames, leads, samples)


def read_files(
    paths: Sequence[Path | str],
    options: ReadOptions,
    *,
    patients: Mapping[str, str] | Path | str | None = None,
    follow_links: bool = False,
) -> tuple[list[str], Iterator[RecordingOrError]]:
    """The names of the recordings in files, folders and zips, and the recordings one by one.

    `patients` and `follow_links` are those of `clocs.embed`.
    """
    found = find_recordings(paths, options, follow_links=follow_links)
    owners = _owners(found, patients)

    def recordings() -> Iterator[RecordingOrError]:
        for result, owner in zip(read_several(found, options), owners, strict=True):
            if isinstance(result, Recording) and owner is not None:
                yield replace(result, patient=owner)
            else:
                yield result

    names = [one.name if isinstance(one, Found) else one[0] for one in found]
    return names, recordings()


def _owners(
    found: Sequence[Found | tuple[str, ClocsError]],
    patients: Mapping[str, str] | Path | str | None,
) -> list[str | None]:
    """The patient of each file; None where no table is given, or the file cannot be read."""
    if patients is None:
        return [None] * len(found)
    table: dict[str, str] = {}
    for file, patient in _rows_of_table(patients):
        if table.setdefault(_stem(file), patient) != patient:
            raise SettingError(f"`patients` has two patients for {_stem(file)}; give one per file")
    owners: list[str | None] = []
    for one in found:
        names = (one.name, one.path, PurePath(one.path).name) if isinstance(one, Found) else ()
        owner = next((table[stem] for stem in map(_stem, names) if stem in table), None)
        if owner is None and names:
            raise SettingError(
                f"{names[0]} is not in the table of patients; add every file to `patients`"
            )
        owners.append(owner)
    return owners


def _rows_of_table(patients: Mapping[str, str] | Path | str) -> Iterable[tuple[str, str]]:
    """(file, patient), as text, from a mapping or from a CSV or parquet table."""
    if isinstance(patients, Mapping):
        return patients.items()
    file = Path(patients)  # for polars, a text may be an address of any kind
    parquet = file.suffix.lower() == ".parquet"
    try:
        table = pl.read_parquet(file) if parquet else pl.read_csv(file, infer_schema=False)
        columns = table.select(pl.col("file", "patient").cast(pl.String).str.strip_chars())
    except (OSError, pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        why = (str(error).splitlines() or [type(error).__name__])[0]
        raise SettingError(
            f"`patients` is {patients}, which cannot be read ({why}); give a CSV or parquet table "
            "with the columns file and patient"
        ) from error
    return columns.drop_nulls().iter_rows()


def _stem(name: str) -> str:
    """A path without the suffix of a recording's file."""
    path = PurePath(name)
    return str(path.with_suffix("") if path.suffix.lower() in known_suffixes() else path)


def embed_recordings(
    checkpoint: Checkpoint,
    recordings: Iterable[RecordingOrError],
    *,
    level: Level = "recording",
    spec: FrameSpec | None = None,
    leads: Sequence[str] | None = None,
    device: torch.device | str = "cpu",
    progress: Callable[[int], None] = lambda done: None,
) -> Embeddings:
    """Embeddings of recordings outside a store, in the checkpoint's frame or another.

    A recording is embedded from those of the leads that it has, and from frames without gaps. One
    that cannot be embedded (too short, without any of the leads, unreadable) is listed in
    `problems` with the reason.
    """
    check_level(level)
    trained = checkpoint.card.frame
    checkpoint, frame = fitted(checkpoint, replace(spec or trained, filters=trained.filters))
    wanted, known = leads_of(checkpoint, leads), known_leads(checkpoint)
    rows: list[dict[str, object]] = []  # one per recording
    places: list[NDArray[np.bool_]] = []  # of each, (frames, leads) which have a signal
    fewer: list[str] = []  # recordings without some of the leads
    problems: list[tuple[str, str]] = []

    def windows() -> Iterator[Windows]:
        for one in file_windows(recordings, frame, wanted, known, progress):
            if isinstance(one, tuple):
                problems.append(one)
                continue
            rows.append(file_row(one.recording))
            some = np.asarray(one.present.any(axis=1), np.bool_)[:, None]
            places.append(some if known else one.present)
            if not one.has_all(wanted):
                fewer.append(one.recording.id)
            yield one.windows

    vectors = list(encoded(checkpoint, windows(), frame.samples, device))
    if fewer:
        warnings.warn(
            f"{len(fewer)} of {len(rows)} recordings, such as {fewer[0]}, lack some of the leads "
            f"{', '.join(wanted)} and are embedded from those they have",
            ClocsWarning,
            stacklevel=2,
        )
    frames = rows_of_files(rows, places, (ALL_LEADS,) if known else wanted)
    made = collect(
        checkpoint, vectors, frames, [level], spec=frame, leads=wanted, problems=problems
    )
    return made[level]


@dataclass(frozen=True)
class FileWindows:
    """A recording and its windows, as an encoder sees them."""

    recording: Recording
    windows: Windows
    present: NDArray[np.bool_]  # (frames, leads wanted) which have a signal

    def has_all(self, leads: Sequence[str]) -> bool:
        return all(lead in self.recording.leads for lead in leads)

    def frames(self, known: Sequence[str]) -> NDArray[np.int64]:
        """(windows,) the frame of each."""
        return frame_of_rows(self.present, known)


def file_windows(
    recordings: Iterable[RecordingOrError],
    frame: FrameSpec,
    wanted: Sequence[str],
    known: Sequence[str],
    progress: Callable[[int], None] = lambda done: None,
) -> Iterator[FileWindows | tuple[str, str]]:
    """Each recording as an encoder sees it, cut ahead in threads; or its name and what is wrong.

    Args:
        recordings: Or their names and errors.
        frame: What the encoder sees.
        wanted: Leads, of which a recording needs one.
        known: Leads that the encoder sees at once, if it does.
        progress: Called with the number of recordings that were cut.
    """
    done = 0
    given = (
        placed(one, known, wanted) if isinstance(one, Recording) else one for one in recordings
    )
    runs = alike(given, shape_of, TOGETHER)
    for made in ahead(lambda run: cut_alike(run, frame, wanted), runs, _AHEAD):
        done += len(made)
        progress(done)
        for one, values in made:
            if isinstance(one, str) or isinstance(values, str):
                yield str(one), str(values)
            else:
                yield as_seen(one, values, frame, wanted, known)


def as_seen(
    recording: Recording,
    values: NDArray[np.int16],
    frame: FrameSpec,
    wanted: Sequence[str],
    known: Sequence[str],
) -> FileWindows:
    """values: (frames, leads, samples) of those leads wanted that it has, as the encoder sees."""
    present = present_in(recording, len(values), frame, wanted)
    own = [lead for lead in wanted if lead in recording.leads]
    there = present[:, [lead in own for lead in wanted]]
    windows = side_by_side(known, own, values, there) if known else values[there]
    return FileWindows(recording, windows, present)


def shape_of(one: RecordingOrError) -> object:
    """Recordings of equal shape are cut together, unless they are long."""
    if not isinstance(one, Recording):
        return None
    return one.rate, one.samples, one.leads, one.id if one.samples > LONG else ""


def cut_alike(
    run: list[RecordingOrError], spec: FrameSpec, leads: Sequence[str]
) -> list[CutFrames | tuple[str, str]]:
    """The resampled frames of each recording; or its name and why it has none."""
    made: list[CutFrames | tuple[str, str]] = []
    usable: list[tuple[int, Recording]] = []
    for one in run:
        if not isinstance(one, Recording):
            made.append((one[0], str(one[1])))
            continue
        try:
            usable.append((len(made), with_leads(one, spec, leads)))
            made.append((one, np.zeros(0, np.int16)))
        except ClocsError as error:
            made.append((one.id, str(error)))
    if usable:
        own = [recording for _, recording in usable]
        values, _ = cut_windows(
            np.stack([bridged(one.digital, one.leads, one.gaps) for one in own]),
            np.stack([one.gain for one in own]),
            np.stack([one.baseline for one in own]).astype(np.int64),
            own[0].rate,
            int(frame_count(own[0].samples, own[0].rate, spec)),
            spec,
            "recording",
        )
        for (place, _), windows in zip(usable, values, strict=True):
            whole = run[place]
            assert isinstance(whole, Recording)
            made[place] = (whole, windows.transpose(1, 0, 2))
    return made


def with_leads(recording: Recording, spec: FrameSpec, leads: Sequence[str]) -> Recording:
    """The recording with those of the leads that it has; ClocsError says why it is of no use."""
    has = [lead for lead in leads if lead in recording.leads]
    if not has:
        raise SettingError(
            f"{recording.id} has none of the leads {', '.join(leads)}; choose from "
            f"{', '.join(recording.leads)} with `leads`"
        )
    own = recording.select(has)
    check_signal(own, frame=spec, known_leads=own.leads)
    count = int(frame_count(own.samples, own.rate, spec))
    if own.gaps and not present_in(own, count, spec, has).any():
        raise UnusableError("nan", f"{recording.id} has a gap in every frame of {spec.seconds:g} s")
    return own


def present_in(
    recording: Recording, count: int, spec: FrameSpec, leads: Sequence[str]
) -> NDArray[np.bool_]:
    """(frames, leads) whether a frame has a signal in a lead."""
    present = np.tile([lead in recording.leads for lead in leads], (count, 1))
    start = cut([recording.samples], [recording.rate], spec).start
    for gap in recording.gaps:
        if gap.lead in leads:
            touches = touched(start, recording.rate, spec, gap)
            present[:, list(leads).index(gap.lead)] &= ~touches
    return present
