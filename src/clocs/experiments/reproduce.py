"""`clocs.reproduce`: run tables and figures of the paper, as far as they are not done."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, nullcontext
from pathlib import Path
from threading import Event

import torch

from clocs.errors import SettingError
from clocs.experiments.data import Library, library_of, open_library
from clocs.experiments.exports import not_known
from clocs.experiments.grid import cells_of
from clocs.experiments.ledger import open_ledger
from clocs.experiments.runner import MEMBERS, GridProgress, GridStatus, Runner
from clocs.experiments.simulated import simulated_datasets
from clocs.experiments.steps import PAPER, SIMULATED, Profile
from clocs.training.device import pick_device

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
    members: int = MEMBERS,
    parallel: int = 1,
    retry: bool = False,
    on_progress: Callable[[GridProgress], None] = lambda progress: None,
) -> GridStatus:
    """Run tables and figures of the paper, as far as they are not done.

    Args:
        names: 'table-1', 'table-2', … or 'all'; see `clocs.experiments.grid.NAMES`.
        out: The folder for the runs.
        stores: The folder of stores (or saved frames), named by dataset.
        dataset: 'synthetic' for small simulated datasets instead of stores.
        seeds: How many; five by default, as in the paper.
        only: Filters such as 'cmsc' or 'downstream=cardiology'; a cell must pass all of them.
        known: Folders of runs or reports, whose results are not computed again.
        device: 'cpu', 'cuda' …; the best available by default.
        seconds: Time limit: no new work begins after it, and the next call resumes.
        members: The most encoders to train downstream at once.
        parallel: Worker threads; on a GPU each has its own stream, because the small kernels of
            one fleet leave room for another's.
        retry: Run again what failed before.
        on_progress: Called after each piece of work.
    """
    began = time.monotonic()
    folder = Path(out)
    cells = not_known(cells_of(names, only), [Path(one) for one in known])
    library, profile = _open_data(None if stores is None else Path(stores), dataset)
    chosen = pick_device(device)
    if retry:
        with closing(open_ledger(folder)) as ledger:
            ledger.forget_failures()
    stop = Event()

    def work() -> GridStatus:
        left = None if seconds is None else seconds - (time.monotonic() - began)
        with closing(open_ledger(folder)) as ledger, _own_stream(chosen, parallel):
            runner = Runner(
                ledger,
                library,
                profile,
                seeds=seeds,
                device=chosen,
                seconds=left,
                members=members,
                stop=stop,
                on_progress=on_progress,
            )
            return runner.work(cells)

    if parallel == 1:
        return work()
    with ThreadPoolExecutor(parallel) as pool:
        workers = [pool.submit(work) for _ in range(parallel)]
        try:
            return [worker.result() for worker in workers][-1]
        finally:
            stop.set()  # interrupted, or one of them failed: the others put back their work


def _open_data(stores: Path | None, dataset: str | None) -> tuple[Library, Profile]:
    """The data and how long to train on it: real stores, or small simulated ones."""
    if dataset is not None:
        if dataset != SIMULATED_NAME or stores is not None:
            raise SettingError(
                f"`dataset` is {dataset}; it can only be {SIMULATED_NAME}, and not with `stores`"
            )
        return library_of(simulated_datasets()), SIMULATED
    if stores is None:
        raise SettingError(
            f"give the folder of prepared stores as `stores`, or {SIMULATED_NAME} as `dataset`"
        )
    return open_library(stores), PAPER


def _own_stream(device: torch.device, parallel: int) -> AbstractContextManager[object]:
    if parallel == 1 or device.type != "cuda":
        return nullcontext()
    return torch.cuda.stream(torch.cuda.Stream(device))
