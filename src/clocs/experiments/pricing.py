"""Pricing: how long runs take, by rates measured in earlier runs or, without them, assumed.

Counts are those of the paper's datasets or of the simulated ones; seconds are for one process on
one device.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapreplace
from statistics import fmean

from clocs.evaluation.baseline import UNTRAINED
from clocs.experiments.grid import Cell, Pretraining
from clocs.experiments.ledger import Run
from clocs.experiments.simulated import PATIENTS
from clocs.experiments.steps import Profile
from clocs.ray_cluster import Needs

# instances of all splits in four leads, as `clocs info` prints them; 'lead': one frame of one lead
INSTANCES = {
    "chapman": {"cmsc": 42_352, "cmlc": 10_588, "cmsmlc": 10_588, "lead": 42_352},
    "physionet2020": {"cmsc": 37_456, "cmlc": 20_162, "cmsmlc": 9_364, "lead": 80_648},
    "physionet2017": {"lead": 28_661},
    "cardiology": {"lead": 7_079},
}
PATIENT_COUNTS = {
    "chapman": 10_588,
    "physionet2020": 6_877,
    "physionet2017": 8_528,
    "cardiology": 313,
}
TRAINED = 0.6  # the training split
VALIDATED = 0.2  # share of an epoch's time with all labels that validation takes

# instances per second of five members on an H200 (`benchmarks/train.py`), and epochs until five
# seeds had stopped, the mean of Chapman and PhysioNet 2020 (docs/results)
PRETRAINING = {
    "cmsc": (3.0e6, 400),
    "cmlc": (1.9e6, 344),
    "cmsmlc": (1.0e6, 376),
    "simclr": (2.9e6, 366),
    "byol": (2.6e6, 38),
    "mtssl": (1.2e6, 220),
    "supervised": (3.5e6, 232),  # the rate is estimated
}
VALIDATING = 1.25  # the validation split is a third of the training split, forward pass only
# assumed until measured: labeled frames per second of a whole fleet, and epochs
DOWNSTREAM_RATES = {"linear": 47e6, "finetune": 2.8e6, "curve": 1.4e6}
SOLVED = 1.6  # seconds of a logistic regression solved to convergence (docs/results)
EPOCHS = {"linear": 150, "finetune": 40}
SMALL_BATCH = {"cardiology": 4.0}  # batches of 16 leave a GPU idle between them
SLOWER = {"cuda": 1.0, "cpu": 350.0}  # than the H200; two cores: 240 for CMSC, 500 for SimCLR
SET_UP = {"cuda": 4.0, "cpu": 0.3}  # seconds to compile kernels, capture graphs and load data
SIMULATED = 4 * 2 * 2 * PATIENTS  # instances of any simulated dataset, in four leads
CPUS = 2  # of a task without a GPU, as measured for `SLOWER`; one with a GPU needs one
PROCESS = 3 * 2**30  # bytes that a process of a node takes before it has data
FRAME = 2500 * 2  # bytes of one frame of one lead
COPIES = 4  # of a dataset's frames, while they are cut and cut again for consecutive segments


def duration(seconds: float) -> str:
    """'45 s', '12 min', '3.5 h'."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


