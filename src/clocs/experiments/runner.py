"""Runner: works through a grid, training and scoring what the ledger lacks.

Encoders come first, one pre-training with all its seeds at a time; then, for each downstream set,
all encoders that wait for it are scored as one fleet. Several runners can share a folder: each run
is claimed in the ledger. A failed run keeps its error, and the others continue.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from threading import Event

import torch

from clocs.experiments.data import Library
from clocs.experiments.grid import Cell, Pretraining, run_name
from clocs.experiments.ledger import Ledger, last_line
from clocs.experiments.steps import Attempt, Profile, attempt, counts_of, learn, score

MEMBERS = 45  # trained downstream at once: nine groups of five seeds
POLL = 0.5  # seconds between checks of what other processes do


def duration(seconds: float) -> str:
    """'45 s', '12 min', '3.5 h'."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


class TimeIsOver(BaseException):  # not an Exception: no step keeps it as an error
    """The time limit is reached; unfinished work goes back to the queue."""


@dataclass(frozen=True)
class GridStatus:
    """The state of a grid when its runner ends, in numbers of cells."""

    done: int
    failed: int
    unavailable: int
    left: int
    seconds: float

    @property
    def complete(self) -> bool:
        """Whether everything that could be done is done."""
        return not self.failed and not self.left

    def __str__(self) -> str:
        parts = {
            "results computed": self.done,
            "failed (kept until you retry)": self.failed,
            "need data that is missing": self.unavailable,
            "left (the same command resumes)": self.left,
        }
        words = [f"{n:,} {what}" for what, n in parts.items() if n or what == "results computed"]
        return f"{', '.join(words)}; {duration(self.seconds)}"


