"""Work done in threads ahead of its use, and grouping of similar items; order is kept."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from os import cpu_count
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def ahead(act: Callable[[T], R], items: Iterable[T], most: int) -> Iterator[R]:
    """`act` of each item, in order; up to `most` of them are done before they are needed.

    Items are taken in the caller's thread; an error is raised where its result would have come.
    """
    with ThreadPoolExecutor(cpu_count()) as pool:
        waiting: deque[Future[R]] = deque()
        for item in items:
            waiting.append(pool.submit(act, item))
            if len(waiting) >= most:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def alike(items: Iterable[T], key: Callable[[T], object], most: int) -> Iterator[list[T]]:
    """Runs of consecutive items with equal keys, at most so many together."""
    run: list[T] = []
    for item in items:
        if run and (len(run) == most or key(item) != key(run[0])):
            yield run
            run = []
        run.append(item)
    if run:
        yield run
