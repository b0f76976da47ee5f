"""Micro-batching, without models."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import pytest

pytest.importorskip("fastapi", reason="the service needs the extra `serve`")

from clocs.service.batching import Batcher
from clocs.web.shield import RefusedError

T = TypeVar("T")
Doubler = Batcher[str, int, int]


def run(work: Coroutine[Any, Any, T]) -> T:
    with ThreadPoolExecutor(1) as another:  # playwright may have left an event loop in this thread
        return another.submit(asyncio.run, work).result(600)


class Gate:
    """Doubles numbers once it is open; keeps the batches."""

    def __init__(self) -> None:
        self.open, self.entered = threading.Event(), threading.Event()
        self.batches: list[tuple[str, list[int]]] = []

    def compute(self, task: str, items: list[int]) -> list[int]:
        self.batches.append((task, items))
        self.entered.set()
        assert self.open.wait(600)
        if 13 in items:
            raise ValueError("thirteen")
        return [2 * item for item in items]


async def entered(gate: Gate) -> None:
    assert await asyncio.to_thread(gate.entered.wait, 600)


def test_what_arrives_while_a_batch_is_computed_is_computed_together() -> None:
    gate = Gate()
    batcher = Doubler(gate.compute, queue=100, together=4)

    async def work() -> list[list[int]]:
        first = asyncio.create_task(batcher.run("a", [1], 1, 600))
        await entered(gate)
        given = [("a", [2]), ("b", [3]), ("a", [4, 5]), ("a", [6]), ("a", [7, 8])]
        rest = [asyncio.create_task(batcher.run(t, n, len(n), 600)) for t, n in given]
        await asyncio.sleep(0)  # all of them wait now
        gate.open.set()
        return [await first, *(await asyncio.gather(*rest))]

    assert run(work()) == [[2], [4], [6], [8, 10], [12], [14, 16]]
    batcher.close()
    # no more than 4 together; those of another task, and what did not fit, come later
    assert gate.batches == [("a", [1]), ("a", [2, 4, 5, 6]), ("b", [3]), ("a", [7, 8])]


def test_a_full_queue_refuses_with_429_and_recovers() -> None:
    gate = Gate()
    batcher = Doubler(gate.compute, queue=3, together=4)

    async def work() -> None:
        large = asyncio.create_task(batcher.run("a", [1] * 50, 50, 600))  # an empty queue takes all
        await entered(gate)
        with pytest.raises(RefusedError) as refused:
            await batcher.run("a", [2], 1, 600)
        assert (refused.value.status, refused.value.headers) == (429, {"retry-after": "1"})
        gate.open.set()
        assert len(await large) == 50
        assert await batcher.run("a", [2], 1, 600) == [4]
        assert batcher.size == 0

    run(work())
    batcher.close()


def test_two_threads_compute_side_by_side_and_know_when_they_are_not_alone() -> None:
    both, alone = threading.Barrier(2), []

    def compute(task: str, items: list[int]) -> list[int]:
        if task != "first":
            both.wait(600)  # passes only if the other is computed at the same time
        return items

    batcher = Doubler(
        compute, queue=100, together=9, threads=2, on_batch=lambda items, own: alone.append(own)
    )

    async def work() -> list[list[int]]:
        assert await batcher.run("first", [0], 1, 600) == [0]
        asked = [asyncio.create_task(batcher.run(task, [1], 1, 600)) for task in ("a", "b")]
        return list(await asyncio.gather(*asked))

    assert run(work()) == [[1], [1]]
    batcher.close()
    assert alone[0] and not all(alone[1:])


def test_an_error_fails_its_own_request_alone() -> None:
    gate = Gate()
    batcher = Doubler(gate.compute, queue=100, together=100)

    async def work() -> list[Any]:
        first = asyncio.create_task(batcher.run("a", [1], 1, 600))
        await entered(gate)
        rest = [asyncio.create_task(batcher.run("a", [n], 1, 600)) for n in (2, 13, 3)]
        await asyncio.sleep(0)
        gate.open.set()
        return await asyncio.gather(first, *rest, return_exceptions=True)

    one, two, error, three = run(work())
    batcher.close()
    assert (one, two, three) == ([2], [4], [6])
    assert isinstance(error, ValueError)


def test_a_request_that_waits_too_long_gets_503_and_is_not_computed() -> None:
    gate = Gate()
    batcher = Doubler(gate.compute, queue=100, together=1)

    async def work() -> None:
        first = asyncio.create_task(batcher.run("a", [1], 1, 600))
        await entered(gate)
        with pytest.raises(RefusedError) as refused:
            await batcher.run("a", [2], 1, 0.01)
        assert refused.value.status == 503
        gate.open.set()
        await first
        assert await batcher.run("a", [3], 1, 600) == [6]

    run(work())
    batcher.close()
    assert gate.batches == [("a", [1]), ("a", [3])]
