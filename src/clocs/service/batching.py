"""Micro-batching: few threads compute; what arrives while they do is computed together.

A request alone is computed at once. While batches are computed, others wait in a queue of limited
length, and all of one task form the next batch: the busier the service, the larger the batches.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
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
    """Computes items in batches.

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
        self.size = 0.0  # of all jobs without an answer; only the event loop's thread changes it
        self._arrived: list[_Job[K, T, R]] = []  # in this turn of the event loop
        self._jobs: deque[_Job[K, T, R]] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._busy = 0  # threads that compute
        self._threads = [
            threading.Thread(target=self._work, name=f"clocs-batches-{n}", daemon=True)
            for n in range(threads)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Compute what waits, then end the threads."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()

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
        answer: asyncio.Future[list[R]] = loop.create_future()
        self.size += size
        try:
            if not self._arrived:
                loop.call_soon(self._hand_over)
            self._arrived.append(_Job(task, items, size, answer))
            async with asyncio.timeout(seconds):
                return await answer
        except TimeoutError:
            raise RefusedError(
                503,
                f"the recordings were not computed within {seconds:g} s; send fewer, or try again",
                {"retry-after": "1"},
            ) from None
        finally:
            self.size -= size

    def _hand_over(self) -> None:
        """What arrived in one turn of the event loop is handed over at once, to form one batch."""
        with self._changed:
            self._jobs += self._arrived
            self._arrived = []
            self._changed.notify_all()

    def _work(self) -> None:
        while jobs := self._next():
            done = self._answers(jobs)
            with self._changed:
                self._busy -= 1
            loop = jobs[0].answer.get_loop()
            if not loop.is_closed():
                loop.call_soon_threadsafe(_deliver, done)

    def _next(self) -> list[_Job[K, T, R]]:
        """The oldest job and those of the same task; none when there will be no more."""
        with self._changed:
            while True:
                waiting = [job for job in self._jobs if not job.answer.done()]  # nobody gave it up
                if waiting or self._closed:
                    break
                self._changed.wait()
            taken: list[_Job[K, T, R]] = []
            size = 0.0
            for job in waiting:
                if job.task == waiting[0].task and (not taken or size + job.size <= self.together):
                    taken.append(job)
                    size += job.size
            self._jobs = deque(job for job in waiting if job not in taken)
            self._busy += bool(taken)
            return taken

    def _answers(
        self, jobs: list[_Job[K, T, R]]
    ) -> list[tuple[asyncio.Future[list[R]], list[R] | Exception]]:
        items = [item for job in jobs for item in job.items]
        self._on_batch(len(items), self._busy == 1 and not self._jobs)
        try:
            results = self._compute(jobs[0].task, items)
        except Exception as error:
            if len(jobs) == 1:
                return [(jobs[0].answer, error)]
            return [one for job in jobs for one in self._answers([job])]  # whose fault was it?
        parts = iter(results)
        return [(job.answer, [next(parts) for _ in job.items]) for job in jobs]


def _deliver(done: list[tuple[asyncio.Future[list[R]], list[R] | Exception]]) -> None:
    for answer, result in done:
        if answer.done():
            continue
        if isinstance(result, Exception):
            answer.set_exception(result)
        else:
            answer.set_result(result)
