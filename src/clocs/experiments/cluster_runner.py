"""ClusterRunner: works through a grid on a Ray cluster.

It chooses and records what to do as any runner; the training and scoring are tasks on the cluster.
Tasks give back plain values and bytes, and this process alone writes to the folder of runs. A task
whose worker or node dies runs again elsewhere; what the process had in hand when it ends is queued.
On a node, data come from a folder of stores that every node sees under the same path, and the files
of encoders travel with the task.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from clocs.errors import SettingError
from clocs.experiments.data import Library, open_library, simulated_library
from clocs.experiments.grid import Cell, Pretraining, run_name
from clocs.experiments.ledger import Ledger
from clocs.experiments.runner import (
    MEMBERS,
    POLL,
    Attempt,
    GridStatus,
    Profile,
    Runner,
    attempt,
    counts_of,
    learn,
    score,
)
from clocs.files import LOCK, private_folder, write_atomic
from clocs.ray_cluster import ClusterError, Resources, Tasks, check_fits, nodes

Cells = tuple[Cell, ...]
Files = Mapping[str, bytes]
_CPUS = 2  # of a task without a GPU; one with a GPU needs one
_MEMORY = 8 * 2**30  # bytes of a task, with the frames of twelve leads of PhysioNet 2020


@dataclass(frozen=True)
class Site:
    """What a node is told of every task: where the data are, and how to train."""

    stores: str | None  # a folder; None: simulated datasets
    contents: Mapping[str, str]  # the hash of each dataset's recordings
    profile: Profile
    seeds: int
    device: str

    def library(self, *datasets: str) -> Library:
        """The data as this node sees it, which must be the same as the driver's."""
        library = _node_library(self.stores)
        for name in datasets:
            source = library.sources.get(name)
            if source is None or source.content != self.contents[name]:
                seen = "does not see" if source is None else "sees another version of"
                raise SettingError(
                    f"a node {seen} {name} in {self.stores}; give as `stores` a folder that every "
                    "node of the cluster sees under this path"
                )
        return library


@lru_cache(maxsize=1)
def _node_library(stores: str | None) -> Library:
    """Opened once per process of a node, which runs many tasks."""
    return simulated_library() if stores is None else open_library(Path(stores))


def learn_on_node(site: Site, encoder: Pretraining) -> Attempt:
    """Pre-train one encoder on this node; its files come with the attempt."""
    library, device = site.library(encoder.dataset), torch.device(site.device)
    with TemporaryDirectory(prefix="clocs-") as temporary:
        folder = Path(temporary)
        given = encoder, folder, library, site.profile
        tried = attempt(learn, *given, device=device, seeds=site.seeds)
        return replace(tried, files={} if tried.error else _files_of(folder))


def score_on_node(site: Site, cells: Sequence[Cell], encoders: Sequence[Files]) -> Attempt:
    """Score encoders on this node, all at once, from their files."""
    library, device = site.library(*{cell.downstream for cell in cells}), torch.device(site.device)
    with TemporaryDirectory(prefix="clocs-") as temporary:
        folders = [Path(temporary) / str(number) for number in range(len(encoders))]
        for folder, files in zip(folders, encoders, strict=True):
            folder.mkdir()
            for name, content in files.items():
                (folder / name).write_bytes(content)
        tried = attempt(score, cells, folders, library, site.profile, device=device)
        return replace(tried, counts=counts_of(library, cells[0]))


def _files_of(folder: Path) -> Files:
    """The files of an encoder, by name."""
    paths = sorted(path for path in folder.iterdir() if path.is_file() and path.name != LOCK)
    return {path.name: path.read_bytes() for path in paths}


