"""Recordings that are not in a store, as an encoder sees them: read and cut ahead in threads.

A table names the patient of each file; without one, each file counts as one patient.

A recording of more than an hour is read and cut in stretches, where its format can be. Each stretch
is read with some seconds before and after it, so that its frames are those of the whole recording,
filtered and resampled, to the last digits.
"""

from __future__ import annotations

import math
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import Any, TypeAlias

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from clocs.datasets.base import check_signal, flat_stretches
from clocs.errors import ClocsError, ClocsWarning, SettingError, UnusableError
from clocs.files import digest
from clocs.formats.base import ReadOptions
from clocs.formats.read import Found, find_recordings, known_suffixes, read_several, without_folders
from clocs.frames.signals import (
    LONG,
    TOGETHER,
    bridged,
    cut,
    cut_windows,
    frame_count,
    touched,
    within,
)
from clocs.frames.views import ALL_LEADS
from clocs.patients.embeddings import Embeddings, UnitMeans, collect
from clocs.patients.encode import InputSpec, Windows, encoded, placed
from clocs.patients.rows import (
    READ_SCHEMA,
    Level,
    check_level,
    file_row,
    joined_reading,
    reading_of,
    rows_of_files,
)
from clocs.recording import DERIVED, FrameSpec, Recording, how_to_choose, leads_touched
from clocs.training.checkpoint import Checkpoint
from clocs.workers import group_runs, prefetch

_AHEAD = 4  # times `TOGETHER` recordings cut ahead of the encoder
LONGEST = 3600.0  # seconds of a recording that is read as a whole
STRETCH, _AROUND = 600.0, 10.0  # seconds at least of a stretch, and read before and after it

RecordingOrError: TypeAlias = Recording | tuple[str, ClocsError]  # or its name and the error


@dataclass(frozen=True)
class Piece:
    """A stretch of a long recording, with some frames before and after it."""

    result: RecordingOrError
    first: int  # frame of the whole recording at which it begins
    kept: slice  # which of its frames are of the stretch
    frames: int  # of the whole recording
    seconds: float  # of the whole recording

    @property
    def is_last(self) -> bool:
        return bool(self.first + self.kept.stop >= self.frames)


ReadFile: TypeAlias = RecordingOrError | Piece


def read_files(
    paths: Sequence[Path | str],
    options: ReadOptions,
    frame: FrameSpec,
    *,
    patients: Mapping[str, str] | Path | str | None = None,
    follow_links: bool = False,
) -> tuple[list[str], Iterator[ReadFile]]:
    """The names of the recordings in files, folders and zips, and the recordings one by one.

    Those of more than an hour come in pieces, of whole frames. `patients` and `follow_links` are
    those of `clocs.embed`.
    """
    found = find_recordings(paths, options, follow_links=follow_links)
    owners = _owners(found, patients)
    names = without_folders([one.name if isinstance(one, Found) else one[0] for one in found])
    planned = [
        (piece, name, owner)
        for one, name, owner in zip(found, names, owners, strict=True)
        for piece in _pieces(one, options, frame)
    ]

    def recordings() -> Iterator[ReadFile]:
        read = read_several((one for (one, _), _, _ in planned), options)
        for result, ((_, piece), name, owner) in zip(read, planned, strict=True):
            own: RecordingOrError
            if isinstance(result, Recording):  # what a header says may be a name
                own = replace(result, patient=owner or result.id)
            else:
                own = name, ClocsError(str(result[1]).replace(result[0], name))
            yield own if piece is None else replace(piece, result=own)

    return names, recordings()


