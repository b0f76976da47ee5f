"""`clocs reproduce` for machines with only torch, numpy, scipy and safetensors.

Example: `python -m clocs.experiments table-1 --stores DIR --out RUNS --seconds 540`.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from clocs.errors import ClocsError
from clocs.experiments.dry_run import estimate
from clocs.experiments.grid import NAMES
from clocs.experiments.reproduce import reproduce
from clocs.experiments.runner import MEMBERS, GridProgress
from clocs.training.ranks import pick_device

INTERRUPTED = 130  # exit code, as of a shell


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
    parser.add_argument(
        "--with",
        dest="known",
        type=Path,
        action="append",
        default=[],
        help="folder of runs or a report, whose results are not computed again",
    )
    parser.add_argument("--device", help="cpu, cuda, …; the best available by default")
    parser.add_argument("--seconds", type=float, help="time limit; the next call resumes")
    parser.add_argument(
        "--members", type=int, default=MEMBERS, help="most encoders to train downstream at once"
    )
    parser.add_argument(
        "--parallel", type=int, default=1, help="worker threads; with --ray, tasks on one GPU"
    )
    parser.add_argument("--retry", action="store_true", help="run again what failed")
    parser.add_argument("--ray", help="compute on a Ray cluster: auto, or its HOST:PORT")
    parser.add_argument(
        "--cluster", help="with --dry-run: price a cluster of nodes x GPUs of each, such as 8x4"
    )
    parser.add_argument("--dry-run", action="store_true", help="list what would run and how long")
    given = vars(parser.parse_args(arguments))
    names, dry_run, cluster = (given.pop(key) for key in ("names", "dry_run", "cluster"))
    try:
        if dry_run:  # for a device that need not be available
            asked = ("out", "stores", "dataset", "seeds", "only", "known", "members", "ray")
            common = {key: given[key] for key in asked}
            here = None if given["ray"] or cluster else pick_device(None)
            device = given["device"] or here
            found = estimate(names, device=device, cluster=cluster, **common)
            _print("\n".join(found.lines()))
            return 0
        status = reproduce(*names, on_progress=_show, **given)
    except KeyboardInterrupt:
        sys.stderr.write(
            "clocs: interrupted; what is done is kept; run the same command again to continue\n"
        )
        return INTERRUPTED
    except (ClocsError, OSError) as error:
        message = re.sub(r"`(\w+)`", lambda m: f"--{m[1]}" if m[1] in given else m[0], str(error))
        sys.stderr.write(f"clocs: {message}\n")
        return 1
    _print(str(status))
    return 0 if status.complete else 3


def _show(progress: GridProgress) -> None:
    _print(f"[{progress.done}/{progress.total}] {progress.message}")


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