class ClusterRunner(Runner):
    """The one owner of a folder of runs while a cluster computes them."""

    def __init__(
        self,
        ledger: Ledger,
        library: Library,
        profile: Profile,
        *,
        stores: Path | None,
        sharing: int = 1,
        **options: Any,
    ) -> None:
        """Beside the options of a runner, where nodes find the data and who shares a GPU.

        Args:
            ledger: Of the folder of runs.
            library: The data as this process sees it, to compare with what the nodes see.
            profile: How long to train.
            stores: A folder that every node sees under this path; None: simulated datasets.
            sharing: How many tasks share one GPU.
            options: Those of `Runner`.
        """
        super().__init__(ledger, library, profile, **options)
        contents = {name: source.content for name, source in library.sources.items()}
        seen = None if stores is None else str(stores.resolve())
        self._site = Site(seen, contents, profile, self.seeds, str(self.device))
        self._sharing = sharing
        self._claims: dict[str, ExitStack] = {}

    def work(self, cells: Sequence[Cell]) -> GridStatus:
        """Compute what these cells lack; needs a connection (`clocs.ray_cluster.connect`)."""
        with Tasks[Pretraining | Cells]() as self._tasks:
            try:
                return super().work(cells)
            finally:
                states = self.ledger.states()
                for name in tuple(self._claims):
                    if states[name] == "running":  # not one recorded just before
                        self.ledger.put_back(name, seconds=0.0)
                    self._release(name)

    def _needs(self) -> Resources:
        """What a task asks of a cluster; simulated data take little memory."""
        memory = 2**30 if self.profile.name == "simulated" else _MEMORY
        if self.device.type != "cpu":
            return Resources(cpus=1, gpus=1 / self._sharing, memory=memory)
        most = int(max((node.cpus for node in nodes()), default=1))
        return Resources(cpus=max(1, min(_CPUS, most)), memory=memory)

    def _pretrain(self, encoder: Pretraining) -> bool:
        name = run_name(encoder, self.seeds)
        if name in self._claims:
            return False  # under way
        self._make_room()
        if not self._claim(name):
            return False
        self._tasks.start(encoder, learn_on_node, self._site, encoder, needs=self._needs())
        return True

    def _evaluate(self, cells: Sequence[Cell]) -> bool:
        most = max(1, MEMBERS // self.seeds)
        some = [cell for cell in cells if run_name(cell, self.seeds) not in self._claims][:most]
        if not some:
            return False
        self._make_room()
        some = [cell for cell in some if self._claim(run_name(cell, self.seeds))]
        if some:
            self._score(some)
        return bool(some)

    def _score(self, cells: Sequence[Cell]) -> None:
        try:
            encoders = [_files_of(self._folder(cell.pretraining)) for cell in cells]
        except OSError as error:
            self._record(tuple(cells), partial(Attempt, error=str(error)))
            return
        arguments = (self._site, tuple(cells), encoders)
        self._tasks.start(tuple(cells), score_on_node, *arguments, needs=self._needs())

    def _make_room(self) -> None:
        """Wait until as few tasks are under way as the cluster runs at once."""
        self._check_time()
        needs = self._needs()
        many = check_fits(needs)
        while len(self._tasks) >= many:
            self._wait()
            # a node may be lost, and another be on its way
            many = max(1, sum(node.fits(needs) for node in nodes()))

    def _wait(self) -> None:
        self._check_time()
        if not len(self._tasks):
            time.sleep(POLL)
        for what, result in self._tasks.finished(POLL):
            self._record(what, result)

    def _record(self, what: Pretraining | Cells, result: Callable[[], Any]) -> None:
        try:
            tried: Attempt = result()
        except ClusterError as error:
            tried = Attempt(error=str(error))
        if isinstance(what, Pretraining):
            if not tried.error:
                folder = self._folder(what)
                private_folder(folder)
                for name, content in tried.files.items():
                    write_atomic(folder / name, content)
            self._record_encoder(what, tried)
            self._release(run_name(what, self.seeds))
            return
        if tried.counts:
            self.ledger.require_fact(f"counts of {what[0].downstream}", tried.counts)
        self._record_scores(what, tried)
        if not tried.error or len(what) == 1:  # else its halves are under way
            for cell in what:
                self._release(run_name(cell, self.seeds))

    def _claim(self, name: str) -> bool:
        with ExitStack() as stack:
            if not stack.enter_context(self.ledger.claim(name)):
                return False
            self._claims[name] = stack.pop_all()
        return True

    def _release(self, name: str) -> None:
        self._claims.pop(name).close()
