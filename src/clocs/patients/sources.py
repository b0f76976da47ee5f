"""What is embedded or predicted: stores, and recordings of files, read and cut ahead in threads.

A recording of more than an hour is read and cut in stretches, where its format can be. Each stretch
is read with some seconds before and after it, so that its frames are those of the whole recording,
filtered and resampled, to the last digits.
"""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from clocs.errors import ClocsError, SettingError, UnusableError
from clocs.files import group_runs, prefetch
from clocs.formats.addresses import Address, parse_path_or_url
from clocs.formats.base import ReadOptions
from clocs.formats.read import Found, find_recordings, read_several, without_folders
from clocs.frames.signals import TOGETHER, frame_count
from clocs.measurements.check import Finding, examine
from clocs.patients.cohort import Cohort, of_cohort
from clocs.patients.encode import CutRecording, InputSpec, cut_run, placed, shape_of
from clocs.recording import FrameSpec, Recording
from clocs.store.manifest import MANIFEST
from clocs.store.store import Store, as_store, expect_different_stores

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


ReadFile: TypeAlias = RecordingOrError | Piece


def stores_and_files(
    sources: Sequence[object],
    *,
    split: str | None,
    cohort: Cohort | Path | str | Iterable[str] | None,
) -> tuple[list[tuple[Store, NDArray[np.bool_] | None]], list[Path | str]]:
    """Stores, each with the recordings of the cohort; and paths and addresses of all else.

    The arguments are those of `clocs.embed`, and SettingError says which of them does not fit.
    """
    if not sources:
        raise SettingError("there is nothing to read; give at least one store or file")
    stores: list[Store] = []
    files: list[Path | str] = []
    for source in sources:
        if not isinstance(source, Store | str | os.PathLike):
            raise SettingError(
                "`sources` are stores, or the paths of files, folders and zips, not "
                f"{type(source).__name__}; save a signal as a file (.csv, .hea) first"
            )
        place = source if isinstance(source, Store) else parse_path_or_url(source)
        if isinstance(place, Store) or (place / MANIFEST).is_file():
            stores.append(as_store(place))
        else:
            files.append(place.url if isinstance(place, Address) else place)
    if split is not None and not stores:
        raise SettingError("files belong to no split; leave out `split`")
    if cohort is not None and files:
        raise SettingError("`cohort` chooses patients of stores; leave it out with files")
    if not stores:
        return [], files
    expect_different_stores(stores)
    return list(zip(stores, of_cohort(cohort, stores), strict=True)), files


def read_files(
    paths: Sequence[Path | str], options: ReadOptions, frame: FrameSpec
) -> tuple[list[str], Iterator[ReadFile]]:
    """The names of the recordings in files, folders and zips, and the recordings one by one.

    Each counts as one patient. Those of more than an hour come in pieces, of whole frames.
    """
    found = find_recordings(paths, options)
    names = without_folders([one.name if isinstance(one, Found) else one[0] for one in found])
    planned = [
        (piece, name)
        for one, name in zip(found, names, strict=True)
        for piece in _pieces(one, options, frame)
    ]

    def recordings() -> Iterator[ReadFile]:
        read = read_several((one for (one, _), _ in planned), options)
        for result, ((_, piece), name) in zip(read, planned, strict=True):
            own: RecordingOrError
            if isinstance(result, Recording):  # what a header says may be a name
                own = replace(result, patient=result.id)
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


def file_windows(
    recordings: Iterable[ReadFile],
    spec: InputSpec,
    progress: Callable[[int], None] = lambda done: None,
    *,
    correct: bool = False,
) -> Iterator[tuple[int, ReadFile, CutRecording | tuple[str, str]]]:
    """Each recording with its number, and how an encoder sees it; or its name and what is wrong.

    A long recording comes in stretches; those without a signal are left out. What is wrong with a
    later stretch is wrong with all of it. Recordings are examined and cut ahead in threads; of a
    long one, the first stretch tells what may be wrong with it.

    Args:
        recordings: Or their names and errors.
        spec: What the encoder takes.
        progress: Called with the number of recordings that were cut.
        correct: Whether to correct what is certainly wrong; not in long recordings.
    """
    given: deque[tuple[ReadFile, Sequence[Finding]]] = deque()  # of those that are being cut

    def examined(one: ReadFile) -> tuple[ReadFile, RecordingOrError, Sequence[Finding]]:
        own = one.result if isinstance(one, Piece) else one
        if not isinstance(own, Recording) or (isinstance(one, Piece) and one.first):
            return one, own, ()
        return one, *examine(own, correct=correct and one is own)

    def each() -> Iterator[RecordingOrError]:
        for one, own, found in prefetch(examined, recordings, _AHEAD):
            given.append((one, found))
            yield placed(own, spec.known, spec.leads) if isinstance(own, Recording) else own

    number, some, lost = 0, False, False  # the recording's, whether it has windows, is given up
    runs = group_runs(each(), shape_of, TOGETHER)
    for run in prefetch(lambda run: cut_run(run, spec), runs, _AHEAD):
        for made in run:
            read, found = given.popleft()
            piece = read if isinstance(read, Piece) else None
            done = piece is None or piece.first + piece.kept.stop >= piece.frames
            if isinstance(made, CutRecording):
                some = True
                if not lost:
                    noted = made.with_findings(found)
                    yield number, read, noted if piece is None else _within(noted, piece)
            elif not lost and ((done and not some) or not _is_empty(made[1])):
                lost = True
                yield number, read, (made[0], str(made[1]))
            if done:
                number, some, lost = number + 1, False, False
                progress(number)


def _within(made: CutRecording, piece: Piece) -> CutRecording:
    """The same without the frames before and after the stretch."""
    kept = (made.frame_of >= piece.kept.start) & (made.frame_of < piece.kept.stop)
    return replace(
        made,
        windows=made.windows[kept],
        present=made.present[piece.kept],
        frame_of=piece.first + made.frame_of[kept],
        first=piece.first + piece.kept.start,
        frames=piece.frames,
        seconds=piece.seconds,
    )


def _is_empty(error: ClocsError) -> bool:
    """Whether a stretch has no signal, which others of the same recording may have."""
    if isinstance(error, UnusableError):
        return error.reason in ("flat", "nan")
    return isinstance(error, SettingError)  # it has none of the leads
