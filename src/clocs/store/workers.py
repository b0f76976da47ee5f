"""Who reads: forked processes where that is safe, else threads. Both are a `Crew` of `intake`."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from clocs.datasets.base import Dataset, Entry
from clocs.store.intake import Crew, Outcome, read_one

MOST_WORKERS = 16

# Their own threads do not survive a fork, and locks that these held would stay locked.
_NOT_TO_FORK = ("polars", "torch")


def start_crew(dataset: Dataset, workers: int | None = None) -> Crew:
    """Workers that read from `dataset`; by default one a core, at most 16.

    Processes share no interpreter lock, which half of reading a WFDB record holds. They are forked:
    started afresh, each would import everything again. Only Linux forks safely, and only early.
    """
    workers = workers or _default_workers()
    if sys.platform == "linux" and not any(name in sys.modules for name in _NOT_TO_FORK):
        from clocs.store.fork_workers import ForkCrew

        return ForkCrew(dataset, workers)
    return ThreadCrew(dataset, workers)


class ThreadCrew:
    """Threads of this process."""

    def __init__(self, dataset: Dataset, workers: int) -> None:
        self._dataset = dataset
        self._most = 2 * workers
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="prepare")
        self._flying: deque[Future[list[Outcome]]] = deque()

    @property
    def has_room(self) -> bool:
        return len(self._flying) < self._most

    @property
    def is_idle(self) -> bool:
        return not self._flying

    def submit(self, entries: Sequence[Entry]) -> None:
        self._flying.append(self._pool.submit(self._read, entries))

    def take(self) -> list[Outcome]:
        return self._flying.popleft().result()

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    def _read(self, entries: Sequence[Entry]) -> list[Outcome]:
        return [read_one(self._dataset, entry) for entry in entries]


def _default_workers() -> int:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min(cores or 1, MOST_WORKERS)
