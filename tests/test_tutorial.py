"""The tutorial runs as it is written, on a folder of strange files."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from ward import write_ward

PAGE = Path(__file__).resolve().parent.parent / "docs" / "tutorial.md"
BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def test_the_tutorial_runs_as_written(own_cache: Path, tmp_path: Path) -> None:
    write_ward(tmp_path / "ward")
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "clocs").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m clocs "$@"\n')
    (programs / "clocs").chmod(0o755)
    environment = os.environ | {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "XDG_CACHE_HOME": str(own_cache),
        "COLUMNS": "150",
    }
    said = []
    for language, text in BLOCK.findall(PAGE.read_text(encoding="utf-8")):
        call = ["sh", "-e", "-c", text] if language == "sh" else [sys.executable, "-c", text]
        done = subprocess.run(
            call, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
            timeout=600,
        )  # fmt: skip
        assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
        said.append(done.stdout + done.stderr)
    everything = " ".join(" ".join(said).split())
    for claim in (
        "CSV 60, DICOM 60, WFDB 60, EDF 61", "interrupted.edf has 3 of 12 data records",
        "values are assumed to be in mV, judging by their size (52 recordings)", "73", "26", "21",
        "AUC per recording", "random-bn (untrained)",
    ):  # fmt: skip
        assert claim in everything, claim