def _pieces(
    one: Found | tuple[str, ClocsError], options: ReadOptions, frame: FrameSpec
) -> Iterator[tuple[Found | tuple[str, ClocsError], Piece | None]]:
    """What to read of a recording, and which piece of it that is; None for all of it."""
    try:
        seconds = one.seconds(options) if isinstance(one, Found) else None
    except (ClocsError, OSError):  # reading it says why
        seconds = None
    if not isinstance(one, Found) or seconds is None or seconds <= LONGEST:
        yield one, None
        return
    frames = int(frame_count(seconds, 1.0, frame))
    size, around = _whole_seconds(frame, STRETCH), _whole_seconds(frame, _AROUND)
    for start in range(0, frames, size):
        stop, first = min(start + size, frames), max(start - around, 0)
        end = min((stop + around) * frame.seconds, seconds)
        kept = slice(start - first, stop - first)
        yield (
            replace(one, start=first * frame.seconds, stop=end),
            Piece((one.name, SettingError("it was not read")), first, kept, frames, seconds),
        )


def _whole_seconds(frame: FrameSpec, least: float) -> int:
    """Frames that last so long at least, and whole seconds where that is possible.

    At most rates whole seconds are whole samples, so that no frame is shifted by a part of one.
    """
    fewest = math.ceil(least / frame.seconds - 1e-9)
    lengths = ((n, n * frame.seconds) for n in range(fewest, 2 * fewest + 100))
    return next((n for n, length in lengths if abs(length - round(length)) < 1e-6), fewest)


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


@dataclass(frozen=True)
class FileWindows:
    """A recording, or a stretch of a long one, and its windows, as an encoder sees them."""

    recording: Recording
    windows: Windows
    present: NDArray[np.bool_]  # (frames, leads wanted) which have a signal
    frame_of: NDArray[np.int64]  # (windows,) the frame of the whole recording that each is of
    reading: dict[str, Any]  # how it was read, by the columns of `READ_SCHEMA`
    first: int  # the first of these frames in the whole recording
    frames: int  # of the whole recording
    seconds: float  # of the whole recording

    def within(self, piece: Piece) -> FileWindows:
        """The same without the frames before and after the stretch."""
        kept = (self.frame_of >= piece.kept.start) & (self.frame_of < piece.kept.stop)
        return replace(
            self,
            windows=self.windows[kept],
            present=self.present[piece.kept],
            frame_of=piece.first + self.frame_of[kept],
            first=piece.first + piece.kept.start,
            frames=piece.frames,
            seconds=piece.seconds,
        )


def file_windows(
    recordings: Iterable[ReadFile],
    spec: InputSpec,
    progress: Callable[[int], None] = lambda done: None,
) -> Iterator[tuple[int, ReadFile, FileWindows | tuple[str, str]]]:
    """Each recording with its number, and how an encoder sees it; or its name and what is wrong.

    A long recording comes in stretches; those without a signal are left out. What is wrong with a
    later stretch is wrong with all of it. Recordings are cut ahead in threads.

    Args:
        recordings: Or their names and errors.
        spec: What the encoder takes.
        progress: Called with the number of recordings that were cut.
    """
    given: deque[ReadFile] = deque()  # of those that are being cut

    def each() -> Iterator[RecordingOrError]:
        for one in recordings:
            given.append(one)
            own = one.result if isinstance(one, Piece) else one
            yield placed(own, spec.known, spec.leads) if isinstance(own, Recording) else own

    number, some, lost = 0, False, False  # the recording's, whether it has windows, is given up
    runs = group_runs(each(), _shape, TOGETHER)
    for made in (one for run in prefetch(lambda run: _cut(run, spec), runs, _AHEAD) for one in run):
        read = given.popleft()
        done = not isinstance(read, Piece) or read.is_last
        if isinstance(made, FileWindows):
            some = True
            if not lost:
                yield number, read, made.within(read) if isinstance(read, Piece) else made
        elif not lost and ((done and not some) or not _is_empty(made[1])):
            lost = True
            yield number, read, (made[0], str(made[1]))
        if done:
            number, some, lost = number + 1, False, False
            progress(number)


def _is_empty(error: ClocsError) -> bool:
    """Whether a stretch has no signal, which others of the same recording may have."""
    if isinstance(error, UnusableError):
        return error.reason in ("flat", "nan")
    return isinstance(error, SettingError)  # it has none of the leads


