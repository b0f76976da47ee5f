"""Compare encoders that see many leads at once; needs torch, numpy, scipy and safetensors alone.

Example: `python -m research.many_leads --frames saved --out runs --seconds 540`.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from clocs.errors import ClocsError
from clocs.experiments.pages import fill
from clocs.files import PUBLIC
from research.many_leads.items import STAGES
from research.many_leads.recipe import TINY, Recipe
from research.many_leads.results import FILE, joined, read, read_runs, write
from research.many_leads.runner import run
from research.many_leads.tables import parts

INTERRUPTED, UNFINISHED = 130, 3  # exit codes


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns the exit code, which is 0 only if everything possible is done."""
    parser = argparse.ArgumentParser(
        prog="python -m research.many_leads", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--frames", type=Path, help="folder of saved frames; simulated if left out")
    parser.add_argument("--out", type=Path, required=True, help="folder for the runs")
    parser.add_argument("--stages", default=STAGES, help=f"letters of {STAGES}; all by default")
    parser.add_argument("--only", action="append", default=[], help="part of an item's name")
    parser.add_argument("--device", help="cpu, cuda, …; the best available by default")
    parser.add_argument("--seconds", type=float, help="time limit; the next call resumes")
    parser.add_argument(
        "--tiny", action="store_true", help="tiny settings and one item of each kind, to try it out"
    )
    parser.add_argument("--retry", action="store_true", help="compute again what failed")
    parser.add_argument(
        "--report", type=Path, action="append", help="folder of runs to report; of a report, first"
    )
    parser.add_argument(
        "--fill", type=Path, action="append", default=[], help="page whose tables to update"
    )
    given = parser.parse_args(arguments)
    try:
        if given.report:
            published = given.report[0] / FILE
            known = [read(published)] if published.is_file() else []
            runs = given.report[len(known) :]
            results = joined([*known, *([read_runs(runs)] if runs else [])])
            from clocs.figures.canvas import save  # which needs matplotlib
            from research.many_leads.forest import figures

            made = [write(results, given.out)]
            for name, figure in figures(results).items():
                made.append(given.out / name)
                save(figure, made[-1], mode=PUBLIC)
            for page in given.fill:
                fill(page, parts(results))
            print("\n".join(f"Wrote {path}." for path in made))
            return 0
        done = run(
            given.out,
            frames=given.frames,
            stages=given.stages,
            only=given.only,
            recipe=TINY if given.tiny or given.frames is None else Recipe(),
            device=given.device,
            seconds=given.seconds,
            retry=given.retry,
            say=print,
        )
    except KeyboardInterrupt:
        sys.stderr.write("clocs: interrupted; run the same command again to continue\n")
        return INTERRUPTED
    except (ClocsError, OSError) as error:
        names = vars(given)
        message = re.sub(r"`(\w+)`", lambda m: f"--{m[1]}" if m[1] in names else m[0], str(error))
        sys.stderr.write(f"clocs: {message}\n")
        return 1
    print(f"{done.computed} computed, {done.failed} failed, {done.left} left")
    return 0 if done.complete else UNFINISHED


if __name__ == "__main__":
    sys.exit(main())
