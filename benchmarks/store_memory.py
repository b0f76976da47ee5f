"""Memory that a store takes per recording: listing it, opening it whole and in shards.

    python benchmarks/store_memory.py --recordings 100000 --leads 12

Makes a store of short recordings with the table of usual ones (IDs, dates, labels, extra fields),
in one piece and in shards, and measures each step in a process of its own: the growth of its
resident memory, and the peak while it grew. Prints bytes per recording and, multiplied, what ten
million take.
"""

from __future__ import annotations

import argparse
import gc
import json
import resource
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import clocs
from clocs.datasets.base import Dataset, Entry, Listing
from clocs.recording import STANDARD_LEADS, FrameSpec, Recording

SHARDS = 8
STEPS = ("list", "open whole", "open in shards", "plan frames")


@dataclass(frozen=True)
class Short(Dataset):
    """Recordings of 50 samples each, two of a patient."""

    name = "short"
    labels = ("SR", "AFIB")
    frame = FrameSpec(0.5, 50)
    segment_frame = FrameSpec(0.5, 50)

    recordings: int = 1000
    leads: int = 12

    def list(self) -> Listing:
        entries = (
            Entry(
                f"archive-{i:09d}",
                f"PID{i // 2:09d}",
                f"2019/{i % 365:03d}/archive-{i:09d}.hea",
                {"patient": f"PID{i // 2:09d}", "age": "61", "sex": "female"},
            )
            for i in range(self.recordings)
        )
        return Listing(tuple(entries), fingerprint=f"{self.recordings} {self.leads}")

    def read(self, entry: Entry) -> Recording:
        number = int(entry.id[-9:])
        random = np.random.default_rng(number)
        return Recording(
            id=entry.id,
            patient=entry.patient,
            leads=STANDARD_LEADS[: self.leads],
            rate=100.0,
            digital=random.integers(-500, 500, (self.leads, 50)).astype(np.int16),
            gain=np.full(self.leads, 1000.0),
            baseline=np.zeros(self.leads, np.int32),
            labels=(self.labels[number % 2],),
            age=61.0,
            sex="female",
            recorded_at=f"2019-01-{number % 28 + 1:02d}T12:00:00",
            extra={"device": "MAC 5500", "site": f"{number % 40}"},
        )


def _resident() -> int:
    """Bytes of this process in memory now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def _peak() -> int:
    """The most that it was."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])


def _step(step: str, folder: Path, dataset: Short) -> dict[str, float]:
    """Growth and peak of this process's memory over one step."""
    from clocs.frames.make import plan_frames
    from clocs.store.store import open_store

    open_store(folder / "few").table.height  # noqa: B018 (imports, and threads of polars)
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    kept: list[object] = []
    before = _resident()
    if step == "list":
        kept.append(dataset.list())
    else:
        store = open_store(folder / ("whole" if step == "open whole" else "shards"))
        kept += [store, store.table]
        if step == "plan frames":
            kept.append(plan_frames(store))
    gc.collect()
    return {"resident": _resident() - before, "peak": _peak() - before}


def main() -> None:
    """See above."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--recordings", type=int, default=100_000)
    parser.add_argument("--leads", type=int, default=12)
    parser.add_argument("--step", choices=STEPS)
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args()
    dataset = Short(given.recordings, given.leads)
    if given.step:
        print(json.dumps(_step(given.step, given.folder, dataset)))
        return
    with tempfile.TemporaryDirectory(dir=given.folder) as name:
        folder = Path(name)
        clocs.prepare(Short(16, given.leads), out=folder / "few", shards=2)
        clocs.prepare(dataset, out=folder / "whole")
        clocs.prepare(dataset, out=folder / "shards", shards=SHARDS)
        table = (folder / "whole" / "table.parquet").stat().st_size
        words = f"{given.recordings:,} recordings of {given.leads} leads, {SHARDS} shards"
        print(f"{words}; the table takes {table / given.recordings:.0f} bytes of each on disk")
        print(f"{'step':16}{'bytes per recording':>22}{'at the peak':>14}{'ten million':>14}")
        for step in STEPS:
            command = [sys.executable, __file__, "--step", step, "--folder", str(folder)]
            sizes = [f"--recordings={given.recordings}", f"--leads={given.leads}"]
            found = json.loads(subprocess.check_output([*command, *sizes]))
            each, peak = (found[key] / given.recordings for key in ("resident", "peak"))
            print(f"{step:16}{each:22,.0f}{peak:14,.0f}{each / 100:11,.1f} GB")


if __name__ == "__main__":
    main()
