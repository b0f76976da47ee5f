"""Grids and shards on a Ray cluster of two nodes, both on this machine; one of them is killed."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from threading import Thread
from typing import Any

import psutil
import pytest

import fake_dataset
from clocs.datasets.base import Entry
from clocs.errors import BusyError, SettingError, UnusableError
from clocs.experiments.cluster_runner import Files, Site, score_on_node
from clocs.experiments.grid import Cell, Pretraining
from clocs.experiments.ledger import open_ledger
from clocs.experiments.reproduce import reproduce
from clocs.experiments.runner import SIMULATED, Attempt
from clocs.files import locked
from clocs.ray_cluster import ClusterError, Resources, Tasks, check_fits, connect, nodes
from clocs.recording import Recording
from clocs.store import chunks
from clocs.store.journal import roughly_done
from clocs.store.manifest import shard_of
from clocs.store.prepare import prepare
from clocs.store.store import Store
from fake_dataset import FakeDataset
from ray_nodes import start_head

ray = pytest.importorskip("ray", reason="ray is not installed")
NODE: dict[str, Any] = {
    "num_cpus": 1,
    "object_store_memory": 80 * 2**20,
    "include_dashboard": False,
}
# a busy machine may answer late; one that refuses the connection is dead after ten tries
PATIENT = {
    "health_check_period_ms": 100,
    "health_check_timeout_ms": 120_000,
    "health_check_failure_threshold": 10,
    "worker_register_timeout_seconds": 600,
}
GRID = partial(
    reproduce, "table-1", dataset="synthetic", seeds=1, only=["random,cmsc", "downstream=chapman"]
)
LIMIT = 900.0  # seconds after which a grid gives up, and its test fails
SHARDS, COUNT, HALT = 2, 60, 45


def run_all(
    act: Callable[[Any], Any],
    items: Iterable[Any],
    *,
    needs: Resources,
    outstanding: int | None = None,
) -> Iterator[tuple[Any, Any]]:
    """`act` of every item on the cluster: (item, result) in the order in which they end."""
    most = outstanding or 2 * check_fits(needs)
    with Tasks[Any]() as tasks:
        for item in items:
            while len(tasks) >= most:
                for key, result in tasks.finished():
                    yield key, result()
            tasks.start(item, act, item, needs=needs)
        while len(tasks):
            for key, result in tasks.finished():
                yield key, result()


@dataclass
class Waits(FakeDataset):
    """Every node notes what it reads, and waits at `HALT` until a file is there."""

    go: Path | None = None

    def read(self, entry: Entry) -> Recording:
        if (go := self.go) is not None and self.log is not None:
            note(self.log, f"{ray.get_runtime_context().get_node_id()} {entry.id}")
            wait_for(lambda: int(entry.id[1:]) < HALT or go.exists())
        number = int(entry.id[1:])
        if number % 10 == 3:
            raise UnusableError("flat", "all leads are flat")
        return self.recording(number, entry.patient)

    def __reduce__(self) -> tuple[Any, ...]:
        return in_small_parts, (vars(self),)


def in_small_parts(fields: dict[str, Any]) -> Waits:
    """A dataset as a node unpacks it."""
    chunks.CHUNK_SAMPLES, chunks.CHUNKS_PER_PART = 50_000, 2
    return Waits(**fields)


def note(log: Path, line: str) -> None:
    handle = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(handle, f"{line}\n".encode())
    os.close(handle)


def wait_for(condition: Callable[[], bool]) -> None:
    ends = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < ends, "it takes too long"
        time.sleep(0.05)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes for all tests, as each takes seconds; nothing of them is left afterwards."""
    pickling: Any = import_module("ray.cloudpickle")
    modules = (fake_dataset, sys.modules[__name__])  # nodes cannot import them
    for module in modules:
        pickling.register_pickle_by_value(module)
    before = set(psutil.Process().children(recursive=True))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.delenv("RAY_ADDRESS", raising=False)
        started = start_head(**NODE, _system_config=PATIENT)
        try:
            started.add_node(**NODE)
            with connect(started.address):  # by all tests, so that workers import torch once
                yield started
            assert not ray.is_initialized()
        finally:
            processes = set(psutil.Process().children(recursive=True)) - before
            started.shutdown()
            for one in psutil.wait_procs(processes, timeout=60)[1]:
                one.kill()
            for module in modules:
                pickling.unregister_pickle_by_value(module)


