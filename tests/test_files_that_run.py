"""A short way: of how many files of the package a command calls functions, imports aside."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import edf_files
from clocs import Store

MAX_FILES = {"pretrain": 44, "predict": 30, "reproduce": 55}
COUNT = """
import sys, threading
from pathlib import Path
import polars, rich.console, scipy.signal, torch  # which would take seconds longer when traced
import clocs
SRC, FUNCTION, files = str(Path(clocs.__file__).parent), 0x2, set()
def of_package(code):
    return code.co_filename.startswith(SRC)
def importing(frame):
    while frame and not (frame.f_code.co_name == "<module>" and of_package(frame.f_code)):
        frame = frame.f_back
    return frame is not None
def seen(frame, event, argument):
    code = frame.f_code
    if event == "call" and code.co_flags & FUNCTION and of_package(code):
        file = code.co_filename[len(SRC) + 1 :]
        if file not in files and not importing(frame):
            files.add(file)
threading.settrace(seen)
sys.settrace(seen)
from clocs.cli.main import run
sys.argv[0] = "clocs"
code = run()
sys.settrace(None)
assert not code, code
print("FILES", *sorted(files))
"""


def files_of(*words: object) -> list[str]:
    ran = subprocess.run(
        [sys.executable, "-c", COUNT, *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return next(line for line in ran.stdout.splitlines() if line.startswith("FILES")).split()[1:]


def expect_few(command: str, files: list[str]) -> None:
    assert len(files) <= MAX_FILES[command], f"{len(files)}: {' '.join(files)}"


def test_pretraining_runs_few_files(few_store: Store, tmp_path: Path) -> None:
    words = ("--method", "cmsc", "--epochs", 1, "--embedding-dim", 8, "--out", tmp_path / "run")
    expect_few("pretrain", files_of("pretrain", few_store.path, *words))


def test_predicting_one_file_runs_few_files(tmp_path: Path) -> None:
    pytest.importorskip("edfio", reason="needs edfio to write an EDF file")
    leads = [edf_files.signal(name, 500.0) for name in ("I", "II", "V1")]
    file = edf_files.write(tmp_path, leads)
    expect_few("predict", files_of("predict", "rhythm-chapman", file))


def test_reproducing_a_table_runs_few_files(tmp_path: Path) -> None:
    words = ("--dataset", "synthetic", "--seeds", 1, "--out", tmp_path)
    only = ("--only", "cmsc", "--only", "downstream=chapman")
    expect_few("reproduce", files_of("reproduce", "table-1", *words, *only))
