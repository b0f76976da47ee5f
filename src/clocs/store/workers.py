"""Workers that read the entries of a dataset, in order, with a bounded number in flight.

`ThreadWorkers` are threads of this process; `fork_workers` has forked processes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from clocs.datasets.base import Dataset, Entry, Quarantined
from clocs.errors import ClocsError, UnusableError
from clocs.recording import Recording
from clocs.store.columns import row_of

_BATCH_BYTES = 2 << 20  # of samples, roughly, that one task reads
_BATCH_ENTRIES = 16


@dataclass(slots=True)
class ReadRecording:
    """A recording on its way to the store: its table row, still without an offset, and samples."""

    row: dict[str, Any]
    flat: NDArray[np.int16]


ReadResult: TypeAlias = ReadRecording | Quarantined


class Workers(Protocol):
    """Workers that read batches of entries."""

    @property
    def has_room(self) -> bool: ...
    @property
    def is_idle(self) -> bool: ...
    def submit(self, entries: Sequence[Entry]) -> None: ...
    def take(self) -> list[ReadResult]:
        """The results of the oldest batch; their samples hold until the next `submit`."""
        ...

    def close(self) -> None: ...


def read_all(workers: Workers, entries: Sequence[Entry]) -> Iterator[list[ReadResult]]:
    """Results of all entries in order, in batches; samples hold until the next batch."""
    left = iter(entries)
    size = 1  # grows once the size of recordings is known, so that memory stays bounded
    while True:
        while workers.has_room and (batch := list(islice(left, size))):
            workers.submit(batch)
        if workers.is_idle:
            return
        results = workers.take()
        largest = max(
            (one.flat.nbytes for one in results if isinstance(one, ReadRecording)), default=1
        )
        size = max(1, min(_BATCH_ENTRIES, 2 * size, _BATCH_BYTES // largest))
        yield results


def read_one(dataset: Dataset, entry: Entry) -> ReadResult:
    """Read an entry; what is wrong with the recording itself is a result, too.

    Any other error is not the recording's fault and stops preparing: a missing package with a
    sentence, a defect with its traceback.
    """
    try:
        recording = dataset.read(entry)
        if recording.digital.size == 0:
            raise UnusableError("too short", "it holds no samples")
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
    return ReadRecording(row_of(recording), digital.reshape(-1))


def _expect_sound(recording: Recording) -> None:
    leads = len(recording.leads)
    if recording.digital.dtype != np.int16 or recording.digital.ndim != 2:
        raise TypeError("samples are not (leads, samples) of int16")
    if not recording.digital.shape[0] == recording.gain.size == recording.baseline.size == leads:
        raise ValueError(f"{leads} lead names, but other numbers of samples, gains or baselines")
    if len(set(recording.leads)) != leads:
        raise ValueError("a lead occurs twice")


class ThreadWorkers:
    """Threads of this process."""

    def __init__(self, dataset: Dataset, workers: int) -> None:
        self._dataset = dataset
        self._most = 2 * workers
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="prepare")
        self._flying: deque[Future[list[ReadResult]]] = deque()

    @property
    def has_room(self) -> bool:
        return len(self._flying) < self._most

    @property
    def is_idle(self) -> bool:
        return not self._flying

    def submit(self, entries: Sequence[Entry]) -> None:
        self._flying.append(self._pool.submit(self._read, entries))

    def take(self) -> list[ReadResult]:
        return self._flying.popleft().result()

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    def _read(self, entries: Sequence[Entry]) -> list[ReadResult]:
        return [read_one(self._dataset, entry) for entry in entries]
