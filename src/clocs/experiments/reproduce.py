"""`clocs.reproduce`: run tables and figures of the paper, here or on the nodes of a Ray cluster."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, closing, nullcontext
from pathlib import Path
from threading import Event
from typing import Any

import torch

from clocs.errors import SettingError
from clocs.experiments.cluster_runner import ClusterRunner
from clocs.experiments.data import open_library, simulated_library
from clocs.experiments.grid import cells_of
from clocs.experiments.ledger import open_ledger
from clocs.experiments.results import not_known
from clocs.experiments.runner import PAPER, SIMULATED, GridStatus, Runner
from clocs.ray_cluster import connect, nodes
from clocs.training.signals import pick_device

SIMULATED_NAME = "synthetic"


def reproduce(
    *names: str,
    out: Path | str,
    stores: Path | str | None = None,
    dataset: str | None = None,
    seeds: int | None = None,
    only: Sequence[str] = (),
    known: Sequence[Path | str] = (),
    device: str | None = None,
    seconds: float | None = None,
    parallel: int = 1,
    retry: bool = False,
    ray: str | None = None,
    on_progress: Callable[[str, int, int], None] = lambda message, done, total: None,
) -> GridStatus:
    """Run the paper's tables and figures; finished runs are never repeated.

    Args:
        names: What to run: table-1, table-2, … or all.
        out: The folder for the runs.
        stores: The folder of stores (or saved frames), named by dataset.
        dataset: Dataset in place of stores: synthetic, small and simulated.
        seeds: How many seeds; five by default, as in the paper.
        only: Filters such as 'cmsc' or 'downstream=cardiology'; a cell must pass all of them.
        known: Folders of runs or reports, whose results are not computed again.
        device: Device to compute on: cpu, cuda, cuda:1 …; the best available by default.
        seconds: Time limit: no new work begins after it, and the next call resumes.
        parallel: Worker threads; on a GPU each has its own stream, because the small kernels of
            one training leave room for another's. On a cluster, how many tasks share one GPU.
        retry: Run again what failed before.
        ray: Compute on a Ray cluster, 'auto' or its address. Every node sees `stores` under the
            same path; this process alone writes to `out`.
        on_progress: Called after each piece of work with what was done, and the number of
            finished pieces and of all.
    """
    began = time.monotonic()
    folder, place = Path(out), None if stores is None else Path(stores)
    cells = cells_of(names, only)
    if known:
        cells = not_known(cells, [Path(one) for one in known])
    if dataset not in (None, SIMULATED_NAME) or (dataset is None) == (place is None):
        raise SettingError(
            f"give the folder of prepared stores as `stores`, or {SIMULATED_NAME} as `dataset`"
        )
    library = simulated_library() if place is None else open_library(place)
    profile = SIMULATED if place is None else PAPER
    if retry:
        with closing(open_ledger(folder)) as ledger:
            ledger.forget_failures()

    def options(kind: torch.device | str) -> dict[str, Any]:
        left = None if seconds is None else seconds - (time.monotonic() - began)
        return {"seeds": seeds, "on_progress": on_progress, "device": kind, "seconds": left}

    if ray is not None:
        with connect(ray), closing(open_ledger(folder)) as ledger:
            kind = device or ("cuda" if any(node.gpus for node in nodes()) else "cpu")
            given = {"stores": place, "sharing": parallel, **options(kind)}
            return ClusterRunner(ledger, library, profile, **given).work(cells)
    chosen, stop = pick_device(device), Event()

    def work() -> GridStatus:
        with closing(open_ledger(folder)) as ledger, _own_stream(chosen, parallel):
            return Runner(ledger, library, profile, stop=stop, **options(chosen)).work(cells)

    if parallel == 1:
        return work()
    with ThreadPoolExecutor(parallel) as pool:
        workers = [pool.submit(work) for _ in range(parallel)]
        try:
            wait(workers, return_when=FIRST_EXCEPTION)
            return [worker.result() for worker in workers if worker.done()][-1]
        finally:
            stop.set()  # interrupted, or one of them failed: the others put back their work


def _own_stream(device: torch.device, parallel: int) -> AbstractContextManager[object]:
    if parallel == 1 or device.type != "cuda":
        return nullcontext()
    return torch.cuda.stream(torch.cuda.Stream(device))
