"""prepare: a dataset becomes a store; in parallel, resumable, in bounded memory, without torch.

Workers read (`workers`), the calling thread assembles the store (`assembly`), and a journal records
progress (`journal`). Entries are taken in the order of the listing, so the store's
content depends neither on the workers nor on interruptions.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clocs.datasets.base import Dataset
from clocs.datasets.table import open_dataset
from clocs.errors import SettingError
from clocs.limits import default_processes
from clocs.recording import Filters
from clocs.store.workers import ProcessWorkers, ThreadWorkers, Workers
from clocs.worker_messages import UnsendableError

if TYPE_CHECKING:
    from clocs.store.store import Store

# Their threads do not survive a fork, and locks held by these would stay locked.
_NOT_TO_FORK = ("polars", "torch")
MOST_SHARDS = 9999


def prepare(
    name: str | Dataset,
    source: Path | str | None = None,
    *,
    out: Path | str,
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    filters: Filters | None = None,
    shards: int | None = None,
    **options: Any,
) -> Store:
    """Read a dataset's published files, or a folder of one's own, into a store.

    Args:
        name: One of `clocs.datasets.table.DATASETS`: 'chapman', 'synthetic' …; or a dataset of
            your own, an object (docs/own-datasets.md).
        source: A folder or the zip as downloaded; None for 'synthetic'.
        out: The store's folder, made where it does not exist.
        workers: Number of reading processes; by default one per core, at most 16.
        progress: Called with (recordings done, recordings in total).
        filters: What to filter recordings by, in training and wherever the encoder is used; the
            store keeps the samples as they are.
        shards: Make as many stores, each with its share of the patients, that are joined and open
            as one (docs/archives.md).
        options: The dataset's own: `reference="v3"` for physionet2017; `patient`, `labels` and
            others for folder (docs/own-ecgs.md); `patients`, `seed`, `recordings`, `seconds`,
            `rate` for synthetic.
    """
    _refuse_inside(Path(out), source)
    if isinstance(name, str):
        dataset = open_dataset(name, source, **options)
    elif source is None and not options:
        dataset = name
    else:
        given = ", ".join(f"`{one}`" for one in (*["source"][: source is not None], *options))
        raise SettingError(f"a dataset of your own has its source and options; leave out {given}")
    return prepare_dataset(
        dataset,
        Path(out),
        workers=workers,
        progress=progress,
        filters=filters,
        shards=shards,
    )


def _refuse_inside(out: Path, source: Path | str | None) -> None:
    """A store among the files that are read would itself be read the next time."""
    folder = None if source is None else Path(source).resolve()
    if folder is not None and folder.is_dir() and out.resolve().is_relative_to(folder):
        raise SettingError(
            f"`out` is {out}, which lies in the source {source}; give a folder outside of it"
        )


def prepare_dataset(
    dataset: Dataset,
    out: Path,
    *,
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    filters: Filters | None = None,
    shards: int | None = None,
) -> Store:
    """Read a whole dataset into a store.

    Interrupted at any moment, the same call continues after the last commit. A
    complete store of the same source and settings is returned as it is; anything else in `out` is
    never overwritten. The other arguments are those of `prepare`.

    Raises:
        StoreError: `out` holds something else, or no recording at all is usable.
    """
    if shards is not None and not 1 <= shards <= MOST_SHARDS:
        raise SettingError(f"`shards` is {shards}; give a number from 1 to {MOST_SHARDS:,}")
    with closing(start_workers(dataset, workers)) as readers:
        # These import polars, after which nobody may fork.
        if shards is None:
            from clocs.store.assembly import assemble

            return assemble(dataset, Path(out), readers, progress, filters)
        from clocs.store import shards as sharding

        made = filters or Filters()
        make = sharding.one_after_another(dataset, readers, progress, made)
        return sharding.prepare_shards(dataset, Path(out), shards, readers, make, made)


def start_workers(dataset: Dataset, workers: int | None = None) -> Workers:
    """Workers that read from `dataset`; by default one per core, at most 16.

    Processes share no interpreter lock, which half of reading a WFDB record holds, and can be
    limited. They are forked where that is safe, on Linux and early: started afresh, each imports
    everything again. Datasets without files, and those that cannot be sent to another process, are
    then read in threads.
    """
    workers = workers or default_processes()
    fork = sys.platform == "linux" and not any(name in sys.modules for name in _NOT_TO_FORK)
    if fork or getattr(dataset, "source", None) is not None:
        try:
            return ProcessWorkers(dataset, workers, fork=fork)
        except UnsendableError:
            pass
    return ThreadWorkers(dataset, workers)