def second_node(cluster: Any) -> Any:
    """The node beside the head; another where it was killed."""
    return next(iter(cluster.worker_nodes), None) or cluster.add_node(**NODE)


def killed_once(cluster: Any, victim: Any, marker: Path) -> Thread:
    """A thread that kills a node as soon as a file is there."""

    def kill() -> None:
        while not marker.exists():
            time.sleep(0.05)
        cluster.remove_node(victim, allow_graceful=False)

    thread = Thread(target=kill, daemon=True)
    thread.start()
    return thread


def scores(folder: Path) -> dict[str, Any]:
    """What the runs of a folder found, without how long it took."""
    with closing(open_ledger(folder, create=False)) as ledger:
        runs, draws = ledger.runs(), ledger.draws()
    assert {run.state for run in runs.values()} == {"done"}
    kept = {
        name: {k: v for k, v in (run.result or {}).items() if not k.startswith("measured")}
        for name, run in runs.items()
    }
    return {"results": json.loads(json.dumps(kept)), "draws": draws}


def test_a_cluster_says_what_it_has_and_runs_what_is_asked(cluster: Any, tmp_path: Path) -> None:
    def square(number: int) -> int:
        (tmp_path / str(number)).touch()
        return number * number

    assert [node.cpus for node in nodes()] == [1, 1]
    taken = iter(range(6))
    found = run_all(square, taken, needs=Resources(), outstanding=2)
    first = next(found)
    assert next(taken) <= 3  # no more than two are handed over at a time
    rest = dict([first, *found])
    assert rest.items() <= {n: n * n for n in range(6)}.items() and len(rest) == 5
    with pytest.raises(SettingError, match=r"no machine .* \(64 CPUs\)"):
        list(run_all(square, [1], needs=Resources(cpus=64)))