class Runner:
    """One worker on one folder of runs."""

    def __init__(
        self,
        ledger: Ledger,
        library: Library,
        profile: Profile,
        *,
        seeds: int | None = None,
        device: torch.device | str = "cpu",
        seconds: float | None = None,
        stop: Event | None = None,
        on_progress: Callable[[str, int, int], None] = lambda message, done, total: None,
    ) -> None:
        """seconds, stop: when to begin no new work and put the current pre-training back."""
        self.ledger, self.library, self.profile = ledger, library, profile
        self.seeds = seeds or profile.seeds
        self.device = torch.device(device)
        self._say = on_progress
        self._began = time.monotonic()
        self._deadline = None if seconds is None else self._began + seconds
        self._stop = stop or Event()
        self._units, self._finished = 0, 0

    def work(self, cells: Sequence[Cell]) -> GridStatus:
        """Compute what these cells lack, and wait for what other processes are computing."""
        self.ledger.require_fact("profile", {**asdict(self.profile), "seeds": None})
        able = [cell for cell in cells if self.library.why_not(cell) is None]
        runs = self.ledger.runs()
        done = {name for name, run in runs.items() if run.state == "done"}
        missing = [cell for cell in able if run_name(cell, self.seeds) not in done]
        encoders = list(dict.fromkeys(cell.pretraining for cell in missing))
        for name in sorted({e.dataset for e in encoders} | {cell.downstream for cell in able}):
            self.ledger.require_fact(f"data of {name}", self.library.sources[name].content)
        for name, source in self.library.sources.items():
            self.ledger.require_fact(f"leads of {name}", source.leads)
        for encoder in encoders:
            settings = asdict(encoder)
            self.ledger.add(run_name(encoder, self.seeds), "pretrain", settings, self.seeds)
        for cell in able:
            self.ledger.add(run_name(cell, self.seeds), cell.task, asdict(cell), self.seeds)
        for encoder in encoders:  # those whose files are gone are trained again
            run = runs.get(run_name(encoder, self.seeds))
            if run and run.state == "done" and not self._folder(encoder).is_dir():
                self.ledger.put_back(run.name, seconds=0.0)
        self._units = len(encoders) + len(able)
        try:
            while self._one_more(encoders, able):
                pass
        except TimeIsOver:
            pass
        return self._status(cells, able)

    def _one_more(self, encoders: list[Pretraining], cells: list[Cell]) -> bool:
        """Do one unit of work, or wait a moment; False if nothing is left to do."""
        states = self.ledger.states()
        everything: list[Pretraining | Cell] = [*encoders, *cells]
        self._finished = sum(not self._open(states, what) for what in everything)
        waiting = [e for e in encoders if self._open(states, e)]
        for encoder in waiting:
            if self._pretrain(encoder):
                return True
        # a job waits for encoders that another process is training, so that fleets are full
        jobs: dict[str, list[Cell]] = {}
        for cell in cells:
            jobs.setdefault(cell.job, []).append(cell)
        unsettled = False
        for job in jobs.values():
            missing = [cell for cell in job if self._open(states, cell)]
            ready = [
                cell for cell in missing if states[run_name(cell.pretraining, self.seeds)] == "done"
            ]
            pending = [c for c in missing if c.pretraining in waiting]
            unsettled |= bool(pending or ready)
            if ready and not pending and self._evaluate(ready):
                return True
        if waiting or unsettled:
            self._wait()
            return True
        return False

    def _wait(self) -> None:
        """For what others are doing."""
        self._check_time()
        time.sleep(POLL)

    def _open(self, states: Mapping[str, str], what: Pretraining | Cell) -> bool:
        return states[run_name(what, self.seeds)] in ("waiting", "running")

    def _check_time(self) -> None:
        late = self._deadline is not None and time.monotonic() > self._deadline
        if late or self._stop.is_set():
            raise TimeIsOver

    def _folder(self, encoder: Pretraining) -> Path:
        """Of an encoder's files."""
        return self.ledger.folder / "pretrained" / encoder.name / f"seeds{self.seeds}"

    def _pretrain(self, encoder: Pretraining) -> bool:
        """Train one encoder, all seeds at once; False if another process is training it."""
        self._check_time()
        name = run_name(encoder, self.seeds)
        with self.ledger.claim(name) as claimed:
            if not claimed:
                return False
            began = time.monotonic()
            act = partial(
                learn,
                encoder,
                self._folder(encoder),
                self.library,
                self.profile,
                seeds=self.seeds,
                device=self.device,
                on_epoch=lambda epoch: self._check_time(),
            )
            try:
                tried = attempt(act, self.device)
            except TimeIsOver:
                self.ledger.put_back(name, seconds=time.monotonic() - began)
                raise
            self._record_encoder(encoder, tried)
        self._free_memory()
        return True

    def _record_encoder(self, encoder: Pretraining, tried: Attempt) -> None:
        name = run_name(encoder, self.seeds)
        if tried.error:
            self._fail(name, tried)
            return
        (result,) = tried.results
        self.ledger.finish(
            name,
            result,
            seconds=tried.seconds,
            versions=tried.versions,
            checkpoint=str(self._folder(encoder).relative_to(self.ledger.folder)),
        )
        self._report(f"trained {encoder.name} in {tried.seconds:.1f} s", 1)

    def _evaluate(self, cells: Sequence[Cell]) -> bool:
        """Score encoders on one downstream set; False if other processes are scoring them."""
        most = max(1, MEMBERS // self.seeds)
        self._check_time()
        by_name = {run_name(cell, self.seeds): cell for cell in cells}
        with self.ledger.claim(*by_name, limit=most) as claimed:
            if not claimed:
                return False
            counts = f"counts of {cells[0].downstream}"
            if counts not in self.ledger.facts():
                self.ledger.require_fact(counts, counts_of(self.library, cells[0]))
            self._score([by_name[name] for name in claimed])
        return True

    def _score(self, cells: Sequence[Cell]) -> None:
        """Score one fleet."""
        folders = [self._folder(cell.pretraining) for cell in cells]
        act = partial(score, cells, folders, self.library, self.profile, device=self.device)
        try:
            tried = attempt(act, self.device)
        except KeyboardInterrupt:
            for cell in cells:
                self.ledger.put_back(run_name(cell, self.seeds), seconds=0.0)
            raise
        self._free_memory()
        self._record_scores(cells, tried)

    def _record_scores(self, cells: Sequence[Cell], tried: Attempt) -> None:
        """What came of a fleet; if it failed, its halves are tried: one bad run spoils no other."""
        names = [run_name(cell, self.seeds) for cell in cells]
        if tried.error and len(cells) == 1:
            self._fail(names[0], tried)
            return
        if tried.error:
            half = len(cells) // 2
            self._score(cells[:half])
            self._score(cells[half:])
            return
        each = tried.seconds / len(cells)
        for name, result in zip(names, tried.results, strict=True):
            self.ledger.finish(name, result, seconds=each, versions=tried.versions)
        many = f"{len(cells)} encoders" if len(cells) > 1 else cells[0].pretraining.name
        self._report(f"scored {many}: {cells[0].job} in {tried.seconds:.1f} s", len(cells))

    def _fail(self, name: str, tried: Attempt) -> None:
        self.ledger.fail(name, tried.error, seconds=tried.seconds)
        self._report(f"failed {name}: {last_line(tried.error)}", 1)

    def _free_memory(self) -> None:
        """Of captured graphs, which keep it until collected."""
        if self.device.type == "cuda":
            gc.collect()
            torch.cuda.empty_cache()

    def _report(self, message: str, units: int) -> None:
        self._finished += units
        self._say(message, self._finished, self._units)

    def _status(self, cells: Sequence[Cell], able: Sequence[Cell]) -> GridStatus:
        states = self.ledger.states()
        own = [
            (states[run_name(c, self.seeds)], states.get(run_name(c.pretraining, self.seeds)))
            for c in able
        ]
        done = sum(state == "done" for state, _ in own)
        failed = sum(pair[0] != "done" and "failed" in pair for pair in own)
        left, seconds = len(able) - done - failed, time.monotonic() - self._began
        return GridStatus(done, failed, len(cells) - len(able), left, seconds)
