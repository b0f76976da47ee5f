"""Runs: frames of a recording whose signals lie one after another, so that others can be cut."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from clocs.errors import ClocsWarning, SettingError
from clocs.frames.frames import ABSENT, Frames


def runs(frames: Frames, *, of_one_label: bool) -> NDArray[np.int64]:
    """(frames,) the number of the run that each frame is in.

    A run is a stretch of one recording without gaps, with the same leads all along, and with the
    same labels if it is `of_one_label`.
    """
    if not len(frames):
        return np.zeros(0, np.int64)
    starts, there = frames.starts, frames.present
    # packed frames lie next to one another even where one between them was left out
    same = (frames.recording[1:] == frames.recording[:-1]) & (np.diff(frames.segment) == 1)
    same &= (there[1:] == there[:-1]).all(axis=1) & there[1:].any(axis=1)
    if of_one_label:
        same &= (frames.target[1:] == frames.target[:-1]).all(axis=1)
    scale = np.where(there, frames.scale, 0)
    same &= (scale[1:] == scale[:-1]).all(axis=1)
    step = np.diff(starts, axis=0)
    any_lead = there[1:].argmax(axis=1)
    moved = step[np.arange(len(step)), any_lead][:, None]
    same &= ((step == moved) | ~there[1:]).all(axis=1)
    same &= ((moved > 0) & (moved <= frames.spec.samples))[:, 0]
    return np.concatenate(([0], np.cumsum(~same)))


def room(frames: Frames) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(frames,) how many samples earlier, and later, a frame could begin within its run."""
    number, place = runs(frames, of_one_label=True), any_start(frames)
    first, last = ends(number)
    return place - place[first][number], place[last][number] - place


def with_seconds(frames: Frames, seconds: float) -> Frames:
    """The same recordings in frames of another duration at the same rate.

    A run is covered by as few frames as it needs, spread evenly, which overlap where it is no
    multiple of the duration. Recordings that are shorter are left out, with a warning.
    """
    spec = replace(frames.spec, seconds=seconds, samples=round(seconds * frames.spec.rate))
    if spec.samples == frames.spec.samples:
        return frames
    number, place = runs(frames, of_one_label=True), any_start(frames)
    first, last = ends(number)
    length = place[last] - place[first] + frames.spec.samples
    counts = np.where(length >= spec.samples, -(-length // spec.samples), 0)
    if not counts.any():
        raise SettingError(
            f"no stretch of a recording of {frames.dataset} has {seconds:g} s; give fewer `seconds`"
        )
    row = np.repeat(first, counts)
    step = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
    spread = (length - spec.samples)[number[row]] / np.maximum(counts[number[row]] - 1, 1)
    offset = np.rint(step * spread).astype(np.int64)
    recording = frames.recording[row]
    lost = len(np.unique(frames.recording)) - len(np.unique(recording))
    if lost:
        warnings.warn(
            f"{lost:,} recordings of {frames.dataset} have no {seconds:g} s without a gap and are "
            "left out",
            ClocsWarning,
            stacklevel=2,
        )
    own = np.unique(recording, return_index=True, return_inverse=True)
    starts = frames.starts[row]
    return replace(
        frames,
        spec=spec,
        starts=np.where(starts == ABSENT, ABSENT, starts + offset[:, None]),
        scale=frames.scale[row],
        recording=recording,
        patient=frames.patient[row],
        segment=(np.arange(len(row)) - own[1][own[2]]).astype(np.int32),
        split=frames.split[row],
        target=frames.target[row],
    )


def ends(number: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The first and last frame of each run; number: (frames,) of the run."""
    first = np.unique(number, return_index=True)[1]
    return first, np.append(first[1:], len(number)) - 1


def any_start(frames: Frames) -> NDArray[np.int64]:
    """(frames,) where a lead that is there begins; 0 where none is."""
    found = frames.starts[np.arange(len(frames)), frames.present.argmax(axis=1)]
    return np.asarray(np.maximum(found, 0), np.int64)
