"""The command line of the fuzzer: `script/fuzz --minutes 10`."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from fuzz.run import TABLE, fuzz, replay, targets_of
from fuzz.worker import Tally


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="script/fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0, help="for all targets together")
    parser.add_argument("--inputs", type=int, help="per target, in place of --minutes")
    parser.add_argument("--target", action="append", help="only this one; may be repeated")
    parser.add_argument("--seed", type=int, default=0, help="another seed, other inputs")
    parser.add_argument("--workers", type=int, default=2, help="processes at a time")
    parser.add_argument(
        "--out", type=Path, default=Path("fuzz-failures"), help="for failing inputs"
    )
    parser.add_argument("--replay", type=Path, help="read one failing input again")
    return parser


def main() -> int:
    parser = make_parser()
    given = parser.parse_args()
    if given.replay is not None:
        print(replay(given.replay))
        return 0
    known = targets_of(TABLE)
    names = given.target or list(known)
    if unknown := [name for name in names if name not in known]:
        parser.error(f"there is no target {unknown[0]}; use one of {', '.join(known)}")
    seconds = None if given.inputs else given.minutes * 60 * given.workers / len(names)
    began = time.monotonic()
    tallies = fuzz(
        names,
        out=given.out.absolute(),
        seed=given.seed,
        inputs=given.inputs,
        seconds=seconds,
        workers=given.workers,
    )
    print(table(tallies.values()))
    print(f"{time.monotonic() - began:.0f} s with {given.workers} workers, seed {given.seed}")
    failures = [failure for tally in tallies.values() for failure in tally.failures]
    for failure in {(one["target"], one["kind"]): one for one in reversed(failures)}.values():
        print(f"{failure['target']}: {failure['kind']}\n    {failure['replay']}")
    return 1 if failures else 0


def table(tallies: Iterable[Tally]) -> str:
    """One line per target, and their sum."""
    lines = [
        f"{'target':<18}{'inputs':>9}{'errors':>9}{'returned':>9}{'escapes':>9}{'silent':>8}"
        f"{'slowest s':>11}{'peak MiB':>10}"
    ]
    total = Tally("all")
    every = list(tallies)
    for tally in every:
        total.add(tally)
    for tally in (*every, total):
        counts = [
            tally.outcomes.get(name, 0) for name in ("error", "returned", "escape", "silent change")
        ]
        error, returned, escape, silent = (f"{count:,}" for count in counts)
        lines.append(
            f"{tally.target:<18}{tally.inputs:>9,}{error:>9}{returned:>9}{escape:>9}{silent:>8}"
            f"{tally.slowest:>11.3f}{tally.peak / 2**20:>10.0f}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
