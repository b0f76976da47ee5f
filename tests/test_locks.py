"""Two processes and one folder: real processes, real locks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import warm
from clocs.errors import BusyError
from clocs.files import LOCK, locked
from clocs.store.store import Store, open_store
from command_line import clocs

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs locks on files")

HOLD = """
import sys, time
from pathlib import Path
from clocs.files import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(3600)
"""


def start(*arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *map(str, arguments)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def hold(folder: Path) -> subprocess.Popen[str]:
    """A process that has the folder."""
    child = start("-c", HOLD, folder)
    assert child.stdout is not None
    assert child.stdout.readline() == "held\n"
    return child


def kill(child: subprocess.Popen[str] | warm.Process) -> None:
    child.send_signal(signal.SIGKILL)
    child.communicate()


def test_a_second_process_is_told_who_has_the_folder(tmp_path: Path) -> None:
    child = hold(tmp_path)
    try:
        with pytest.raises(BusyError, match=rf"being written by another process \({child.pid}\)"):
            locked(tmp_path).__enter__()
    finally:
        kill(child)


def test_a_killed_process_leaves_no_lock(tmp_path: Path) -> None:
    kill(hold(tmp_path))
    assert (tmp_path / LOCK).exists()  # the file stays, nobody holds it
    with locked(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_free_again_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), locked(tmp_path / "new"):
        raise ZeroDivisionError
    with locked(tmp_path / "new"), pytest.raises(BusyError), locked(tmp_path / "new"):
        pass
    assert list((tmp_path / "new").iterdir()) == []


def test_of_many_at_once_one_at_a_time_gets_in(tmp_path: Path) -> None:
    """Taking, removing and taking again races; a counter that nobody else may touch tells."""
    script = """
import sys
from pathlib import Path
from clocs.errors import BusyError
from clocs.files import locked
folder, got = Path(sys.argv[1]), 0
count = folder.parent / "count"
while got < 200:
    try:
        with locked(folder):
            count.write_text(str(int(count.read_text()) + 1))
            got += 1
    except BusyError:
        pass
"""
    (tmp_path / "count").write_text("0")
    children = [start("-c", script, tmp_path / "folder") for _ in range(3)]
    for child in children:
        _, complaint = child.communicate(timeout=600)
        assert child.returncode == 0, complaint
    assert (tmp_path / "count").read_text() == "600"


def busy(*arguments: object) -> None:
    """This command is refused in one sentence."""
    done = clocs(*arguments, code=1)
    assert done.stdout == ""
    assert "being written by another process" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def wait_for(path: Path, child: warm.Process) -> None:
    while not path.exists():
        assert child.poll() is None, child.communicate()
        time.sleep(0.002)


def test_two_pretrainings_cannot_share_a_folder(small_store: Store, tmp_path: Path) -> None:
    few = ("--embedding-dim", 8, "--patience", 10_000)
    command = ("pretrain", small_store.path, "--out", tmp_path / "run", *few)
    first = warm.Process(
        *("-m", "clocs", *command, "--epochs", 10_000),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        wait_for(tmp_path / "run" / "log.jsonl", first)
        first.send_signal(signal.SIGSTOP)
        busy(*command, "--epochs", 10_000, "--resume")
        busy(*command, "--epochs", 1)
        assert first.poll() is None
    finally:
        kill(first)
    assert not list((tmp_path / "run").glob("seed-*"))


PREPARE = """
import sys
from clocs import prepare
def wait(*_):
    if not waited:
        waited.append(print("writing", flush=True))
        sys.stdin.readline()
waited = []
prepare("synthetic", out=sys.argv[1], patients=4, progress=wait)
"""


def test_two_preparations_cannot_share_a_store(tmp_path: Path) -> None:
    out = tmp_path / "store"
    command = ("prepare", "synthetic", "--patients", 4, "--out", out)
    first = start("-c", PREPARE, out)
    assert first.stdout is not None
    assert first.stdout.readline() == "writing\n"
    assert (out / LOCK).exists()
    busy(*command)
    _, complaint = first.communicate("\n", timeout=600)
    assert first.returncode == 0, complaint
    store = open_store(out)
    store.verify()
    assert len(store) == 8
    assert not (out / LOCK).exists()
    clocs(*command)  # a finished store is nobody's to write: no lock
