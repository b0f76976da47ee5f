"""The ledger: claims survive crashes, and nobody takes up what another has in hand."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from clocs.errors import SettingError
from clocs.experiments.ledger import FILE, Ledger, open_ledger

HOLD = """
import sys, time
from pathlib import Path
from clocs.experiments.ledger import Ledger
with Ledger(Path(sys.argv[1])).claim("a") as held:
    print(*held, flush=True)
    time.sleep(60)
"""


def finish(ledger: Ledger, name: str) -> None:
    ledger.finish(name, {"auc": 0.7}, seconds=2.0, versions={"clocs": "1"})


def test_a_run_is_claimed_once_and_done_once(tmp_path: Path) -> None:
    mine, other = Ledger(tmp_path), Ledger(tmp_path)
    for name in "ab":
        mine.add(name, "pretrain", {"method": "cmsc"}, 5)
    with mine.claim("a", "b") as held:
        assert held == ("a", "b")
        with other.claim("a", "b") as nothing:
            assert nothing == ()
        finish(mine, "a")
    with other.claim("a", "b") as rest:
        assert rest == ("b",)  # a is done; b was let go unfinished


def test_adding_a_run_again_changes_nothing(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger.add("a", "linear", {"fraction": 0.5}, 5)
    with ledger.claim("a"):
        finish(ledger, "a")
    ledger.add("a", "linear", {"fraction": 0.5}, 5)
    run = ledger.run("a")
    assert run is not None and run.state == "done" and run.result == {"auc": 0.7}


def test_a_killed_process_lets_its_run_go(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger.add("a", "pretrain", {}, 5)
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "a\n"
    with ledger.claim("a") as held:
        assert held == ()
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    assert ledger.states() == {"a": "running"}  # the row still says so; the lock does not
    with ledger.claim("a") as held:
        assert held == ("a",)
    run = ledger.run("a")
    assert run is not None and run.attempts == 2


def test_a_failure_keeps_its_error_until_it_is_retried(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger.add("a", "linear", {}, 5)
    with ledger.claim("a"):
        ledger.fail("a", "SettingError: no labels", seconds=1.0)
    with ledger.claim("a") as held:
        assert held == ()
    run = ledger.run("a")
    assert run is not None and run.error == "SettingError: no labels"
    assert ledger.forget_failures() == 1
    with ledger.claim("a") as held:
        assert held == ("a",)


def test_the_seconds_of_all_attempts_are_counted(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger.add("a", "pretrain", {}, 5)
    with ledger.claim("a"):
        ledger.put_back("a", seconds=3.0)
    with ledger.claim("a"):
        finish(ledger, "a")
    run = ledger.run("a")
    assert run is not None and run.seconds == 5.0


def test_a_folder_of_runs_is_of_one_kind_of_data(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger.settle("data of chapman", "abc", "give a new folder as `out`")
    ledger.settle("data of chapman", "abc", "give a new folder as `out`")
    with pytest.raises(SettingError, match="differ in the data of chapman; give a new folder"):
        ledger.settle("data of chapman", "abd", "give a new folder as `out`")


def test_a_file_that_is_not_a_ledger_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="holds no runs"):
        open_ledger(tmp_path, create=False)
    (tmp_path / FILE).write_bytes(b"something else entirely" * 100)
    with pytest.raises(SettingError, match="not a list of runs"):
        open_ledger(tmp_path)
