"""Mean embeddings of recordings, or of stretches of them, streamed: what a classifier reads.

Windows are encoded in batches, whatever recording they are of; of unfinished recordings only the
sum is kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from clocs.models.quality import window_quality
from clocs.patients.encode import Windows, encoded_by_all
from clocs.training.checkpoint import Checkpoint

_TOGETHER = 512  # windows whose quality is measured at once


@dataclass(frozen=True)
class Item:
    """A recording to be predicted, or why it cannot be."""

    dataset: str | None  # of a store
    file: str | None  # its name, where it is of no store
    patient: str | None
    recording: str | None
    seconds: float | None
    frames: int  # whole ones, with a signal or without
    windows: Windows | None = None
    frame_of: NDArray[np.int64] | None = None  # (windows,) ascending
    problem: str | None = None


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
    at: NDArray[np.int64]  # (n,) their places in `stretches`
    vectors: NDArray[np.float32]  # (members, n, dim)


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
    waiting: list[NDArray[np.int64]] = []  # the stretches of windows that are not yet encoded
    quality = _Quality(frame.rate)

    def windows() -> Iterator[Windows]:
        for item in items:
            first = len(stretches)
            plain = Item(item.dataset, item.file, item.patient, item.recording, item.seconds, 0)
            if item.windows is None or item.frame_of is None:
                stretches.append(Stretch(plain, 0.0, item.seconds or 0.0, 0, item.problem))
                continue
            size = together or max(1, item.frames)
            number = item.frame_of // size
            count = -(-item.frames // size)
            rows = np.bincount(number, minlength=count)
            for k in range(count):
                start, end = k * size * frame.seconds, (k + 1) * size * frame.seconds
                some = bool(rows[k])
                stretches.append(
                    Stretch(
                        plain,
                        start,
                        min(end, item.frames * frame.seconds),
                        int(rows[k]),
                        None if some else "no frame of it has a signal",
                    )
                )
            waiting.append(first + number)
            quality.add(first + number, item.windows)
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
    if not at:
        none = np.zeros((len(checkpoints), 0, checkpoints[0].encoder.embedding_dim), np.float32)
        return Means(stretches, quality.means(len(stretches)), np.zeros(0, np.int64), none)
    places = np.concatenate(at)
    rows = np.array([stretches[place].rows for place in places])
    total = np.concatenate(sums, axis=1)
    vectors = (total / rows[:, None]).astype(np.float32)
    return Means(stretches, quality.means(len(stretches)), places, vectors)


class _Quality:
    """Quality of stretches, of many windows at a time: small batches would wait for threads."""

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self.waiting: list[tuple[NDArray[np.int64], Windows]] = []
        self.found: list[tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.int64]]] = []

    def add(self, stretch: NDArray[np.int64], windows: Windows) -> None:
        """stretch: (windows,) to which each belongs."""
        self.waiting.append((stretch, windows))
        if sum(len(own) for own, _ in self.waiting) >= _TOGETHER:
            self._measure()

    def means(self, count: int) -> NDArray[np.float64]:
        """(count,) of the stretches, nan without a window."""
        if self.waiting:
            self._measure()
        if not self.found:
            return np.full(count, np.nan)
        stretch, own, present = (np.concatenate(part) for part in zip(*self.found, strict=True))
        total = np.bincount(stretch, own, minlength=count)
        leads = np.bincount(stretch, present, minlength=count)
        return np.where(leads > 0, total / np.maximum(leads, 1), np.nan)

    def _measure(self) -> None:
        pieces = [windows for _, windows in self.waiting]
        joined: Windows
        if isinstance(pieces[0], tuple):
            pairs = [one for one in pieces if isinstance(one, tuple)]
            values, there = (np.concatenate(part) for part in zip(*pairs, strict=True))
            joined = values, there
        else:
            joined = np.concatenate([one for one in pieces if not isinstance(one, tuple)])
        stretch = np.concatenate([own for own, _ in self.waiting])
        self.found.append((stretch, *window_quality(joined, self.rate)))
        self.waiting.clear()
