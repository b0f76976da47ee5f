"""Runner: works through a grid, training and scoring what the ledger lacks.

Its two steps pre-train an encoder with all its seeds, and score the encoders of one job. Each gives
an `Attempt`: plain values, whether it worked or not, computed here or elsewhere. Encoders come
first; then, for each downstream set, all encoders that wait for it are scored at once. Several
runners can share a folder: each run is claimed in the ledger. A failed run keeps its error, and the
others continue.
"""

from __future__ import annotations

import gc
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import torch

from clocs.errors import ClocsError
from clocs.evaluation.evaluate import score_against_untrained
from clocs.experiments.data import Library
from clocs.experiments.grid import CURVE_EPOCHS, FEW_LABELS, Cell, Pretraining, run_name
from clocs.experiments.ledger import Ledger, last_line, pack_draws, versions
from clocs.frames.frames import Frames
from clocs.patients.distances import frame_distances
from clocs.pretraining.plan import Plan, find_method
from clocs.pretraining.pretrain import pretrain_frames
from clocs.sealed import spelled_for_files
from clocs.training import Settings
from clocs.training.checkpoint import Checkpoint, load_checkpoints
from clocs.training.loop import Epoch

MEMBERS = 45  # trained downstream at once: nine groups of five seeds
POLL = 0.5  # seconds between checks of what other processes do
VALIDATION = 1
BINS = 60  # of the distance histograms
FEW_BATCH = 16  # rows per step where few patients are labeled, as the paper's for Cardiology


@dataclass(frozen=True)
class Profile:
    """How long to train, for all runs of a folder: as in the paper, or briefly, to try it out."""

    name: str = "paper"  # or 'simulated', for small simulated datasets
    epochs: int = 400
    patience: int = 15  # epochs without a lower validation loss before a member stops
    lr: float = 1e-4
    curve_epochs: int = CURVE_EPOCHS  # of a curve, without early stopping
    resamples: int = 2000  # bootstrap samples of patients, for the confidence intervals
    seeds: int = 5  # by default

    def settings(
        self, batch_size: int, fixed_epochs: int | None = None, *, curve: bool = False
    ) -> Settings:
        """Those of a training with early stopping, for a fixed number of epochs, or of a curve."""
        if curve:
            return Settings(self.curve_epochs, self.curve_epochs, batch_size, self.lr)
        if fixed_epochs is None:
            return Settings(self.epochs, self.patience, batch_size, self.lr)
        epochs = min(fixed_epochs, self.epochs)
        return Settings(epochs, self.patience, batch_size, self.lr, keep="last")


PAPER = Profile()
SIMULATED = Profile(
    name="simulated", epochs=1, patience=1, lr=1e-3, curve_epochs=3, resamples=50, seeds=2
)


@dataclass(frozen=True)
class Attempt:
    """What came of a step: one result per run, or an error."""

    seconds: float = 0.0
    results: Sequence[Mapping[str, Any]] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    error: str = ""
    files: Mapping[str, bytes] = field(default_factory=dict)  # of an encoder, made on a node
    counts: Mapping[str, Any] = field(default_factory=dict)  # of a dataset, scored on a node


def attempt(
    act: Callable[..., Sequence[Mapping[str, Any]]], *given: Any, device: torch.device, **more: Any
) -> Attempt:
    """Try a step on a device; of an error that is not ours, the whole traceback is kept."""
    began = time.monotonic()
    try:
        results = act(*given, device=device, **more)
    except Exception as error:  # its text keeps no reference to memory on the device
        text = str(error) if isinstance(error, ClocsError) else traceback.format_exc()
        return Attempt(time.monotonic() - began, error=text)
    return Attempt(time.monotonic() - began, results, versions(device.type))


def learn(
    encoder: Pretraining,
    folder: Path,
    library: Library,
    profile: Profile,
    *,
    seeds: int,
    device: torch.device,
    on_epoch: Callable[[Epoch], None] = lambda epoch: None,
) -> list[dict[str, Any]]:
    """Pre-train one encoder, or resume it; returns its metrics, one value per seed, in a list.

    An exception that `on_epoch` raises stops the training.
    """
    changed = dict(encoder.plan)
    options = changed.pop("options", {})
    segments = options.get("segments") or find_method(encoder.method).views.segments
    if encoder.tau_d is not None:
        options = options | {"tau_d": encoder.tau_d}
    frames = library.frames(
        encoder.dataset,
        leads=encoder.leads,
        pair=segments > 1 or encoder.segment_frame,
        split_seed=encoder.split_seed,
    )
    plan = Plan(
        method=encoder.method,
        seeds=tuple(range(seeds)),
        embedding_dim=encoder.embedding_dim,
        options=options,
        perturb=encoder.perturb,
        settings=profile.settings(frames.batch_size, encoder.epochs),
        **changed,
    )
    measured = {"measured_epochs": 0, "measured_instances": 0, "measured_seconds": 0.0}

    def count(epoch: Epoch) -> None:
        measured["measured_epochs"] += 1
        measured["measured_instances"] += epoch.instances
        measured["measured_seconds"] += epoch.seconds
        on_epoch(epoch)

    checkpoints = pretrain_frames(
        frames,
        plan,
        folder,
        frame_to_use=library.sources[encoder.dataset].frame,
        device=device,
        resume=True,
        on_epoch=count,
    )
    cards = [checkpoint.card.metrics for checkpoint in checkpoints]
    return [{key: [card.get(key) for card in cards] for key in cards[0]} | measured]


