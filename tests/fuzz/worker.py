"""The process that reads damaged files, one after another; its parent restarts it when it dies.

`python -m fuzz.worker FOLDER`: the folder holds `job.json`. The worker writes what it found to
`events.jsonl`, and to `beat` which input it is reading, since when.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import resource
import struct
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from fuzz.mutations import Files, damage
from fuzz.target import FAILURES, Given, Judgment, Target, judge

BEAT = struct.Struct("<qqdd")  # target, input (-1: none), when begun, when the target's time ends
SAVED_PER_KIND = 3


@dataclass
class Job:
    """What a worker is to do, target by target.

    Attributes:
        table: The module that holds `TARGETS`.
        targets: Their names.
        seed: Of all inputs.
        first: Number of the first input of the first target.
        inputs: How many there are of each target; or
        seconds: how long to read of each …
        left: … and of the first one, where that was begun before.
        memory: Bytes beyond those in use once everything is loaded.
        cpu_seconds: The most for one input.
        out: Where failures are saved.
        samples: Where samples are kept, once they are made.
    """

    table: str
    targets: list[str]
    seed: int
    first: int
    inputs: int | None
    seconds: float | None
    left: float | None
    memory: int
    cpu_seconds: float
    out: str
    samples: str


@dataclass
class Tally:
    """What is known about the inputs of a target."""

    target: str
    inputs: int = 0
    outcomes: dict[str, int] = field(default_factory=dict)
    slowest: float = 0.0
    peak: int = 0
    cpu: float = 0.0
    failures: list[dict[str, Any]] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        self.inputs += other.inputs
        for outcome, count in other.outcomes.items():
            self.outcomes[outcome] = self.outcomes.get(outcome, 0) + count
        self.slowest, self.peak = max(self.slowest, other.slowest), max(self.peak, other.peak)
        self.cpu += other.cpu
        self.failures += other.failures


def load_files(folder: Path) -> Files:
    """Everything below a folder, by name."""
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def load_samples(folder: Path) -> list[Files]:
    """The samples of a target: one numbered folder each."""
    return [load_files(one) for one in sorted(folder.iterdir(), key=lambda path: int(path.name))]


def save_files(files: Files, folder: Path) -> None:
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def make_input(target: Target, samples: list[Files], seed: int, number: int) -> tuple[int, Files]:
    """Which sample, and what was made of it."""
    rng = Random(f"{seed}/{target.name}/{number}")
    which = rng.randrange(len(samples))
    files = damage(samples[which], rng, samples)
    return which, files if target.seal is None else target.seal(files)


class Worker:
    """Runs a job."""

    def __init__(self, folder: Path, job: Job) -> None:
        self.folder, self.job = folder, job
        self.beat = os.open(folder / "beat", os.O_RDWR | os.O_CREAT, 0o600)
        self.parent = os.getppid()
        self.saved: Counter[str] = Counter()

    def run(self) -> None:
        table = importlib.import_module(self.job.table).TARGETS
        first, seconds = self.job.first, self.job.left or self.job.seconds
        for at, name in enumerate(self.job.targets):
            for tally in self._target(at, table[name], first, seconds):
                with (self.folder / "events.jsonl").open("a") as events:
                    events.write(json.dumps(asdict(tally)) + "\n")
            first, seconds = 0, self.job.seconds

    def _target(
        self, at: int, target: Target, first: int, seconds: float | None
    ) -> Iterator[Tally]:
        """Its inputs; tallies in between, so that a crash loses little."""
        folder = Path(self.job.samples) / target.name
        if not folder.is_dir():  # unless an earlier worker has crashed on them
            for number, files in enumerate(target.samples()):
                save_files(files, folder / str(number))
        samples = load_samples(folder)
        expected = [self._undamaged(target, files) for files in samples]
        start = _status("VmRSS")
        _reset_peak()
        limit(self.job.memory)
        ends = time.monotonic() + (math.inf if seconds is None else seconds)
        last = math.inf if self.job.inputs is None else self.job.inputs
        tally, number, reported = Tally(target.name), first, time.monotonic()
        while number < last and time.monotonic() < ends:
            which, files = make_input(target, samples, self.job.seed, number)
            os.pwrite(self.beat, BEAT.pack(at, number, time.monotonic(), ends), 0)
            began = time.process_time()
            given = Given(files, self.folder / "scratch")
            found = judge(target, given, None if target.seal else expected[which])
            took = time.process_time() - began
            if took > self.job.cpu_seconds:
                found = Judgment("escape", TimeoutError(f"took {took:.0f} s"))
            tally.inputs += 1
            tally.outcomes[found.outcome] = tally.outcomes.get(found.outcome, 0) + 1
            tally.slowest, tally.cpu = max(tally.slowest, took), tally.cpu + took
            if found.outcome in FAILURES:
                self._failed(tally, target, found, files, number, expected[which])
            number += 1
            if time.monotonic() - reported > 1:
                if os.getppid() != self.parent:
                    sys.exit("the parent has died")
                yield tally
                tally, reported = Tally(target.name), time.monotonic()
        os.pwrite(self.beat, BEAT.pack(at, -1, 0, 0), 0)
        limit(None)
        tally.peak = max(_status("VmHWM") - start, 0)
        yield tally

    def _undamaged(self, target: Target, files: Files) -> str:
        """Reads a sample as it is, which must work."""
        found = judge(target, Given(files, self.folder / "scratch"), None)
        if found.outcome != "returned":
            raise RuntimeError(f"a sample of {target.name} cannot be read") from found.error
        return found.value

    def _failed(
        self,
        tally: Tally,
        target: Target,
        found: Judgment,
        files: Files,
        number: int,
        expected: str,
    ) -> None:
        error = found.error
        frames = traceback.extract_tb(error.__traceback__) if error else []
        ours = [one for one in frames if "clocs" in one.filename] or list(frames)
        where = f"{Path(ours[-1].filename).name}:{ours[-1].lineno}" if ours else ""
        kind = f"{found.outcome}: {type(error).__name__} {where}"
        said = "".join(traceback.format_exception(error))
        self.saved[f"{target.name} {kind}"] += 1
        if self.saved[f"{target.name} {kind}"] > SAVED_PER_KIND:
            return
        tally.failures.append(
            save_failure(self.job, target.name, number, files, kind, said, expected)
        )


def save_failure(
    job: Job, target: str, number: int, files: Files, kind: str, said: str, expected: str
) -> dict[str, Any]:
    """Keep an input that failed, with what is needed to repeat it; returns its facts."""
    folder = Path(job.out) / f"{target}-{job.seed}-{number}"
    save_files(files, folder / "files")
    facts = {
        "target": target,
        "table": job.table,
        "seed": job.seed,
        "number": number,
        "kind": kind,
        "expected": expected,
        "folder": str(folder),
        "replay": f"script/fuzz --replay {folder}",
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "failure.json").write_text(json.dumps(facts, indent=2))
    (folder / "error.txt").write_text(said, errors="backslashreplace")
    return facts


def limit(memory: int | None) -> None:
    """Allow this process so many more bytes of address space; None: as many as it wants."""
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    soft = hard if memory is None else _status("VmSize") + memory
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _status(name: str) -> int:
    """Bytes, as the system counts them for this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return 0


def _reset_peak() -> None:
    with suppress(OSError):  # where it is not allowed, the peak includes what came before
        Path("/proc/self/clear_refs").write_text("5")


def main() -> None:
    folder = Path(sys.argv[1])
    job = Job(**json.loads((folder / "job.json").read_text()))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    Worker(folder, job).run()


if __name__ == "__main__":
    main()
