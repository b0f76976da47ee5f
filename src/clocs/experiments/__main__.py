"""`clocs reproduce` for machines with only torch, numpy, scipy and safetensors.

Example: `python -m clocs.experiments table-1 --stores DIR --out RUNS --seconds 540`.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from clocs.errors import ClocsError
from clocs.experiments.grid import NAMES
from clocs.experiments.reproduce import reproduce

INTERRUPTED, UNFINISHED = 130, 3  # exit codes; the first as of a shell


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns the exit code, which is 0 only if everything possible is done."""
    parser = argparse.ArgumentParser(
        prog="python -m clocs.experiments", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("names", nargs="+", help=", ".join(NAMES))
    parser.add_argument("--stores", type=Path, help="folder of stores or saved frames")
    parser.add_argument("--dataset", help="synthetic, instead of --stores")
    parser.add_argument("--out", type=Path, required=True, help="folder for the runs")
    parser.add_argument("--seeds", type=int, help="number of seeds; five by default")
    parser.add_argument("--only", action="append", default=[], help="cmsc, downstream=cardiology …")
    parser.add_argument("--device", help="cpu, cuda, …; the best available by default")
    parser.add_argument("--seconds", type=float, help="time limit; the next call resumes")
    parser.add_argument("--parallel", type=int, default=1, help="worker threads")
    parser.add_argument("--retry", action="store_true", help="run again what failed")
    given = vars(parser.parse_args(arguments))
    try:
        status = reproduce(*given.pop("names"), on_progress=_show, **given)
    except KeyboardInterrupt:
        sys.stderr.write(
            "clocs: interrupted; what is done is kept; run the same command again to continue\n"
        )
        return INTERRUPTED
    except (ClocsError, OSError) as error:
        message = re.sub(r"`(\w+)`", lambda m: f"--{m[1]}" if m[1] in given else m[0], str(error))
        sys.stderr.write(f"clocs: {message}\n")
        return 1
    print(status, flush=True)  # noqa: T201
    return 0 if status.complete else UNFINISHED


def _show(message: str, done: int, total: int) -> None:
    print(f"[{done}/{total}] {message}", flush=True)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
