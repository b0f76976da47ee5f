"""Analyses of encoders on stores or saved frames, as JSON and Markdown.

Example: `python -m research.analyses identity RUN --data STORE --out RESULTS`. It needs
only torch, numpy, scipy and safetensors where `--data` is a saved Frames file.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from clocs.errors import ClocsError
from clocs.experiments.pages import fill
from clocs.patients.controls import CONTROLS
from clocs.training.checkpoint import Checkpoint, load_checkpoints
from research.analyses.run import ANALYSES, analyze, days_of, load_data, read_all, save
from research.analyses.tables import tables


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m research.analyses", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("name", choices=[*ANALYSES, "page"], help="page: only --fill")
    parser.add_argument("encoders", nargs="*", help="files, folders of seeds, names, controls")
    parser.add_argument("--data", type=Path, action="append", default=[], help="store or frames")
    parser.add_argument("--leads", type=lambda text: text.split(","), help="as trained by default")
    parser.add_argument("--out", type=Path, required=True, help="folder of results, as JSON")
    parser.add_argument("--fill", type=Path, action="append", default=[], help="Markdown to fill")
    parser.add_argument("--device", help="cpu, cuda, …; the best available by default")
    given = parser.parse_args(arguments)
    try:
        encoders = [[one] if one in CONTROLS else load_checkpoints(one) for one in given.encoders]
        for own in encoders:
            data = [load_data(path, own[0], given.leads) for path in given.data]
            more: dict[str, Any] = {}
            if given.name == "identity":
                others = [one for some in encoders for one in some if isinstance(one, Checkpoint)]
                more = {"days": days_of(given.data[-1], data[-1]), "besides": others}
            for found in analyze(given.name, own, data, device=given.device, **more):
                print(save(found, given.out), flush=True)
        parts = tables(read_all(given.out))
        for page in given.fill:
            fill(page, parts)
    except (ClocsError, OSError) as error:
        sys.stderr.write(f"clocs: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
