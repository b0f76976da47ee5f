"""Micro-batching: few threads compute; what arrives while they do is computed together.

A request alone is computed at once. While batches are computed, others wait in a queue of limited
length, and all of one task form the next batch: the busier the service, the larger the batches.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from clocs.web.shield import RefusedError

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, eq=False)
class _Job(Generic[K, T, R]):
    task: K
    items: Sequence[T]
    size: float
    answer: asyncio.Future[list[R]]


class Batcher(Generic[K, T, R]):
    """Computes items in batches; only the event loop's thread changes what it holds.

    Args:
        compute: A task and its items -> one result per item, in order.
        queue: The total size of what may wait or be computed; one request of any size fits into an
            empty queue.
        together: The total size of a batch from which on nothing is added to it.
        threads: That compute, each a batch of its own.
        on_batch: Called with the size of each batch and whether nothing else waits or is computed,
            by the thread that computes it.
    """

    def __init__(
        self,
        compute: Callable[[K, list[T]], list[R]],
        *,
        queue: float,
        together: float,
        threads: int = 1,
        on_batch: Callable[[int, bool], None] = lambda items, alone: None,
    ) -> None:
        self._compute, self._on_batch = compute, on_batch
        self.queue, self.together = queue, together
        self.size = 0.0  # of all jobs without an answer
        self._waiting: list[_Job[K, T, R]] = []
        self._busy, self._most = 0, threads  # threads that compute, and all of them
        self._threads = ThreadPoolExecutor(threads, "clocs-batches")
        self.close = self._threads.shutdown

    def expect_room(self, size: float = 0.0) -> None:
        """Refuse what does not fit into the queue."""
        if self.size and self.size + size >= self.queue:
            raise RefusedError(
                429, "too many recordings are waiting; try again in a moment", {"retry-after": "1"}
            )

    async def run(self, task: K, items: Sequence[T], size: float, seconds: float) -> list[R]:
        """One result per item, after at most so many seconds."""
        self.expect_room(size)
        loop = asyncio.get_running_loop()
        job = _Job[K, T, R](task, items, size, loop.create_future())
        self._waiting.append(job)
        self.size += size
        loop.call_soon(self._start)  # after all that arrived in this turn of the event loop
        try:
            async with asyncio.timeout(seconds):
                return await job.answer
        except TimeoutError:
            raise RefusedError(
                503,
                f"the recordings were not computed within {seconds:g} s; send fewer, or try again",
                {"retry-after": "1"},
            ) from None
        finally:
            self.size -= size

    def _start(self) -> None:
        """Hand the oldest job and those of the same task to a thread, while one is free."""
        while self._busy < self._most:
            waiting = [job for job in self._waiting if not job.answer.done()]  # nobody gave it up
            jobs: list[_Job[K, T, R]] = []
            size = 0.0
            for job in waiting:
                if job.task == waiting[0].task and (not jobs or size + job.size <= self.together):
                    jobs.append(job)
                    size += job.size
            self._waiting = [job for job in waiting if job not in jobs]
            if not jobs:
                return
            self._busy += 1
            alone = self._busy == 1 and not self._waiting
            loop = asyncio.get_running_loop()
            batch = loop.run_in_executor(self._threads, self._answers, jobs, alone)
            batch.add_done_callback(partial(self._deliver, jobs))

    def _deliver(
        self,
        jobs: list[_Job[K, T, R]],
        batch: asyncio.Future[list[list[R] | Exception]],
    ) -> None:
        self._busy -= 1
        for job, result in zip(jobs, batch.result(), strict=True):
            if job.answer.done():
                continue
            if isinstance(result, Exception):
                job.answer.set_exception(result)
            else:
                job.answer.set_result(result)
        self._start()

    def _answers(self, jobs: list[_Job[K, T, R]], alone: bool) -> list[list[R] | Exception]:
        """The results of each job, or its error."""
        items = [item for job in jobs for item in job.items]
        self._on_batch(len(items), alone)
        try:
            results = iter(self._compute(jobs[0].task, items))
        except Exception as error:
            if len(jobs) == 1:
                return [error]
            return [one for job in jobs for one in self._answers([job], alone)]  # whose fault?
        return [[next(results) for _ in job.items] for job in jobs]