def test_a_dying_worker_is_tried_again_and_an_error_raised_as_it_is(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies_once(marker: Path) -> str:
        if not marker.exists():
            marker.touch()
            os._exit(1)
        return "lived"

    def refuses(word: str) -> None:
        raise SettingError(f"{word} is not welcome")

    assert [r for _, r in run_all(dies_once, [tmp_path / "a"], needs=Resources())] == ["lived"]
    with pytest.raises(SettingError, match="cmlc is not welcome"):
        list(run_all(refuses, ["cmlc"], needs=Resources()))
    monkeypatch.setattr("clocs.ray_cluster.RETRIES", 0)
    with Tasks[str]() as tasks:
        tasks.start("b", dies_once, tmp_path / "b", needs=Resources())
        ((_, result),) = tasks.finished(LIMIT)
        with pytest.raises(ClusterError, match="a task was lost"):
            result()


def test_a_fleet_that_fails_is_halved_so_that_one_bad_run_spoils_no_other(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def trains_nothing(site: Site, encoder: Pretraining) -> Attempt:
        return Attempt(1.0, [{}], files={"seed-0.json": b"{}"})

    def refuses_cmsc(site: Site, cells: Sequence[Cell], encoders: Sequence[Files]) -> Attempt:
        assert all(files == {"seed-0.json": b"{}"} for files in encoders)
        if any(cell.pretraining.method == "cmsc" for cell in cells):
            return Attempt(error="cmsc is not welcome")
        return Attempt(1.0, [{}] * len(cells))

    monkeypatch.setattr("clocs.experiments.cluster_runner.learn_on_node", trains_nothing)
    monkeypatch.setattr("clocs.experiments.cluster_runner.score_on_node", refuses_cmsc)
    status = GRID(out=tmp_path, ray=cluster.address, seconds=LIMIT)
    assert (status.done, status.failed, status.left) == (1, 1, 0)
    with closing(open_ledger(tmp_path, create=False)) as ledger:
        failed = [run for run in ledger.runs().values() if run.state == "failed"]
    assert [(run.kind, run.error) for run in failed] == [("linear", "cmsc is not welcome")]


def test_an_interrupted_driver_and_a_killed_node_cost_no_result_and_change_none(
    cluster: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        GRID(out=tmp_path / "cluster", ray=cluster.address, seconds=LIMIT, on_progress=interrupt)
    with closing(open_ledger(tmp_path / "cluster", create=False)) as ledger:
        assert sorted(ledger.states().values()) == ["done", "waiting", "waiting", "waiting"]

    victim = second_node(cluster)
    lost, markers = victim.node_id, tmp_path / "markers"
    markers.mkdir()

    def one_node_never_ends(
        site: Site, cells: Sequence[Cell], encoders: Sequence[Files]
    ) -> Attempt:
        here = ray.get_runtime_context().get_node_id()
        (markers / here).touch()
        while here == lost or not (markers / lost).exists():
            time.sleep(0.05)
        return score_on_node(site, cells, encoders)

    monkeypatch.setattr("clocs.experiments.cluster_runner.score_on_node", one_node_never_ends)
    killer = killed_once(cluster, victim, markers / lost)
    for module in ("cluster_runner", "runner"):  # fleets of one, so that there are two of them
        monkeypatch.setattr(f"clocs.experiments.{module}.MEMBERS", 1)
    status = GRID(out=tmp_path / "cluster", ray=cluster.address, seconds=LIMIT)
    assert not capsys.readouterr().out  # what Ray says of the node would be among our JSON
    assert status.complete and status.done == 2
    killer.join()
    assert {path.name for path in markers.iterdir()} == {lost, cluster.head_node.node_id}
    GRID(out=tmp_path / "here", device="cpu")
    assert scores(tmp_path / "cluster") == scores(tmp_path / "here")


def is_free(folder: Path) -> bool:
    try:
        with locked(folder):
            return True
    except BusyError:
        return False


def collect(reported: list[int], done: int, total: int) -> None:
    reported.append(done)


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def test_a_lost_nodes_shard_goes_on_from_its_journal_to_the_same_bytes(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunks, "CHUNK_SAMPLES", 50_000)
    monkeypatch.setattr(chunks, "CHUNKS_PER_PART", 2)
    expected = prepare(Waits(COUNT), out=tmp_path / "expected", shards=SHARDS)
    second = second_node(cluster)
    cluster.wait_for_nodes()
    out, log, go = tmp_path / "out", tmp_path / "log", tmp_path / "go"
    dataset = Waits(COUNT, log=log, go=go)

    def read() -> list[tuple[str, str]]:
        lines = log.read_text().splitlines() if log.exists() else []
        return [(line.split()[0], line.split()[1]) for line in lines]

    def waiting() -> set[str]:
        return {node for node, name in read() if int(name[1:]) >= HALT}

    reported: list[int] = []
    made: Future[Store] = Future()

    def prepare_all() -> None:
        try:
            progress = partial(collect, reported)
            address = cluster.address
            made.set_result(
                prepare(dataset, out=out, shards=SHARDS, ray=address, progress=progress)
            )
        except BaseException as error:
            made.set_exception(error)

    Thread(target=prepare_all, daemon=True).start()
    try:
        wait_for(lambda: made.done() or len(waiting()) == 2)
        assert not made.done(), made.result()
        lost = next(iter(waiting() - {cluster.head_node.node_id}))
        first = next(int(name[1:]) for node, name in read() if node == lost)
        number = shard_of(f"p{first // 2}", SHARDS)
        shard = out / f"shard-{number:04d}-of-{SHARDS:04d}"
        cluster.remove_node(second, allow_graceful=False)
        wait_for(lambda: is_free(shard))  # its process has ended; the other node is still waiting
        done = roughly_done(shard)
        assert 0 < done < len([name for node, name in read() if node == lost])
    finally:
        go.touch()
    store = made.result(LIMIT)
    assert store.manifest == expected.manifest
    assert contents(out) == contents(expected.path)
    own = [f"r{i}" for i in range(COUNT) if shard_of(f"p{i // 2}", SHARDS) == number]
    after = [name for node, name in read() if node != lost and name in own]
    assert after == own[done:]  # only what was not yet in the journal is read again
    assert reported[-1] == COUNT
    assert reported == sorted(reported)


def test_an_error_of_a_task_is_raised_as_if_it_had_run_here(cluster: Any, tmp_path: Path) -> None:
    class Broken(FakeDataset):
        def read(self, entry: Entry) -> Recording:
            raise SettingError(f"{entry.id} needs an option")

    with pytest.raises(SettingError, match=r"r\d+ needs an option"):
        prepare(Broken(), out=tmp_path / "out", shards=2, ray=cluster.address)
    with pytest.raises(SettingError, match=r"no machine .* what a task asks for \(64 CPUs\)"):
        prepare(FakeDataset(), out=tmp_path / "b", shards=2, ray=cluster.address, workers=64)


def test_a_node_that_sees_other_data_is_refused() -> None:
    site = Site(None, {"chapman": "another"}, SIMULATED, seeds=1, device="cpu")
    with pytest.raises(SettingError, match="a node sees another version of chapman in"):
        site.library("chapman")
