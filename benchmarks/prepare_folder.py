"""`clocs prepare folder` against `clocs prepare NAME` on the same files, start-up included.

    python benchmarks/prepare_folder.py NAME SOURCE [--repeats 3]

Both run alternately; the median of the seconds, and of the processor time of all processes, counts.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def run(name: str, source: Path, out: Path) -> tuple[float, float]:
    """(seconds, seconds of processor time) of the whole command."""
    command = [sys.executable, "-m", "clocs", "prepare", name, str(source), "--out", str(out)]
    started, before = time.perf_counter(), os.times()
    subprocess.run(command, check=True, capture_output=True)
    seconds, after = time.perf_counter() - started, os.times()
    used = after.children_user + after.children_system
    return seconds, used - before.children_user - before.children_system


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("name")
    parser.add_argument("source", type=Path)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    found: dict[str, list[tuple[float, float]]] = {options.name: [], "folder": []}
    with tempfile.TemporaryDirectory() as folder:
        run(options.name, options.source, Path(folder, "warm"))
        for repeat in range(options.repeats):
            for name, runs in found.items():
                runs.append(run(name, options.source, Path(folder, f"{name}-{repeat}")))
    middle = {
        name: [statistics.median(one[i] for one in runs) for i in range(2)]
        for name, runs in found.items()
    }
    for name, (seconds, used) in middle.items():
        print(f"{name:14} {seconds:7.1f} s {used:7.1f} s of processor time")
    ratios = [middle["folder"][i] / middle[options.name][i] for i in range(2)]
    print(f"folder takes {ratios[0]:.2f} times as long, {ratios[1]:.2f} times the processor time")


if __name__ == "__main__":
    main()
