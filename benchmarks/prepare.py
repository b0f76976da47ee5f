"""Records a second of `clocs prepare`, start-up included, against a plain loop over the same files.

    python benchmarks/prepare.py [--data DIR] [--records 8000] [--cases mat,flac,csv] [--json]

The loop is `wfdb.rdrecord` or `pandas.read_csv`, its imports not counted. Both sides read the same
files, which one untimed pass has put into the page cache, alternately and several times; the median
counts. Without the real recordings, files of the same layout are made.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import pandas as pd
import psutil
import wfdb

import prepare_files as files

TARGETS = {"mat": 15.0, "flac": 8.0, "csv": 2.0}
MAKERS: dict[str, Callable[[Path, Path | None, int], files.Case]] = {
    "mat": files.mat,
    "flac": files.flac,
    "csv": files.csv,
}
_WITHOUT_COMMAND = (
    "import sys; from clocs.store.prepare import prepare; "
    "prepare(sys.argv[1], sys.argv[2], out=sys.argv[4])"
)


@dataclass(frozen=True)
class Result:
    case: str
    records: int
    megabytes: float
    made: bool
    prepare_s: list[float]
    loop_s: list[float]
    peak_mib: float
    target: float

    @property
    def ratio(self) -> float:
        return statistics.median(self.loop_s) / statistics.median(self.prepare_s)


def tree_mib(pid: int) -> float:
    """Memory of a process and its children, what they share counted once."""
    total = 0
    try:
        root = psutil.Process(pid)
        for process in (root, *root.children(recursive=True)):
            total += process.memory_full_info().pss
    except psutil.NoSuchProcess:
        pass
    return total / 2**20


def run_prepare(case: files.Case, out: Path, *, watch: bool = False) -> tuple[float, float]:
    """(seconds, peak MiB if watched, which takes time) of the whole command."""
    whole = importlib.util.find_spec("clocs.__main__") is not None
    head = ["-m", "clocs", "prepare"] if whole else ["-c", _WITHOUT_COMMAND]
    command = [sys.executable, *head, case.dataset, str(case.folder), "--out", str(out)]
    started = time.perf_counter()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    peak = 0.0
    while watch and child.poll() is None:
        peak = max(peak, tree_mib(child.pid))
        time.sleep(0.02)
    child.wait()
    seconds = time.perf_counter() - started
    if child.returncode:
        raise SystemExit(f"{' '.join(command)} failed with {child.returncode}")
    stored = json.loads((out / "manifest.json").read_text())["recordings"]
    if stored != len(case.records):
        raise SystemExit(f"{stored} of {len(case.records)} records were stored: no fair comparison")
    shutil.rmtree(out)
    return seconds, peak


def run_loop(case: files.Case) -> float:
    started = time.perf_counter()
    if case.kind == "csv":
        for record in case.records:
            pd.read_csv(record, header=None)
    else:
        for record in case.records:
            wfdb.rdrecord(str(record.with_suffix("")))
    return time.perf_counter() - started


def measure(kind: str, data: Path | None, *, records: int, repeats: int) -> Result:
    with tempfile.TemporaryDirectory() as name:
        case = MAKERS[kind](Path(name) / "source", data, records)
        size = sum(path.stat().st_size for path in case.folder.rglob("*") if path.is_file())
        out = Path(name) / "store"
        # Warms the page cache and the compiled modules.
        _, peak = run_prepare(case, out, watch=True)
        runs = [(run_prepare(case, out)[0], run_loop(case)) for _ in range(repeats)]
    return Result(
        case=kind,
        records=len(case.records),
        megabytes=size / 1e6,
        made=case.made,
        prepare_s=[prepared for prepared, _ in runs],
        loop_s=[loop for _, loop in runs],
        peak_mib=peak,
        target=TARGETS[kind],
    )


def show(result: Result) -> str:
    def rate(seconds: list[float]) -> str:
        slowest, middle, fastest = (
            f"{result.records / choose(seconds):,.0f}" for choose in (max, statistics.median, min)
        )
        return f"{middle} ({slowest}–{fastest})"

    return (
        f"{result.case:5} {result.records:7,} {result.megabytes:7,.0f} "
        f"{rate(result.prepare_s):>24} {rate(result.loop_s):>18} {result.ratio:6.1f}× "
        f"{result.target:6.0f}× {result.peak_mib:8,.0f}{'  (made)' if result.made else ''}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--data", type=Path, help="folder of the real recordings")
    parser.add_argument("--records", type=int, default=8000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--cases", default=",".join(MAKERS))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    data = files.find_data(options.data)
    if not options.json:
        print(f"{os.cpu_count()} cores; records/s: median (slowest–fastest) of {options.repeats}")
        print(
            f"{'case':5} {'records':>7} {'MB':>7} {'clocs prepare':>24} {'plain loop':>18} "
            f"{'ratio':>7} {'target':>7} {'peak MiB':>8}"
        )
    results = []
    for kind in options.cases.split(","):
        result = measure(kind, data, records=options.records, repeats=options.repeats)
        results.append(asdict(result) | {"ratio": result.ratio})
        if not options.json:
            print(show(result), flush=True)
    if options.json:
        print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
