"""The ledger: claims survive crashes, and nobody takes up what another has in hand."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from threading import Timer

import pytest

from clocs.errors import ClocsError, FileError, SettingError, StoreError
from clocs.experiments.ledger import FILE, Ledger, open_ledger
from damage import flipped

HOLD = """
import sys, time
from pathlib import Path
from clocs.experiments.ledger import Ledger
with Ledger(Path(sys.argv[1])).claim("a") as held:
    print(*held, flush=True)
    time.sleep(3600)
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


def test_a_new_file_that_another_process_is_making_is_waited_for(tmp_path: Path) -> None:
    other = sqlite3.connect(tmp_path / FILE, isolation_level=None, check_same_thread=False)
    with closing(other):
        other.execute("BEGIN IMMEDIATE")  # SQLite refuses another journal now, without waiting
        release = Timer(0.3, other.execute, ["COMMIT"])
        release.start()
        with closing(open_ledger(tmp_path)) as ledger:
            release.join()
            ledger.add("a", "pretrain", {}, 5)
            assert list(ledger.runs()) == ["a"]


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
    ledger.forget_failures()
    with ledger.claim("a") as held:
        assert held == ("a",)


def test_the_seconds_of_all_attempts_are_counted(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger.add("a", "pretrain", {}, 5)
    for seconds in (3.0, 4.0):
        with ledger.claim("a"):
            ledger.put_back("a", seconds=seconds)
    with ledger.claim("a"):
        finish(ledger, "a")
    run = ledger.run("a")
    assert run is not None and run.seconds == 9.0


def test_a_folder_of_runs_is_of_one_kind_of_data(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger.require_fact("data of chapman", "abc")
    ledger.require_fact("data of chapman", "abc")
    with pytest.raises(SettingError, match="differ in the data of chapman; give a new folder"):
        ledger.require_fact("data of chapman", "abd")


def test_a_file_that_is_not_a_ledger_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="holds no runs"):
        open_ledger(tmp_path, create=False)
    (tmp_path / FILE).write_bytes(b"something else entirely" * 100)
    with pytest.raises(SettingError, match="not a list of runs"):
        open_ledger(tmp_path)


def filled(folder: Path) -> None:
    ledger = Ledger(folder)
    ledger.require_fact("data", {"chapman": "abc"})
    for name in "abc":
        ledger.add(name, "linear", {"fraction": 0.5}, 5)
    with ledger.claim("a", "b"):
        finish(ledger, "a")
        ledger.fail("b", "SettingError: no labels", seconds=1.0)
    ledger.close()


def contents(folder: Path) -> object:
    with closing(open_ledger(folder, create=False)) as ledger:
        return ledger.facts(), ledger.runs(), ledger.states()


def test_no_flipped_bit_of_a_ledger_changes_what_is_read(tmp_path: Path) -> None:
    filled(tmp_path)
    original = (tmp_path / FILE).read_bytes()
    before, refused = contents(tmp_path), 0
    for damaged in flipped(original, most=600, empty=False):
        for left in tmp_path.glob(f"{FILE}*"):
            left.unlink()
        (tmp_path / FILE).write_bytes(damaged)
        try:
            assert contents(tmp_path) == before
        except ClocsError as error:
            assert "\n" not in str(error)
            refused += 1
    assert refused > 300


def test_a_changed_result_is_refused_and_not_written_over(tmp_path: Path) -> None:
    filled(tmp_path)
    with closing(sqlite3.connect(tmp_path / FILE)) as db, db:
        db.execute("UPDATE runs SET result = replace(result, '0.7', '0.9')")
    with closing(open_ledger(tmp_path)) as ledger:
        for act in (ledger.runs, ledger.states, lambda: ledger.put_back("a", seconds=1.0)):
            with pytest.raises(StoreError, match="the row of a differs from its digest"):
                act()


@pytest.mark.parametrize("version", [-1, 0, 1000])
def test_a_ledger_of_an_unknown_version_is_refused(tmp_path: Path, version: int) -> None:
    filled(tmp_path)
    with closing(sqlite3.connect(tmp_path / FILE)) as db, db:
        db.execute(f"PRAGMA user_version = {version}")
    with pytest.raises(StoreError, match=f"has format {version}, but this version"):
        open_ledger(tmp_path)


def test_a_ledger_without_a_table_of_draws_gets_one(tmp_path: Path) -> None:
    filled(tmp_path)
    before = contents(tmp_path)
    with closing(sqlite3.connect(tmp_path / FILE)) as db, db:
        db.execute("DROP TABLE draws")
        db.execute("CREATE TABLE seal (total TEXT NOT NULL)")
        db.execute("PRAGMA user_version = 1")
    assert contents(tmp_path) == before
    with closing(open_ledger(tmp_path)) as ledger:
        assert ledger.draws() == {}


def test_draws_are_kept_apart_from_the_result_and_those_of_a_second_attempt_count(
    tmp_path: Path,
) -> None:
    with closing(open_ledger(tmp_path)) as ledger:
        ledger.add("a", "linear", {}, 1)
        for packed in (b"first", b"second"):
            ledger.finish("a", {"auc_mean": 0.7, "draws": packed}, seconds=1.0, versions={})
        run = ledger.run("a")
        assert run is not None and run.result == {"auc_mean": 0.7}
    with closing(open_ledger(tmp_path)) as ledger:
        assert ledger.draws() == {"a": b"second"}


def test_a_full_disk_is_named_and_the_ledger_stays_as_it_was(tmp_path: Path) -> None:
    filled(tmp_path)
    ledger = Ledger(tmp_path)
    pages = ledger._execute("PRAGMA page_count")[0][0]
    ledger._execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(FileError, match=rf"{FILE} cannot be written: the disk is full; free some"):
        ledger.finish("c", {"curve": [0.5] * 10_000}, seconds=1.0, versions={})
    ledger.close()
    run = open_ledger(tmp_path).run("c")
    assert run is not None and run.state == "waiting" and run.result is None


def test_a_ledger_that_is_cut_short_is_not_taken_for_a_new_one(tmp_path: Path) -> None:
    filled(tmp_path)
    whole = (tmp_path / FILE).read_bytes()
    for size in (0, 1, 99, 511, 512, 4096, len(whole) - 4096):
        (tmp_path / FILE).write_bytes(whole[:size])
        with pytest.raises(ClocsError, match=rf"{FILE} (is cut short|is damaged|cannot be|is not)"):
            open_ledger(tmp_path, create=False)
