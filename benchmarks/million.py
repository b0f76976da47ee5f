"""Many recordings through the whole product, one command after the other: time, memory, bytes.

    python benchmarks/million.py --recordings 1000000 --work /data/million

Recordings of one lead, 10 s at 100 Hz, one per patient: the worst case for what is kept per
patient. They are drawn from simulated patients: stretched in time, scaled, and with noise of their
own, in some 50 µs each, so that preparing them is measured and not the simulator.

Each step is a process of its own. Its peak memory is that of all its processes together, looked at
ten times a second: `memory` is what only they can give back, `mapped` the files beside it that
the system can drop whenever it needs the room. Finished steps are kept in results.json in the work
folder, and are not run again.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
from numpy.typing import NDArray

import clocs
from clocs.datasets.base import Dataset, Entry, Listing
from clocs.datasets.synthetic import GAIN, RHYTHMS, draw_patient, simulate, stream

RATE, SAMPLES, LEAD = 100.0, 1000, 1  # Hz, of a recording; the place of II among the twelve
SIMULATED = 1000  # patients that recordings are drawn from
LIMIT = 3.0  # GiB
RESULTS = "results.json"


@dataclass(frozen=True)
class Drawn(Dataset):
    """Recordings drawn from (patients, samples) simulated ones of 20 s."""

    recordings: int
    signals: NDArray[np.float32]  # mV
    rhythm: NDArray[np.int64]  # (patients,) index into `RHYTHMS`

    name = "drawn"
    labels = tuple(rhythm.label for rhythm in RHYTHMS)
    frame = segment_frame = clocs.FrameSpec(5.0, 500)

    def list(self) -> Listing:
        names = (f"P{i:07d}" for i in range(self.recordings))
        entries = tuple(Entry(name, name, str(i)) for i, name in enumerate(names))
        return Listing(entries, fingerprint=f"drawn {self.recordings} {len(self.signals)}")

    def read(self, entry: Entry) -> clocs.Recording:
        rng = stream(0, int(entry.path))
        source = int(rng.integers(len(self.signals)))
        stretch, begin = rng.uniform(0.85, 1.15), rng.uniform(0, 800)
        at = begin + stretch * np.arange(SAMPLES)
        values = np.interp(at, np.arange(self.signals.shape[1]), self.signals[source])
        values = rng.uniform(0.7, 1.4) * values + rng.normal(0, 0.01, SAMPLES)
        return clocs.Recording(
            id=entry.id,
            patient=entry.patient,
            leads=("II",),
            rate=RATE,
            digital=np.rint(GAIN * values).astype(np.int16)[None],
            gain=np.full(1, GAIN),
            baseline=np.zeros(1, np.int32),
            labels=(RHYTHMS[self.rhythm[source]].label,),
            age=float(rng.integers(18, 96)),
            sex=("female", "male")[int(rng.integers(2))],
        )


def drawn(recordings: int) -> Drawn:
    """The dataset; its simulated patients take some seconds."""
    patients = [draw_patient(stream(1, i)) for i in range(min(SIMULATED, recordings))]
    signals = np.zeros((len(patients), int(20 * RATE)), np.float32)
    for i, patient in enumerate(patients):
        heart, noise = simulate(patient, stream(2, i), seconds=20, rate=RATE)
        signals[i] = heart[LEAD] + noise[LEAD]
    rhythm = np.array([RHYTHMS.index(p.rhythm) for p in patients])
    return Drawn(recordings, signals, rhythm)


@dataclass(frozen=True)
class Memory:
    """Peaks in bytes, of all processes together."""

    own: int = 0  # anonymous and shared memory
    mapped: int = 0  # files; whenever, not necessarily at the same moment

    def most(self, other: Memory) -> Memory:
        return Memory(max(self.own, other.own), max(self.mapped, other.mapped))


def memory_of(process: int) -> Memory:
    """Of a process and its descendants, now; what forked processes share counts for each."""
    own = mapped = 0
    waiting = [process]
    while waiting:
        place = Path("/proc") / str(waiting.pop())
        with suppress(OSError, ValueError, KeyError):  # it has ended
            waiting += [
                int(c) for t in place.glob("task/*/children") for c in t.read_text().split()
            ]
            lines = (place / "status").read_text().splitlines()
            kb = {
                name: int(rest.split()[0])
                for name, _, rest in (x.partition(":") for x in lines)
                if name.startswith("Rss")
            }
            own += 1024 * (kb["RssAnon"] + kb["RssShmem"])
            mapped += 1024 * kb["RssFile"]
    return Memory(own, mapped)


@contextmanager
def watched(process: int) -> Iterator[Callable[[], Memory]]:
    """The peak memory of a process so far."""
    peak, ended = [Memory()], threading.Event()

    def look() -> None:
        while not ended.wait(0.1):
            peak[0] = peak[0].most(memory_of(process))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield lambda: peak[0]
    finally:
        ended.set()
        thread.join()


@dataclass
class Result:
    """What a step took."""

    recordings: int
    seconds: float
    processor_seconds: float
    memory: int  # bytes
    mapped: int  # bytes
    written: int  # bytes on disk
    notes: str = ""


@dataclass(frozen=True)
class Step:
    """A command, and what it writes."""

    arguments: tuple[str, ...]
    out: str = ""  # in the work folder

    @property
    def command(self) -> list[str]:
        return [sys.executable, "-m", "clocs", *self.arguments]


def steps_in(work: Path, recordings: int, encoder: Path | None) -> dict[str, Step]:
    store, own, index = (str(work / name) for name in ("store", "run", "index"))
    run = own if encoder is None else str(encoder)
    table = str(work / "patients.parquet")
    return {
        "prepare": Step((), "store"),
        "info": Step(("info", store)),
        "pretrain": Step(("pretrain", store, "--epochs", "1", "--out", own), "run"),
        "embed": Step(("embed", run, store, "--out", table), "patients.parquet"),
        "index": Step(("index", run, store, "--out", index), "index"),
        "similar": Step(("similar", index, "--patient", f"P{recordings // 2:07d}")),
        "explore": Step(
            (
                *("explore", store, "--checkpoint", run, "--embeddings", table),
                *("--no-browse", "--token", "none", "--json"),
            ),
            "cache",
        ),
    }


def bytes_in(path: Path) -> int:
    files = [path] if path.is_file() else [one for one in path.rglob("*") if one.is_file()]
    return sum(file.stat().st_size for file in files)


def run_step(name: str, step: Step, work: Path, recordings: int, *, final_map: bool) -> Result:
    """Run a step to its end; RuntimeError where it fails."""
    command = step.command
    if name == "prepare":
        command = [sys.executable, __file__, "--prepare", "--recordings", str(recordings)]
        command += ["--work", str(work)]
    began = time.perf_counter()
    with (work / f"{name}.log").open("wb") as log:
        # signals beyond half of the memory are mapped from files
        own = {"CLOCS_MEMORY_GIB": str(LIMIT), "CLOCS_CACHE": str(work / "cache")}
        child = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, cwd=work, env=os.environ | own
        )
        with watched(child.pid) as peak:
            notes = looked_at(child, final_map) if name == "explore" else ""
            if name != "explore" and child.stdout is not None:
                shutil.copyfileobj(child.stdout, log)
            _, status, used = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(status)
            memory = peak()
    seconds = time.perf_counter() - began
    stopped = (-signal.SIGTERM, 128 + signal.SIGTERM) if name == "explore" else ()
    if child.returncode not in (0, *stopped):
        raise RuntimeError(f"{name} ended with {child.returncode}; see {work / name}.log")
    return Result(
        recordings,
        seconds,
        used.ru_utime + used.ru_stime,
        memory.own,
        memory.mapped,
        bytes_in(work / step.out) if step.out else 0,
        notes,
    )


def looked_at(server: subprocess.Popen[bytes], final_map: bool) -> str:
    """Ask an explorer for its map and a patient, perhaps wait for the final map, and stop it."""
    try:
        began = time.perf_counter()
        assert server.stdout is not None
        url = json.loads(server.stdout.readline())["url"]
        times = {"address": time.perf_counter() - began}

        def get(name: str, path: str) -> bytes:
            asked = time.perf_counter()
            with urlopen(f"{url}api/{path}", timeout=3600) as answer:
                content = bytes(answer.read())
            times[name] = time.perf_counter() - asked
            return content

        from clocs.web.packing import unpack

        _, arrays = unpack(get("map", "map"))
        code = bytes(arrays["codes"][0]).hex()
        get("neighbors", f"patients/{code}/neighbors")
        get("signal", f"patients/{code}/recordings/0/signal")
        get("patient", f"patients/{code}")
        listed = ", ".join(f"{name} {spent:.2f} s" for name, spent in times.items())
        while final_map:
            state = json.loads(get("state", "projection"))
            if state["state"] != "working":
                listed += f"; {state['description']} after {time.perf_counter() - began:.0f} s"
                break
            time.sleep(0.5)
        return listed
    finally:
        server.terminate()


def table_of(results: dict[str, Result]) -> str:
    """One line per step."""
    lines = [
        "step      recordings   seconds  on the processors  memory GiB  mapped GiB   written GB",
    ]
    for name, one in results.items():
        over = "  ABOVE THE LIMIT" if one.memory > LIMIT * 2**30 else ""
        lines.append(
            f"{name:9s} {one.recordings:>10,} {one.seconds:>9,.1f} {one.processor_seconds:>18,.1f} "
            f"{one.memory / 2**30:>11.2f} {one.mapped / 2**30:>11.2f} {one.written / 1e9:>12.3f}"
            f"{over}"
        )
        if one.notes:
            lines.append(f"          {one.notes}")
    return "\n".join(lines)


def read_results(work: Path) -> dict[str, Result]:
    with suppress(FileNotFoundError):
        saved: dict[str, Any] = json.loads((work / RESULTS).read_text())
        return {name: Result(**one) for name, one in saved.items()}
    return {}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--recordings", type=int, default=1_000_000)
    parser.add_argument("--work", type=Path, required=True, help="folder for everything")
    parser.add_argument("--steps", help="only these, such as embed,index; they are run again")
    parser.add_argument("--encoder", type=Path, help="instead of the one that pretrain makes")
    parser.add_argument(
        "--final-map", action="store_true", help="wait for UMAP before stopping the explorer"
    )
    parser.add_argument("--prepare", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    work: Path = given.work.absolute()
    if given.prepare:
        clocs.prepare(drawn(given.recordings), out=work / "store")
        return
    work.mkdir(parents=True, exist_ok=True)
    steps = steps_in(work, given.recordings, given.encoder)
    results = read_results(work)
    for name in given.steps.split(",") if given.steps else [n for n in steps if n not in results]:
        if steps[name].out:
            old = work / steps[name].out
            shutil.rmtree(old) if old.is_dir() else old.unlink(missing_ok=True)
        results[name] = run_step(
            name, steps[name], work, given.recordings, final_map=given.final_map
        )
        results |= {one: r for one, r in read_results(work).items() if one != name}
        saved = {one: asdict(results[one]) for one in steps if one in results}
        (work / RESULTS).write_text(json.dumps(saved, indent=2))
        print(table_of({name: results[name]}), flush=True)
    print()
    print(table_of({name: results[name] for name in steps if name in results}))


if __name__ == "__main__":
    main()
