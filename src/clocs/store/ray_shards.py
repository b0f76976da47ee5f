"""Shards made on a Ray cluster, one task each; a lost worker's shard goes on from its journal."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from clocs.datasets.base import Dataset, Listing
from clocs.files import once_free
from clocs.formats.source import Source, stem
from clocs.ray_cluster import Needs, Tasks, check_fits
from clocs.recording import Filters
from clocs.store.journal import roughly_done
from clocs.store.shards import MakeShards, Progress, make_shard
from clocs.store.workers import start_workers

_LOOK = 2.0  # seconds between two looks at the journals


def on_cluster(
    dataset: Dataset, workers: int | None, progress: Progress | None, filters: Filters
) -> MakeShards:
    """Makes the shards on the cluster that this process is connected to, one per task.

    Args:
        dataset: What to read; every node sees its source under the same path.
        workers: Reading processes of a task, which asks for as many processors; one by default.
        progress: Called with (recordings done, recordings in total), as the journals say.
        filters: For the manifests.
    """
    readers = workers or 1
    needs = Needs(cpus=readers)

    def make(folders: Sequence[Path], listings: Sequence[Listing]) -> None:
        most = 2 * check_fits(needs)
        source = getattr(dataset, "source", None)
        files = files_of_shards(source, listings) if isinstance(source, Source) else None
        waiting = deque(range(len(folders)))
        done = [0] * len(folders)
        running: set[int] = set()
        with Tasks[int]() as tasks:
            while waiting or running:
                while waiting and len(running) < most:
                    number = waiting.popleft()
                    own = dataset if files is None else _with_files(dataset, files[number])
                    # Other nodes may have another working folder.
                    task = (own, folders[number].absolute(), listings[number], readers, filters)
                    tasks.start(number, _make_shard, *task, needs=needs)
                    running.add(number)
                for number, result in tasks.finished(_LOOK):
                    result()
                    running.discard(number)
                    done[number] = len(listings[number].entries)
                if progress is not None:
                    for number in running:
                        done[number] = max(done[number], roughly_done(folders[number]))
                    progress(sum(done), sum(len(one.entries) for one in listings))

    return make


def _make_shard(
    dataset: Dataset, folder: Path, listing: Listing, workers: int, filters: Filters
) -> None:
    """Runs on a node. The process that was lost may hold the folder for a moment."""
    with closing(start_workers(dataset, workers, to_list=False)) as readers:
        once_free(lambda: make_shard(dataset, folder, listing, readers, None, filters))


def files_of_shards(source: Source, listings: Sequence[Listing]) -> list[list[str]]:
    """The files that each shard needs: those of its recordings, and all that are of no recording.

    A file is of the recording that has its name but for the suffix. Without this, every task, and
    every reading process, would hold the names of all files of the source.
    """
    owner: dict[str, int] = {}
    for number, listing in enumerate(listings):
        for entry in listing.entries:
            base = _base(entry.path)
            if owner.setdefault(base, number) != number:
                owner[base] = -1  # recordings of several shards
    own: list[list[str]] = [[] for _ in listings]
    common: list[str] = []
    for name in source.names:
        number = owner.get(_base(name), -1)
        (common if number < 0 else own[number]).append(name)
    return [[*common, *names] for names in own]


def _base(path: str) -> str:
    return path[: path.rfind("/") + 1] + stem(path).lower()


def _with_files(dataset: Dataset, names: Sequence[str]) -> Dataset:
    dataset_class: Any = dataset
    return replace(dataset_class, source=dataset_class.source.only(names))  # type: ignore[no-any-return]
