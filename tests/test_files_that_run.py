"""A short way: of how many files of the package a command calls functions, imports aside."""

from __future__ import annotations

import json
import sys

import pytest

import edf_files
import warm
from clocs import Store

MAX_FILES = {"pretrain": 44, "predict": 30, "reproduce": 60}
# Everything is imported before it is traced, which would take seconds longer, and once: each
# command runs in a fork.
COUNT = """
import json, os, sys, threading
from pathlib import Path
import polars, rich.console, scipy.signal, sympy, torch
import clocs, clocs.experiments.reproduce, clocs.models.predict, clocs.pretraining.pretrain
from clocs.cli.main import run
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
for words in json.loads(sys.argv[1]):
    child = os.fork()
    if not child:
        sys.argv = ["clocs", *words]
        threading.settrace(seen)
        sys.settrace(seen)
        code = run()
        sys.settrace(None)
        if not code:
            print("\\nFILES", words[0], *sorted(files), flush=True)
        os._exit(code)
    assert os.waitpid(child, 0)[1] == 0, words
"""


@pytest.fixture(scope="module")
def files(few_store: Store, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Of each command, the files whose functions it calls."""
    pytest.importorskip("edfio", reason="needs edfio to write an EDF file")
    folder = tmp_path_factory.mktemp("files")
    leads = [edf_files.signal(name, 500.0) for name in ("I", "II", "V1")]
    small = ("--method", "cmsc", "--epochs", 1, "--embedding-dim", 8, "--out", folder / "run")
    grid = ("--dataset", "synthetic", "--seeds", 1, "--out", folder / "grid")
    commands = (
        ("pretrain", few_store.path, *small),
        ("predict", "rhythm-chapman", edf_files.write(folder, leads)),
        ("reproduce", "table-1", *grid, "--only", "cmsc", "--only", "downstream=chapman"),
    )
    words = json.dumps([list(map(str, one)) for one in commands])
    ran = warm.run("-c", COUNT, words)
    assert ran.returncode == 0, ran.stderr
    found = [line.split() for line in ran.stdout.splitlines() if line.startswith("FILES")]
    return {name: names for _, name, *names in found}


@pytest.mark.skipif(sys.platform == "win32", reason="processes are forked")
@pytest.mark.parametrize("command", MAX_FILES)
def test_a_command_runs_few_files(command: str, files: dict[str, list[str]]) -> None:
    own = files[command]
    assert len(own) <= MAX_FILES[command], f"{len(own)}: {' '.join(own)}"