def score(
    cells: Sequence[Cell],
    folders: Sequence[Path],
    library: Library,
    profile: Profile,
    *,
    device: torch.device,
) -> list[dict[str, Any]]:
    """Score the encoders of one job, trained at once; returns one result per cell.

    The cells differ only in their encoders, whose checkpoints are in `folders`.
    """
    first = cells[0]
    frames = library.frames(
        first.downstream,
        leads=first.pretraining.leads,
        pair=first.segment_frame,
        split_seed=first.split_seed,
    )
    groups = [load_checkpoints(folder) for folder in folders]
    if first.task == "distances":
        return [distances(group, frames, device) for group in groups]
    curve = first.task == "curve"  # a fixed number of epochs, the validation AUC after each
    few = first.patients is not None and first.patients <= FEW_LABELS
    batch_size = min(frames.batch_size, FEW_BATCH) if few else frames.batch_size
    scored = score_against_untrained(
        groups,
        frames,
        protocol="finetune" if curve else first.task,
        fraction=first.fraction,
        labels=first.patients,
        by="frame" if first.patients is None else "patient",
        validation_labels=first.validation_labels,
        settings=profile.settings(batch_size, curve=curve),
        resamples=profile.resamples,
        curve=curve,
        device=device,
    )
    results = []
    for one in scored[: len(groups)]:
        results.append(spelled_for_files(one.evaluation.json()))
        if one.draws is not None:
            results[-1]["draws"] = pack_draws(one.draws[: profile.resamples])
    return results


def distances(group: Sequence[Checkpoint], frames: Frames, device: torch.device) -> dict[str, Any]:
    """Distances between validation patients: mean and separability per seed, and a histogram."""
    found = [frame_distances(one, frames, split=VALIDATION, device=device) for one in group]
    largest = float(max(np.quantile(d.inter, 0.999) for d in found)) or 1.0
    edges = np.linspace(0, largest, BINS + 1)
    shares: dict[str, list[float]] = {}
    for kind in ("intra", "inter"):
        values = [getattr(d, kind) for d in found]
        each = [np.histogram(own, edges)[0] / len(own) for own in values]
        shares[kind] = np.mean(each, axis=0).tolist()
    return {
        "method": group[0].card.method,
        "embedding_dim": group[0].card.encoder["embedding_dim"],
        "seeds": [one.card.seed for one in group],
        "intra_mean": [float(d.intra.mean()) for d in found],
        "inter_mean": [float(d.inter.mean()) for d in found],
        "separability": [d.separability for d in found],
        "pairs": [len(found[0].intra), len(found[0].inter)],
        "edges": edges.tolist(),
        "histogram": shares,
    }


def counts_of(library: Library, cell: Cell) -> dict[str, Any]:
    """The size of a cell's downstream dataset, for the report."""
    frames = library.frames(cell.downstream, leads=cell.pretraining.leads)
    return {
        "recordings": len(frames.recording_ids),
        "patients": len(frames.patient_ids),
        "frames": len(frames),
        "patients_by_part": [len(frames.patients_of(part)) for part in range(3)],
    }


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
        # a job waits for encoders that another process is training, to score all at once
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
            given = encoder, self._folder(encoder), self.library, self.profile
            more = {"seeds": self.seeds, "on_epoch": lambda epoch: self._check_time()}
            try:
                tried = attempt(learn, *given, device=self.device, **more)
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
        """Score encoders at once."""
        folders = [self._folder(cell.pretraining) for cell in cells]
        given = cells, folders, self.library, self.profile
        try:
            tried = attempt(score, *given, device=self.device)
        except KeyboardInterrupt:
            for cell in cells:
                self.ledger.put_back(run_name(cell, self.seeds), seconds=0.0)
            raise
        self._free_memory()
        self._record_scores(cells, tried)

    def _record_scores(self, cells: Sequence[Cell], tried: Attempt) -> None:
        """What came of a scoring; of one that failed, each half is tried by itself."""
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