def _shape(one: RecordingOrError) -> object:
    """Recordings of equal shape are cut together, unless they are long."""
    if not isinstance(one, Recording):
        return None
    return one.rate, one.samples, one.leads, object() if one.samples > LONG else ""


def _cut(
    run: Sequence[RecordingOrError], spec: InputSpec
) -> list[FileWindows | tuple[str, ClocsError]]:
    """The windows of each recording of one shape; or its name and why it has none."""
    made: list[FileWindows | tuple[str, ClocsError]] = []
    usable: list[tuple[int, Recording, NDArray[np.bool_]]] = []
    for one in run:
        if not isinstance(one, Recording):
            made.append(one)
            continue
        try:
            usable.append((len(made), *with_leads(one, spec.frame, spec.leads)))
            made.append((one.id, SettingError("it is not cut yet")))
        except ClocsError as error:
            made.append((one.id, error))
    if not usable:
        return made
    values, _ = cut_recordings([recording for _, recording, _ in usable], spec.frame)
    for (place, own, there), each in zip(usable, values, strict=True):
        whole = run[place]
        assert isinstance(whole, Recording)
        present = np.zeros((len(there), len(spec.leads)), np.bool_)
        present[:, [spec.leads.index(lead) for lead in own.leads]] = there
        made[place] = FileWindows(
            recording=whole,
            windows=spec.windows(own.leads, each.transpose(1, 0, 2), there),
            present=present,
            frame_of=spec.frame_of_rows(present),
            reading=reading_of(whole, spec.leads, np.asarray(present.any(axis=0))),
            first=0,
            frames=len(there),
            seconds=whole.seconds,
        )
    return made


def cut_recordings(
    own: Sequence[Recording], spec: FrameSpec
) -> tuple[NDArray[np.int16], NDArray[np.float64]]:
    """`cut_windows` of recordings of one rate and length, their gaps bridged."""
    return cut_windows(
        np.stack([bridged(one.digital, one.leads, one.gaps) for one in own]),
        np.stack([one.gain for one in own]),
        np.stack([one.baseline for one in own]).astype(np.int64),
        own[0].rate,
        int(frame_count(own[0].samples, own[0].rate, spec)),
        spec,
        "recording",
    )


def with_leads(
    recording: Recording, spec: FrameSpec, leads: Sequence[str]
) -> tuple[Recording, NDArray[np.bool_]]:
    """The recording with those of the leads that it has, and (frames, its leads) `present_in`.

    Raises:
        ClocsError: It is of no use, with the reason.
    """
    has = [lead for lead in leads if lead in recording.leads]
    if not has:
        raise SettingError(
            f"{recording.id} has none of the leads {', '.join(leads)}; "
            f"{how_to_choose(recording.leads)}"
        )
    own = recording.select(has)
    check_signal(own, frame=spec, known_leads=own.leads)
    present = present_in(own, spec)
    if not present.any():
        raise UnusableError(
            "flat",
            f"{recording.id} has no frame of {spec.seconds:g} s with a signal: each is flat or has "
            "a gap",
        )
    return own, present


def present_in(recording: Recording, spec: FrameSpec) -> NDArray[np.bool_]:
    """(frames, leads) whether a frame has a signal in a lead: neither flat nor with a gap."""
    start = cut([recording.samples], [recording.rate], spec).start
    present = np.ones((len(start), len(recording.leads)), np.bool_)
    derived = recording.extra.get(DERIVED, "").split(", ")
    recorded = [lead for lead in recording.leads if lead not in derived]
    for stretches, without in ((recording.gaps, touched), (flat_stretches(recording), within)):
        for one in stretches:
            lost = without(start, recording.rate, spec, one)
            for lead in leads_touched(one.lead, recorded):
                if lead in recording.leads:
                    present[:, recording.leads.index(lead)] &= ~lost
    return present


