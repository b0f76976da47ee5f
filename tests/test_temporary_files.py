"""Nothing temporary is left behind: after a success, an error, a kill of a reader or a Ctrl-C."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

import pytest

import warm
from clocs.errors import FileError
from clocs.files import ReadingLimits
from clocs.frames.signals import allocate_signals
from clocs.workers import LimitedWorkers

LIMITS = ReadingLimits(memory=4 << 30, seconds=1.0)


def left_behind(item: str) -> str:
    """Work with a temporary folder, and die in the midst of it where asked."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "patient.dat").write_bytes(b"1")
        while item == "slow":
            pass
        return folder


def refused(item: str, why: str) -> str:
    return why


def test_temporary_folders_of_killed_readers_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    workers = LimitedWorkers(left_behind, refused, 1, LIMITS)
    workers.submit(["quick", "slow"])
    quick, slow = workers.take()
    assert Path(quick).is_relative_to(tmp_path)
    assert "processor time" in slow
    workers.submit(["slow"])  # ended while it works
    time.sleep(0.3)
    workers.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("end", ["raise KeyboardInterrupt", "1 / 0"])
def test_a_command_removes_its_temporary_folders_however_it_ends(end: str, tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from clocs.cli import commands, main\n"
        "from clocs.kernels.native import _temporary_folder\n"
        "def act(call):\n"
        "    print(_temporary_folder())\n"
        f"    {end}\n"
        "commands.demo = act\n"
        "sys.argv[1:] = ['demo']\n"
        "main.main()\n"
    )
    done = warm.run("-c", code, env=os.environ | {"TMPDIR": str(tmp_path)})
    assert str(tmp_path / "clocs-native-") in done.stdout, done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="needs posix_fallocate")
def test_signals_that_do_not_fit_on_the_disk_are_refused_before_they_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(handle: int, offset: int, size: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(FileError, match=f"{tmp_path.name} cannot be written: the disk is full"):
        allocate_signals(1000, beside=tmp_path, memory=0)
    assert list(tmp_path.iterdir()) == []
