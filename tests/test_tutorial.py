"""The tutorial runs as it is written, on a folder of strange files."""

from __future__ import annotations

import io
import re
import shlex
from contextlib import chdir, redirect_stdout
from pathlib import Path

import pytest

from clocs.cli import console
from command_line import clocs
from ward import write_ward

PAGE = Path(__file__).resolve().parent.parent / "docs" / "tutorial.md"
LONG = "--epochs 100 "
BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def test_the_tutorial_runs_as_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process: tests/cli/test_cli.py shows that a process of its own says the same.

    The training is shorter: no claim depends on what the encoder has learned.
    """
    write_ward(tmp_path / "ward")
    monkeypatch.setattr(console.out, "width", 150)
    said = []
    page = PAGE.read_text(encoding="utf-8")
    assert LONG in page
    for language, text in BLOCK.findall(page.replace(LONG, "--epochs 2 ")):
        if language == "python":
            with chdir(tmp_path), redirect_stdout(io.StringIO()) as printed:
                exec(text, {})
            said.append(printed.getvalue())
            continue
        for line in text.splitlines():
            program, *words = shlex.split(line)
            assert program == "clocs"
            done = clocs(*words, cwd=tmp_path)
            said += [done.stdout, done.stderr]
    everything = " ".join(" ".join(said).split())
    for claim in (
        "CSV 60, DICOM 60, WFDB 60, EDF 61", "interrupted.edf has 3 of 12 data records",
        "values are assumed to be in mV, judging by their size (52 recordings)", "73", "26", "21",
        "AUC per recording", "random-bn (untrained)",
    ):  # fmt: skip
        assert claim in everything, claim
