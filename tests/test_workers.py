"""Processes with limits: what exceeds them is refused, all else is done, and nobody is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from clocs.errors import SettingError, UnusableError
from clocs.files import ReadingLimits, reading_limits
from clocs.workers import EndedError, LimitedWorkers

GIB = 1 << 30
LIMITS = ReadingLimits(memory=GIB // 2, seconds=1.0)


class OddError(Exception):
    """Pickle cannot make it again: it gives one argument where two are needed."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


@dataclass
class Call:
    """Unpickled, it calls `what`, which makes a folder or a file."""

    what: Any
    path: Path

    def __reduce__(self) -> tuple[Any, ...]:
        return self.what, (str(self.path),)


@dataclass
class Act:
    """Does what an item says, or makes an array of its number."""

    log: Path

    def __call__(self, item: str) -> object:
        with self.log.open("a") as log:
            log.write(f"{item}\n")
        match item:
            case "memory":
                return bytearray(8 * GIB)
            case "time":
                while True:
                    pass
            case "abort":
                os.abort()
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "kill once":
                if self.log.read_text().count("kill once") == 1:
                    os.kill(os.getpid(), signal.SIGKILL)
            case "error":
                raise UnusableError("nan", "it is not")
            case "defect":
                raise ZeroDivisionError("a defect")
            case "odd defect":
                raise OddError(1, 2)
            case "call":
                return Call(os.mkdir, self.log.with_name("called"))
            case "class":  # of a module that may answer, which has only imported it
                return Call(LimitedWorkers, self.log.with_name("called"))
            case "map":
                return Call(partial(np.memmap, mode="w+", shape=1), self.log.with_name("called"))
            case "secret":
                return os.environ.get("CLOCS_TOKEN")
        return np.full(1000, sum(item.encode()), np.int16)


def batches(act: Act, items: list[list[str]], *, fork: bool = False) -> Iterator[list[object]]:
    def refused(item: str, why: str) -> object:
        return f"{item} {why}"

    workers = LimitedWorkers(act, refused, 2, LIMITS, fork=fork)
    with closing(workers):
        for batch in items:
            workers.submit(batch)
        for _ in items:
            yield workers.take()


@pytest.fixture
def act(tmp_path: Path) -> Act:
    return Act(tmp_path / "log")


@pytest.mark.parametrize(
    ("bomb", "why"),
    [
        ("memory", "took more than 0.5 GiB of memory to read"),
        ("time", "took more than 1 s of processor time to read"),
        ("abort", "made its reader crash (SIGABRT)"),
    ],
)
def test_an_item_beyond_a_limit_is_refused_and_all_others_are_done(
    act: Act, bomb: str, why: str
) -> None:
    items = [["a", "b"], [bomb], ["c", bomb, "d"], ["e"], ["f"], ["g", "h"]]
    results = list(batches(act, items))
    for batch, made in zip(items, results, strict=True):
        for item, one in zip(batch, made, strict=True):
            if item == bomb:
                assert str(one).startswith(f"{bomb} {why}")
            else:
                assert np.array_equal(one, np.full(1000, ord(item)))  # type: ignore[arg-type]


def test_an_error_of_the_package_and_a_defect_both_reach_the_caller(act: Act) -> None:
    with pytest.raises(UnusableError) as unusable:
        list(batches(act, [["a", "error"]]))
    assert (unusable.value.reason, unusable.value.detail) == ("nan", "it is not")
    with pytest.raises(RuntimeError, match="ZeroDivisionError: a defect") as defect:
        list(batches(act, [["defect"]]))
    assert "test_workers.py" in defect.value.__notes__[0]
    with pytest.raises(RuntimeError, match="OddError: 1 and 2") as odd:
        list(batches(act, [["odd defect"]]))
    assert "test_workers.py" in odd.value.__notes__[0]


def test_a_reader_of_strangers_files_knows_no_secret_and_calls_nothing_here(
    act: Act, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLOCS_TOKEN", "secret")
    for item in ("secret", "an array", "call", "class", "map"):
        workers = LimitedWorkers(act, lambda item, why: why, 1, LIMITS, strangers=(__name__,))
        with closing(workers):
            workers.submit([item])
            if item == "secret":
                assert workers.take() == [None]
            elif item == "an array":
                assert isinstance(workers.take()[0], np.ndarray)
            else:
                with pytest.raises(EndedError):
                    workers.take()
    assert not act.log.with_name("called").exists()


def test_a_process_killed_from_outside_is_replaced_once(act: Act) -> None:
    ((one,),) = batches(act, [["kill once"]])
    assert isinstance(one, np.ndarray)
    with pytest.raises(EndedError):
        list(batches(act, [["a", "kill"]]))


SCRIPT = """
import sys, time
from dataclasses import dataclass
from pathlib import Path
from test_workers import Act, LIMITS
from clocs.workers import LimitedWorkers

class Sleeps(Act):
    def __call__(self, item):
        self.log.write_text("asleep")
        time.sleep(3600)

workers = LimitedWorkers(Sleeps(Path(sys.argv[1])), None, 2, LIMITS, fork=True)
workers.submit(["a"])
workers.submit(["b"])
workers.take()
"""


def test_processes_end_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    paths = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    parent = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "log")],
        env=os.environ | {"PYTHONPATH": paths},
    )
    while not (tmp_path / "log").exists():
        assert parent.poll() is None
        time.sleep(0.05)
    children = psutil.Process(parent.pid).children(recursive=True)
    assert len(children) == 2
    parent.kill()
    parent.wait()
    _, alive = psutil.wait_procs(children, timeout=600)
    assert not alive


@pytest.mark.parametrize("text", ["much", "0", "-1", "nan", "inf"])
def test_a_limit_in_the_environment_must_be_a_number(
    monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("CLOCS_READ_GIB", text)
    with pytest.raises(SettingError, match="CLOCS_READ_GIB"):
        reading_limits()


def test_limits_can_be_raised_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOCS_READ_GIB", "16")
    monkeypatch.setenv("CLOCS_READ_SECONDS", "300")
    assert reading_limits() == ReadingLimits(16 * GIB, 300.0)
