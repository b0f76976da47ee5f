"""Readers of a dataset's entries: in order, with a bounded number in flight.

They are processes, in which a file that takes too much memory or time does no harm, or else
threads of this process, without limits.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from clocs.datasets.base import Dataset, Entry, Listing, Quarantined
from clocs.errors import ClocsError, SourceError, StoreError, UnusableError
from clocs.files import default_processes, prefetch, reading_limits
from clocs.recording import Recording, check_plausible, flat_stretches
from clocs.store.table import row_of
from clocs.workers import EndedError, LimitedWorkers, UnsendableError

_BATCH_BYTES = 2 << 20  # of samples, roughly, that one task reads
_BATCH_ENTRIES = 16
_LISTING = 10  # times as long as for one recording
# Their threads do not survive a fork, and locks held by these would stay locked.
_NOT_TO_FORK = ("polars", "torch", "ray", "fsspec.asyn")


# A recording on its way to the store: its table row, still without an offset, and its samples.
ReadRecording: TypeAlias = tuple[dict[str, Any], NDArray[np.int16]]
ReadResult: TypeAlias = ReadRecording | Quarantined


class Readers:
    """Readers of one dataset; `close` ends them."""

    def __init__(
        self,
        dataset: Dataset,
        workers: int | None = None,
        *,
        to_list: bool = True,
        threads: bool = False,
    ) -> None:
        """Start the readers.

        Processes share no interpreter lock, which half of reading a WFDB record holds, and can be
        limited. They are forked where that is safe, on Linux and early: started afresh, each
        imports everything again. Datasets without files, and those that cannot be sent to another
        process, are then read in threads.

        Args:
            dataset: What to read.
            workers: How many; by default one per core, at most 16.
            to_list: Whether processes begin to list the dataset at once; `list` waits for it.
            threads: Whether to use threads in any case.
        """
        self._dataset, self._workers = dataset, workers or default_processes()
        act, limits = partial(_read_or_list, dataset), reading_limits()
        fork = sys.platform == "linux" and not any(name in sys.modules for name in _NOT_TO_FORK)
        self._pool: LimitedWorkers[Entry | None, ReadResult | Listing] | None = None
        if not threads and (fork or getattr(dataset, "source", None) is not None):
            with suppress(UnsendableError):
                self._pool = LimitedWorkers(act, self._refused, self._workers, limits, fork=fork)
        if to_list and self._pool is not None:
            self._pool.submit([None], seconds=_LISTING * limits.seconds)

    def list(self) -> Listing:
        """The dataset's listing; taken first, and once."""
        if self._pool is None:
            return self._dataset.list()
        (listing,) = self._taken(self._pool)
        return cast("Listing", listing)

    def read(self, entries: Iterable[Entry]) -> Iterator[Sequence[ReadResult]]:
        """Results of all entries in order, in batches; samples hold until the next batch."""
        if self._pool is None:
            act = partial(read_one, self._dataset)
            for one in prefetch(act, entries, 2 * self._workers, threads=self._workers):
                yield (one,)
            return
        left = iter(entries)
        flying = 0
        size = 1  # grows once the size of recordings is known, so that memory stays bounded
        while True:
            while flying < self._pool.most and (batch := list(islice(left, size))):
                self._pool.submit(batch)
                flying += 1
            if not flying:
                return
            results = cast("Sequence[ReadResult]", self._taken(self._pool))
            flying -= 1
            sizes = [one[1].nbytes for one in results if isinstance(one, tuple)]
            largest = max(sizes, default=1)
            size = max(1, min(_BATCH_ENTRIES, 2 * size, _BATCH_BYTES // largest))
            yield results

    def close(self) -> None:
        """End the processes or threads."""
        if self._pool is not None:
            self._pool.close()

    def _taken(
        self, pool: LimitedWorkers[Entry | None, ReadResult | Listing]
    ) -> Sequence[ReadResult | Listing]:
        try:
            return pool.take()
        except EndedError:
            raise StoreError(
                "a process that reads recordings was ended from outside, perhaps for lack of "
                "memory; run the same `clocs prepare` again to resume, with fewer `workers` if "
                "need be"
            ) from None

    def _refused(self, entry: Entry | None, why: str) -> ReadResult:
        if entry is None:
            source = getattr(getattr(self._dataset, "source", None), "path", self._dataset.name)
            raise SourceError(f"the label tables of {source} {why}; check that they are genuine")
        return Quarantined(entry.id, "exceeds limits", f"{entry.path} {why}")


def _read_or_list(dataset: Dataset, entry: Entry | None) -> ReadResult | Listing:
    """Read an entry; for None, list all of them: label tables may be bombs, too."""
    return dataset.list() if entry is None else read_one(dataset, entry)


def read_one(dataset: Dataset, entry: Entry) -> ReadResult:
    """Read an entry; what is wrong with the recording itself is a result, too.

    Any other error is not the recording's fault and stops preparing: a missing package with a
    sentence, a defect with its traceback.
    """
    try:
        recording = dataset.read(entry)
        if recording.digital.size == 0:
            raise UnusableError("too short", "it holds no samples")
        check_plausible(recording)
    except UnusableError as error:
        return Quarantined(entry.id, error.reason, error.detail)
    except ImportError as error:
        raise ClocsError(
            f"{entry.path} needs a package that cannot be imported ({error}); install it, then run "
            "the same `clocs prepare` again to resume"
        ) from error
    except Exception as error:
        error.add_note(f"while reading {entry.path}; run the same `clocs prepare` again to resume")
        raise
    _expect_sound(recording)
    digital = np.ascontiguousarray(recording.digital)
    row = row_of(recording)
    if recording.named is not None:
        row["named"] = recording.named
    if dataset.skip_flat:
        row["flat"] = flat_stretches(recording)
    return row, digital.reshape(-1)


def _expect_sound(recording: Recording) -> None:
    leads = len(recording.leads)
    if recording.digital.dtype != np.int16 or recording.digital.ndim != 2:
        raise TypeError("samples are not (leads, samples) of int16")
    if not recording.digital.shape[0] == recording.gain.size == recording.baseline.size == leads:
        raise ValueError(f"{leads} lead names, but other numbers of samples, gains or baselines")
    if len(set(recording.leads)) != leads:
        raise ValueError("a lead occurs twice")
    for gap in recording.gaps:
        if gap.lead not in recording.leads or not 0 <= gap.start < gap.stop <= recording.samples:
            raise ValueError(f"{gap} is no stretch of a lead of this recording")
