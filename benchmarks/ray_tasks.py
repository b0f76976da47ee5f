"""What a task on a Ray cluster costs beside the work itself.

    python benchmarks/ray_tasks.py [--ray ADDRESS] [--tasks 200]

Without an address, Ray is started on this machine with one processor. The same function is called
directly and as a task: empty; with the files of five encoders as argument and as result; and for
the first time, when a process starts and imports torch and clocs.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from clocs.ray_cluster import Resources, Tasks, check_fits, connect, import_ray

ENCODERS = 5 * 2**20  # bytes


def run_all(
    act: Callable[[Any], Any],
    items: Iterable[Any],
    *,
    needs: Resources,
    outstanding: int | None = None,
) -> Iterator[tuple[Any, Any]]:
    """`act` of every item on the cluster: (item, result) in the order in which they end."""
    most = outstanding or 2 * check_fits(needs)
    with Tasks[Any]() as tasks:
        for item in items:
            while len(tasks) >= most:
                for key, result in tasks.finished():
                    yield key, result()
            tasks.start(item, act, item, needs=needs)
        while len(tasks):
            for key, result in tasks.finished():
                yield key, result()


def give_back(content: bytes) -> bytes:
    return content


def load(content: bytes) -> bytes:
    from clocs.experiments import runner

    return content if runner else b""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ray", help="auto, or HOST:PORT")
    parser.add_argument("--tasks", type=int, default=200)
    given = parser.parse_args()
    if given.ray is None:
        quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
        import_ray().init(address="local", num_cpus=1, **quiet)
    with connect(given.ray or "auto"):
        at_once = check_fits(Resources())
        began = time.perf_counter()
        list(run_all(load, [b""], needs=Resources()))
        print(f"{'first task (process, imports)':<34}{time.perf_counter() - began:>10.2f} s")
        for name, size in (("empty task", 0), ("task with 5 MiB in and out", ENCODERS)):
            # distinct, as keys of tasks are
            items = [bytes([n % 256, n // 256]) + bytes(size) for n in range(given.tasks)]
            took = []
            for most in (1, 2 * at_once):
                list(run_all(give_back, items[: 2 * at_once], needs=Resources()))
                began = time.perf_counter()
                list(run_all(give_back, items, needs=Resources(), outstanding=most))
                took.append((time.perf_counter() - began) / len(items))
            began = time.perf_counter()
            for item in items:
                give_back(item)
            called = (time.perf_counter() - began) / len(items)
            print(
                f"{name:<34}{1e3 * took[0]:>10.2f} ms one by one{1e3 * took[1]:>10.2f} ms each, "
                f"{2 * at_once} at a time{1e6 * called:>10.2f} µs called directly"
            )
    import_ray().shutdown()


if __name__ == "__main__":
    main()
