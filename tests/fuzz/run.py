"""Runs targets in worker processes, watches over them, and adds up what they found."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from compiled_code import with_compiled_code
from fuzz.target import Given, Target, judge
from fuzz.worker import BEAT, Job, Tally, load_files, load_samples, make_input, save_failure

TABLE = "fuzz.targets"
MEMORY = 1 << 30  # bytes that reading one input may take
CPU_SECONDS = 10.0  # … and seconds of processor time
WALL_SECONDS = 60.0  # after so many seconds a worker is killed
NO_MEMORY = "memory allocation of"  # the last words of Rust, which ends the process
_POLL = 0.05


def targets_of(table: str) -> dict[str, Target]:
    found: dict[str, Target] = importlib.import_module(table).TARGETS
    return found


@dataclass
class _Running:
    folder: Path
    job: Job
    process: subprocess.Popen[bytes]

    def beat(self) -> tuple[int, int, float, float]:
        """Which target and input it reads, since when, and until when it may go on."""
        held = (self.folder / "beat").read_bytes() if (self.folder / "beat").exists() else b""
        if len(held) != BEAT.size:
            return 0, -1, 0.0, 0.0
        at, number, since, ends = BEAT.unpack(held)
        return int(at), int(number), float(since), float(ends)


def fuzz(
    names: Sequence[str],
    *,
    out: Path,
    seed: int = 0,
    inputs: int | None = None,
    seconds: float | None = None,
    workers: int = 2,
    table: str = TABLE,
    cpu_seconds: float = CPU_SECONDS,
    wall_seconds: float = WALL_SECONDS,
    memory: int = MEMORY,
) -> dict[str, Tally]:
    """Read damaged samples of these targets; what was found, by target.

    Args:
        names: Of the targets.
        out: Where failing inputs are saved.
        seed: The same seed gives the same inputs, as long as the samples are the same.
        inputs: So many per target; or
        seconds: so long per target.
        workers: Processes at a time.
        table: The module whose `TARGETS` are meant.
        cpu_seconds: The most processor time of one input.
        wall_seconds: A worker that reads one input for longer is killed.
        memory: Bytes that a worker may take while it reads.
    """
    tallies = {name: Tally(name) for name in names}
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None) as given:
        folder = Path(given)
        with_compiled_code(folder / "cache")
        job = Job(
            table=table,
            targets=list(names),
            seed=seed,
            first=0,
            inputs=inputs,
            seconds=seconds,
            left=None,
            memory=memory,
            cpu_seconds=cpu_seconds,
            out=str(out),
            samples=str(folder / "samples"),
        )
        waiting = [replace(job, targets=list(names[at::workers])) for at in range(workers)]
        running: list[_Running] = []
        try:
            while waiting or running:
                while waiting and len(running) < workers:
                    running.append(_start(folder, waiting.pop(0)))
                time.sleep(_POLL)
                for one in list(running):
                    rest = _look(one, tallies, wall_seconds)
                    if rest is not None:
                        running.remove(one)
                        waiting[:0] = rest
                        shutil.rmtree(one.folder)
        finally:
            for one in running:
                one.process.kill()
                one.process.wait()
    return tallies


def _environment() -> dict[str, str]:
    """One thread, and modules found where this process finds them."""
    return os.environ | {
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent.parent), *filter(None, sys.path)]),
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "POLARS_MAX_THREADS": "1",
        "PYTHONHASHSEED": "0",
        "RUST_BACKTRACE": "0",
        "MALLOC_ARENA_MAX": "2",
    }


def _start(shared: Path, job: Job) -> _Running:
    folder = Path(tempfile.mkdtemp(prefix="worker-", dir=shared))
    (folder / "job.json").write_text(json.dumps(asdict(job)))
    environment = _environment() | {"TMPDIR": str(folder), "CLOCS_CACHE": str(shared / "cache")}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "fuzz.worker", str(folder)],
            env=environment,
            stdout=log,
            stderr=log,
        )
    return _Running(folder, job, process)


def _look(one: _Running, tallies: dict[str, Tally], wall_seconds: float) -> list[Job] | None:
    """None while it runs; once it has ended, what is left to do."""
    at, number, since, ends = one.beat()
    why = ""
    if one.process.poll() is None:
        if number < 0 or time.monotonic() - since < wall_seconds:
            return None
        one.process.kill()
        one.process.wait()
        why = f"timeout after {wall_seconds:g} s"
    _collect(one, tallies)
    if one.process.returncode == 0:
        return []
    log = (one.folder / "log").read_text(errors="replace")
    if number < 0:
        raise RuntimeError(f"a worker for {one.job.targets} did not start:\n{log[-4000:]}")
    name = one.job.targets[at]
    target = targets_of(one.job.table)[name]
    if not why and target.limited and NO_MEMORY in log:
        tallies[name].add(Tally(name, 1, {"error": 1}))
    else:
        why = why or f"crash with exit status {one.process.returncode}"
        samples = load_samples(Path(one.job.samples) / name)
        _, files = make_input(target, samples, one.job.seed, number)
        failure = save_failure(one.job, name, number, files, f"escape: {why}", log[-4000:], "")
        slowest = time.monotonic() - since
        tallies[name].add(Tally(name, 1, {"escape": 1}, slowest, failures=[failure]))
    rest = replace(one.job, targets=one.job.targets[at:], first=number + 1)
    if one.job.seconds is not None:
        rest = replace(rest, left=max(ends - time.monotonic(), 0.01))
    return [rest]


def _collect(one: _Running, tallies: dict[str, Tally]) -> None:
    events = one.folder / "events.jsonl"
    for line in events.read_text().splitlines() if events.exists() else []:
        tally = Tally(**json.loads(line))
        tallies[tally.target].add(tally)


def replay(folder: Path) -> str:
    """Read a saved input again, in this process; says what happened."""
    facts = json.loads((folder / "failure.json").read_text())
    target = targets_of(facts["table"])[facts["target"]]
    files = load_files(folder / "files")
    with tempfile.TemporaryDirectory() as scratch:
        expected = facts["expected"] or None
        found = judge(
            target, Given(files, Path(scratch) / "read"), None if target.seal else expected
        )
    error = "".join(traceback.format_exception(found.error)) if found.error else ""
    return f"{error}{found.outcome}"
