"""`clocs reproduce` for machines with torch, numpy, scipy and safetensors alone.

Such as `python -m clocs.experiments table-1 --stores DIR --out RUNS --seconds 540`. Parses, calls,
prints plain lines.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from clocs.errors import ClocsError
from clocs.experiments.grid import NAMES
from clocs.experiments.reproduce import price, reproduce
from clocs.experiments.runner import MEMBERS, Progress
from clocs.experiments.summary import outcome_words, price_lines
from clocs.training.device import pick_device


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns the exit code: 0 only where all that can be done is done."""
    parser = argparse.ArgumentParser(
        prog="python -m clocs.experiments", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("names", nargs="+", help=", ".join(NAMES))
    parser.add_argument("--stores", type=Path, help="folder of stores or saved frames")
    parser.add_argument("--dataset", help="synthetic, instead of --stores")
    parser.add_argument("--out", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--only", action="append", default=[], help="cmsc, downstream=cardiology …")
    parser.add_argument("--device")
    parser.add_argument("--seconds", type=float, help="stop after these; the next call goes on")
    parser.add_argument("--members", type=int, default=MEMBERS, help="downstream, at once")
    parser.add_argument("--parallel", type=int, default=1, help="threads at work, for a GPU")
    parser.add_argument("--retry", action="store_true", help="try again what failed")
    parser.add_argument("--dry-run", action="store_true", help="what would run and how long")
    given = parser.parse_args(arguments)
    common = {
        "out": given.out,
        "stores": given.stores,
        "dataset": given.dataset,
        "seeds": given.seeds,
        "wishes": given.only,
    }
    try:
        if given.dry_run:  # the device need not be at hand
            device = given.device or pick_device(None)
            _print("\n".join(price_lines(price(given.names, device=device, **common))))
            return 0
        device = pick_device(given.device)
        outcome = reproduce(
            given.names,
            device=device,
            seconds=given.seconds,
            members=given.members,
            parallel=given.parallel,
            retry=given.retry,
            on_progress=_tell,
            **common,
        )
    except (ClocsError, OSError) as error:
        sys.stderr.write(f"clocs: {error}\n")
        return 1
    _print(outcome_words(outcome))
    return 0 if outcome.complete else 3


def _tell(progress: Progress) -> None:
    _print(f"[{progress.done}/{progress.total}] {progress.words}")


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
