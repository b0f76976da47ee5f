"""ClusterRunner: works through a grid on a Ray cluster.

It chooses and records what to do as any runner; the training and scoring are tasks on the cluster.
Tasks give back plain values and bytes, and this process alone writes to the folder of runs. A task
whose worker or node dies runs again elsewhere; what the process had in hand when it ends is queued.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from clocs.experiments.attempts import Attempt, Site, files_of, learn_on_node, score_on_node
from clocs.experiments.data import Library
from clocs.experiments.grid import Cell, Pretraining
from clocs.experiments.ledger import Ledger
from clocs.experiments.pricing import needs_of
from clocs.experiments.runner import POLL, REMEDY, GridStatus, Runner, run_name
from clocs.experiments.steps import Profile
from clocs.files import private_folder, write_atomic
from clocs.ray_cluster import ClusterError, Needs, Tasks, check_fits, nodes

Fleet = tuple[Cell, ...]


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
        with Tasks[Pretraining | Fleet]() as self._tasks:
            try:
                return super().work(cells)
            finally:
                states = self.ledger.states()
                for name in tuple(self._claims):
                    if states[name] == "running":  # not one recorded just before
                        self.ledger.put_back(name, seconds=0.0)
                    self._release(name)

    def _needs(self, what: Pretraining | Fleet) -> Needs:
        most = int(max((node.cpus for node in nodes()), default=1))
        return needs_of(what, self.profile, self.device.type, sharing=self._sharing, most_cpus=most)

    def _pretrain(self, encoder: Pretraining) -> bool:
        name = run_name(encoder, self.seeds)
        if name in self._claims:
            return False  # under way
        self._make_room(encoder)
        if not self._claim(name):
            return False
        needs = self._needs(encoder)
        self._tasks.start(encoder, learn_on_node, self._site, encoder, needs=needs)
        return True

    def _evaluate(self, cells: Sequence[Cell]) -> bool:
        most = max(1, self.members // self.seeds)
        fleet = [cell for cell in cells if run_name(cell, self.seeds) not in self._claims][:most]
        if not fleet:
            return False
        self._check_time_to_score(fleet)
        self._make_room(tuple(fleet))
        fleet = [cell for cell in fleet if self._claim(run_name(cell, self.seeds))]
        if fleet:
            self._score(fleet)
        return bool(fleet)

    def _score(self, cells: Sequence[Cell]) -> None:
        try:
            encoders = [files_of(self._folder(cell.pretraining)) for cell in cells]
        except OSError as error:
            self._record(tuple(cells), partial(Attempt, error=str(error)))
            return
        arguments = (self._site, tuple(cells), encoders)
        self._tasks.start(tuple(cells), score_on_node, *arguments, needs=self._needs(tuple(cells)))

    def _make_room(self, what: Pretraining | Fleet) -> None:
        """Wait until as few tasks are under way as the cluster runs at once."""
        self._check_time()
        while len(self._tasks) >= self._fitting(self._needs(what)):
            self._wait()

    def _fitting(self, needs: Needs) -> int:
        if len(self._tasks):  # a node may be lost, and another be on its way
            return max(1, sum(node.fits(needs) for node in nodes()))
        return check_fits(needs)

    def _wait(self) -> None:
        self._check_time()
        if not len(self._tasks):
            time.sleep(POLL)
        for what, result in self._tasks.finished(POLL):
            self._record(what, result)

    def _record(self, what: Pretraining | Fleet, result: Callable[[], Any]) -> None:
        try:
            attempt: Attempt = result()
        except ClusterError as error:
            attempt = Attempt(error=str(error))
        if isinstance(what, Pretraining):
            if not attempt.error:
                folder = self.ledger.folder / self._place(what)
                private_folder(folder)
                for name, content in attempt.files.items():
                    write_atomic(folder / name, content)
            self._record_encoder(what, attempt)
            self._release(run_name(what, self.seeds))
            return
        if attempt.counts:
            self.ledger.settle(f"counts of {what[0].downstream}", attempt.counts, REMEDY)
        self._record_scores(what, attempt)
        if not attempt.error or len(what) == 1:  # else its halves are under way
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

    def _tidy(self) -> None:
        """Nothing: this process computes nothing."""
