"""Mean embeddings of recordings, or of stretches of them, streamed: what a classifier reads.

Windows are encoded in batches, whatever recording they are of; of unfinished recordings only the
sum is kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from clocs.models.abstention import window_quality
from clocs.patients.encode import Windows, encoded_by_all
from clocs.patients.reading import Reading
from clocs.training.checkpoint import Checkpoint

_TOGETHER = 512  # windows whose quality is measured at once


@dataclass(frozen=True)
class Item:
    """A recording to be predicted, or a part of it, or why it cannot be."""

    dataset: str | None  # of a store
    file: str | None  # its name, where it is of no store
    patient: str | None
    recording: str | None
    seconds: float | None
    frames: int  # whole ones, with a signal or without
    windows: Windows | None = None
    frame_of: NDArray[np.int64] | None = None  # (windows,) ascending
    problem: str | None = None
    reading: Reading | None = None
    continues: bool = False  # whether it is of the same recording as the item before


@dataclass(frozen=True)
class Stretch:
    """A recording or a part of it; one row of a table."""

    item: Item  # without its windows
    start: float  # seconds from the beginning of the recording
    end: float
    rows: int  # windows with a signal
    problem: str | None


@dataclass(frozen=True)
class Means:
    """Stretches, and the mean vectors of those that have a signal."""

    stretches: list[Stretch]
    quality: NDArray[np.float64]  # (stretches,) mean over frames and leads; nan without a signal
    flat: NDArray[np.float64]  # (stretches,) mean share of the time that is flat
    at: NDArray[np.int64]  # (n,) their places in `stretches`
    vectors: NDArray[np.float32]  # (members, n, dim)

    def without(self, void: Sequence[int]) -> Means:
        """The others alone."""
        kept = np.ones(len(self.stretches), np.bool_)
        kept[list(void)] = False
        some = kept[self.at]
        return Means(
            [self.stretches[place] for place in np.flatnonzero(kept)],
            self.quality[kept],
            self.flat[kept],
            (np.cumsum(kept) - 1)[self.at[some]],
            self.vectors[:, some],
        )


def mean_vectors(
    checkpoints: Sequence[Checkpoint],
    items: Iterator[Item],
    together: int | None,
    device: torch.device | str = "cpu",
) -> Means:
    """Encode the windows of all items by all members, and average them.

    Args:
        checkpoints: The members.
        items: Recordings.
        together: Frames of a stretch; None for whole recordings.
        device: Where to compute.
    """
    frame = checkpoints[0].card.frame
    stretches: list[Stretch] = []
    numbers: list[NDArray[np.int64]] = []  # the stretches of all windows
    waiting: list[NDArray[np.int64]] = []  # of those that are not yet encoded
    void: list[int] = []  # stretches of recordings of which a later part has a problem
    quality = _Quality(frame.rate)

    def windows() -> Iterator[Windows]:
        first = 0  # stretch of the recording
        for item in items:
            plain = replace(item, frames=0, windows=None, frame_of=None, problem=None)
            if item.windows is None or item.frame_of is None:
                void.extend(range(first, len(stretches)) if item.continues else ())
                stretches.append(Stretch(plain, 0.0, item.seconds or 0.0, 0, item.problem))
                continue
            size = together or max(1, item.frames)
            if item.continues and item.reading and (before := stretches[first].item.reading):
                whole = replace(plain, reading=before.joined(item.reading))
                stretches[first:] = [replace(one, item=whole) for one in stretches[first:]]
            if not item.continues:
                first, end = len(stretches), item.frames * frame.seconds
                for start in np.arange(0, item.frames, size) * frame.seconds:
                    stop = min(start + size * frame.seconds, end)
                    stretches.append(Stretch(plain, float(start), stop, 0, None))
            number = first + item.frame_of // size
            numbers.append(number)
            waiting.append(number)
            quality.add(number, item.windows)
            yield item.windows

    at: list[NDArray[np.int64]] = []
    sums: list[NDArray[np.float64]] = []
    for z in encoded_by_all(checkpoints, windows(), frame.samples, device):
        queue = np.concatenate(waiting)
        own, waiting[:] = queue[: z.shape[1]], [queue[z.shape[1] :]]
        begins = np.flatnonzero(np.diff(own, prepend=-1))
        part = np.add.reduceat(z.astype(np.float64), begins, axis=1)
        if at and at[-1][-1] == own[0]:  # the last stretch goes on
            sums[-1][:, -1] += part[:, 0]
            begins, part = begins[1:], part[:, 1:]
        if len(begins):
            at.append(own[begins])
            sums.append(part)
    counts = np.bincount(_joined(numbers), minlength=len(stretches))
    no_signal = "no signal: every lead is flat, missing or in a gap in all of its frames"
    stretches = [
        replace(one, rows=rows, problem=one.problem or (None if rows else no_signal))
        for one, rows in zip(stretches, counts.tolist(), strict=True)
    ]
    places = _joined(at)
    dim = checkpoints[0].encoder.embedding_dim
    total = np.concatenate([np.zeros((len(checkpoints), 0, dim)), *sums], axis=1)
    vectors = (total / counts[places][:, None]).astype(np.float32)
    found = Means(stretches, *quality.means(len(stretches)), places, vectors)
    return found.without(void) if void else found


def _joined(parts: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    return np.concatenate([np.zeros(0, np.int64), *parts])


class _Quality:
    """Quality of stretches, of many windows at a time: small batches would wait for threads."""

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self.waiting: list[tuple[NDArray[np.int64], Windows]] = []
        self.found: list[tuple[NDArray[np.int64], NDArray[np.float64]]] = []  # (n,), (3, n)

    def add(self, stretch: NDArray[np.int64], windows: Windows) -> None:
        """stretch: (windows,) to which each belongs."""
        self.waiting.append((stretch, windows))
        if sum(len(own) for own, _ in self.waiting) >= _TOGETHER:
            self._measure()

    def means(self, count: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """(count,) quality and flat share of the stretches, nan without a window."""
        if self.waiting:
            self._measure()
        stretch = _joined([own for own, _ in self.found])
        sums = np.concatenate([np.zeros((3, 0)), *(one for _, one in self.found)], axis=1)
        own, flat, leads = (np.bincount(stretch, one, minlength=count) for one in sums)
        nothing = np.where(leads > 0, 0.0, np.nan)
        return own / np.maximum(leads, 1) + nothing, flat / np.maximum(leads, 1) + nothing

    def _measure(self) -> None:
        pieces = [windows for _, windows in self.waiting]
        pairs = [
            one if isinstance(one, tuple) else (one[:, None], np.ones((len(one), 1), np.bool_))
            for one in pieces
        ]
        values, there = (np.concatenate(part) for part in zip(*pairs, strict=True))
        stretch = np.concatenate([own for own, _ in self.waiting])
        self.found.append((stretch, window_quality(values, there, self.rate)))
        self.waiting.clear()
