"""Analyses of encoders on stores or saved frames, as JSON and Markdown.

Example: `python -m research.analyses identity RUN --data STORE --out RESULTS`. It needs
only torch, numpy, scipy and safetensors where `--data` is a saved Frames file.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from clocs.errors import ClocsError
from clocs.experiments.pages import fill
from clocs.training.checkpoint import load_checkpoints
from research.analyses.run import ANALYSES, analyze, load_data, read_all, save
from research.analyses.tables import tables


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m research.analyses", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("name", choices=[*ANALYSES, "page"], help="page: only --fill")
    parser.add_argument("checkpoints", type=Path, nargs="*", help="files, or folders of seeds")
    parser.add_argument("--data", type=Path, action="append", default=[], help="store or frames")
    parser.add_argument("--seconds", type=float, help="of a frame; as trained by default")
    parser.add_argument("--out", type=Path, required=True, help="folder of results, as JSON")
    parser.add_argument("--fill", type=Path, action="append", default=[], help="Markdown to fill")
    parser.add_argument("--device", help="cpu, cuda, …; the best available by default")
    given = parser.parse_args(arguments)
    try:
        for one in given.checkpoints:
            checkpoints = load_checkpoints(one)
            data = [load_data(path, checkpoints[0], given.seconds) for path in given.data]
            for found in analyze(given.name, checkpoints, data, device=given.device):
                sys.stdout.write(f"{save(found, given.out)}\n")
                sys.stdout.flush()
        parts = tables(read_all(given.out))
        for page in given.fill:
            fill(page, parts)
    except (ClocsError, OSError) as error:
        sys.stderr.write(f"clocs: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