def embed_recordings(
    checkpoint: Checkpoint,
    recordings: Iterable[ReadFile],
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
    takes = InputSpec.from_checkpoint(checkpoint, spec, leads)
    rows: dict[int, dict[str, Any]] = {}  # of recordings, by number, as are the next two
    readings: dict[int, dict[str, Any]] = {}
    present: dict[int, NDArray[np.bool_]] = {}  # (frames, leads wanted)
    problems: dict[int, tuple[str, str]] = {}

    def windows() -> Iterator[Windows]:
        for number, _, one in file_windows(recordings, takes, progress):
            if isinstance(one, tuple):
                problems[number] = one
                continue
            row = file_row(one.recording)
            if number not in rows:
                rows[number], readings[number] = row, one.reading
                present[number] = np.zeros((one.frames, len(takes.leads)), np.bool_)
            else:  # a later stretch: the content key is of all of it
                keys = np.array([rows[number]["digest"], row["digest"]], np.uint64)
                rows[number]["digest"] = digest(keys.view(np.int16))
                readings[number] = joined_reading(readings[number], one.reading)
            present[number][one.first : one.first + len(one.present)] = one.present
            yield one.windows

    vectors = list(encoded(takes.checkpoint, windows(), device))
    if lost := rows.keys() & problems.keys():  # after some of their stretches were encoded
        counts = [len(takes.frame_of_rows(one)) for one in present.values()]
        kept = np.repeat([number not in lost for number in present], counts)
        vectors = [np.concatenate(vectors)[kept]]
    own = [number for number in rows if number not in lost]
    fewer = [rows[number]["recording"] for number in own if not present[number].any(axis=0).all()]
    if fewer:
        warnings.warn(
            f"{len(fewer)} of {len(own)} recordings, such as {fewer[0]}, lack some of the leads "
            f"{', '.join(takes.leads)} and are embedded from those they have",
            ClocsWarning,
            stacklevel=2,
        )
    places = [present[number] for number in own]
    if takes.known:
        places = [np.asarray(one.any(axis=1, keepdims=True), np.bool_) for one in places]
    ids = ("patient", "recording")
    read = [
        {"dataset": ""} | {name: rows[number][name] for name in ids} | readings[number]
        for number in own
    ]
    texts = dict.fromkeys(("dataset", *ids), pl.String)
    return collect(
        vectors,
        [level],
        rows_of_files(
            [rows[number] for number in own], places, (ALL_LEADS,) if takes.known else takes.leads
        ),
        takes.checkpoint.encoder.embedding_dim,
        pl.DataFrame(read, schema={**texts, **READ_SCHEMA}),
        encoder=takes.checkpoint.fingerprint,
        problems=tuple(problems.values()),
        frame=takes.frame.seconds,
        leads=takes.leads,
    )[level]


def cut_each(recordings: Iterable[Recording], spec: InputSpec) -> list[FileWindows | ClocsError]:
    """Each recording as an encoder sees it; or why it has no window.

    They may have equal names, and be of any mixture of rates, leads and lengths.
    """
    own = (placed(one, spec.known, spec.leads) for one in recordings)
    return [
        one[1] if isinstance(one, tuple) else one
        for run in group_runs(own, _shape, TOGETHER)
        for one in _cut(run, spec)
    ]


def embed_each(
    made: Sequence[FileWindows | ClocsError], spec: InputSpec
) -> list[NDArray[np.float32] | ClocsError]:
    """The (dim,) unit vector of each recording that `cut_each` has cut, or why it has none.

    The vectors are those of `embed_recordings`, bit for bit.
    """
    usable = [one.windows for one in made if not isinstance(one, ClocsError)]
    owner = np.repeat(np.arange(len(usable)), [len(one) for one in usable])
    means = UnitMeans(owner, len(usable), spec.checkpoint.encoder.embedding_dim)
    for part in encoded(spec.checkpoint, usable):
        means.add(part)
    zero = SettingError("its embedding is a zero vector, which has no direction")
    found = iter(zip(means.vectors, means.nonzero, strict=True))
    results: list[NDArray[np.float32] | ClocsError] = []
    for one in made:
        if isinstance(one, ClocsError):
            results.append(one)
        else:
            vector, is_nonzero = next(found)
            results.append(vector if is_nonzero else zero)
    return results