@dataclass(frozen=True)
class Rates:
    """What is known about speed."""

    device: str  # 'cuda' or 'cpu'
    profile: Profile  # limits how long trainings can last
    rate: dict[str, float] = field(default_factory=dict)  # instances per second, by method
    epochs: dict[str, float] = field(default_factory=dict)  # per pre-training, by method
    # seconds per cell at F = 1, by (task, downstream, leads)
    cell: dict[tuple[str, str, int], float] = field(default_factory=dict)

    @property
    def measured(self) -> bool:
        """Whether any of it was measured in this folder."""
        return bool(self.rate or self.cell)

    @classmethod
    def of(cls, runs: Iterable[Run], device: str, profile: Profile) -> Rates:
        """From the times of a folder's runs on this kind of device."""
        rate: dict[str, list[float]] = {}
        epochs: dict[str, list[float]] = {}
        cell: dict[tuple[str, str, int], list[float]] = {}
        for run in runs:
            on_cpu = run.versions.get("device", "").endswith("threads")
            if run.state != "done" or not run.result or on_cpu != (device == "cpu"):
                continue
            if run.kind == "pretrain":
                method = run.settings["method"]
                if run.result.get("measured_seconds"):
                    speed = run.result["measured_instances"] / run.result["measured_seconds"]
                    rate.setdefault(method, []).append(speed)
                    if run.settings.get("epochs") is None:  # early stopping decided
                        epochs.setdefault(method, []).append(max(run.result["epochs"]))
            elif run.seconds is not None:
                s = run.settings
                key = (run.kind, s["downstream"], s["pretraining"]["leads"])
                if s.get("patients") is None:
                    cell.setdefault(key, []).append(run.seconds / s["fraction"])
        rates, lasted = ({k: fmean(v) for k, v in found.items()} for found in (rate, epochs))
        return cls(device, profile, rates, lasted, {k: fmean(v) for k, v in cell.items()})

    @property
    def set_up(self) -> float:
        return SET_UP.get(self.device, SET_UP["cuda"])

    def _instances(self, dataset: str, method: str = "lead") -> int:
        if self.profile.name == "simulated":
            return SIMULATED
        counts = INSTANCES[dataset]
        return counts.get(method, counts["lead"])

    def _fraction(self, cell: Cell) -> float:
        """Of what a cell costs with all labels: with few, validating costs most."""
        if cell.patients is None:
            return cell.fraction
        share = min(1.0, cell.patients / (TRAINED * PATIENT_COUNTS[cell.downstream]))
        return VALIDATED + (1 - VALIDATED) * share

    def pretraining_seconds(self, encoder: Pretraining, seeds: int) -> float:
        """One pre-training with all its seeds."""
        if encoder.method in UNTRAINED:
            return self.set_up / 2
        slower = SLOWER.get(self.device, 1.0)
        whole = encoder.method in ("cmlc", "cmsmlc")  # one instance contains all leads
        more = encoder.leads / 4  # views, or instances
        instances = self._instances(encoder.dataset, encoder.method) * TRAINED * seeds
        fast, lasted = PRETRAINING[encoder.method]
        rate = self.rate.get(encoder.method, fast / slower / VALIDATING)
        epochs = self.epochs.get(encoder.method, min(lasted, self.profile.epochs))
        if encoder.epochs is not None:
            epochs = min(encoder.epochs, self.profile.epochs)
        rate = rate / more if whole else rate
        instances = instances if whole else instances * more
        return self.set_up + epochs * instances / rate

    def job_seconds(self, cells: Sequence[Cell], seeds: int) -> float:
        """Scoring the encoders of one job."""
        first = cells[0]
        leads = first.pretraining.leads
        known = self.cell.get((first.task, first.downstream, leads))
        fraction = self._fraction(first)
        if known is not None:
            return known * fraction * len(cells)
        slower = SLOWER.get(self.device, 1.0)
        frames = self._instances(first.downstream)
        if first.downstream in ("chapman", "physionet2020"):
            frames = round(frames * leads / 4)
        if first.task == "distances":
            return self.set_up + len(cells) * seeds * frames * slower / 1e6
        if first.task == "linear-converged":  # the solver's iterations, however many rows
            return self.set_up + SOLVED * seeds * len(cells)
        top = self.profile.curve_epochs if first.task == "curve" else self.profile.epochs
        epochs = top if first.task == "curve" else min(EPOCHS[first.task], top)
        labeled = frames * TRAINED * fraction * seeds * len(cells)
        rate = DOWNSTREAM_RATES[first.task] / SMALL_BATCH.get(first.downstream, 1.0) / slower
        return self.set_up + epochs * labeled / rate


def needs_of(
    what: Pretraining | Sequence[Cell],
    profile: Profile,
    device: str,
    *,
    sharing: int,
    most_cpus: int,
) -> Needs:
    """What a pre-training or a fleet asks of a cluster.

    Args:
        what: The encoder to train, or the cells to score.
        profile: The paper's, or that of simulated data, which take no memory to speak of.
        device: 'cuda' or 'cpu'.
        sharing: How many tasks share one GPU.
        most_cpus: Of one machine.
    """
    p, data = (what, what.dataset) if isinstance(what, Pretraining) else _first(what)
    memory = PROCESS if profile.name != "simulated" else PROCESS // 3
    if profile.name != "simulated":
        memory += COPIES * round(INSTANCES[data]["lead"] * p.leads / 4) * FRAME
    if device == "cpu":
        return Needs(cpus=max(1, min(CPUS, most_cpus)), memory=memory)
    return Needs(cpus=1, gpus=1 / sharing, memory=memory)


def _first(cells: Sequence[Cell]) -> tuple[Pretraining, str]:
    return cells[0].pretraining, cells[0].downstream


@dataclass(frozen=True)
class Task:
    """A priced task of a cluster, which begins when those named in `after` have ended."""

    name: str
    seconds: float
    after: tuple[str, ...] = ()


def wall_seconds(tasks: Iterable[Task], slots: int) -> float:
    """How long the tasks take where so many run at once: first those that wait for none.

    The longest ones begin first. No number of slots makes it shorter than the longest chain.
    """
    free, ends = [0.0] * slots, dict[str, float]()
    listed = sorted(tasks, key=lambda task: (bool(task.after), -task.seconds))
    first = [task for task in listed if not task.after]
    for task in first:
        ends[task.name] = free[0] + task.seconds
        heapreplace(free, ends[task.name])
    for task in sorted(listed[len(first) :], key=lambda task: _ready(task, ends)):
        heapreplace(free, max(free[0], _ready(task, ends)) + task.seconds)
    return max(free)


def _ready(task: Task, ends: Mapping[str, float]) -> float:
    return max((ends.get(name, 0.0) for name in task.after), default=0.0)
