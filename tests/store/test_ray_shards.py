"""Shards made on a Ray cluster of two nodes on this machine, one of which is lost halfway."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import fake_dataset
from clocs.datasets.base import Entry, Listing
from clocs.errors import BusyError, SettingError, UnusableError
from clocs.files import locked
from clocs.formats.source import open_source
from clocs.recording import Recording
from clocs.store import chunks
from clocs.store.journal import roughly_done
from clocs.store.manifest import shard_of
from clocs.store.prepare import prepare
from clocs.store.shards import files_of_shards
from clocs.store.store import Store
from fake_dataset import FakeDataset
from ray_nodes import start_head

ray = pytest.importorskip("ray", reason="ray is not installed")
LIMIT = 900.0  # seconds, for a machine that is busy with much else
SHARDS, COUNT, HALT = 2, 60, 45


@dataclass
class Waits(FakeDataset):
    """Every node notes what it reads, and waits at `HALT` until a file is there."""

    go: Path | None = None

    def read(self, entry: Entry) -> Recording:
        if self.go is not None and self.log is not None:
            note(self.log, f"{ray.get_runtime_context().get_node_id()} {entry.id}")
            wait_for(lambda: int(entry.id[1:]) < HALT or self.go.exists())  # type: ignore[union-attr]
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
    from ray import cloudpickle

    folder = tempfile.mkdtemp(prefix="clocs-ray-", dir="/tmp")  # sockets need a short path
    node: dict[str, Any] = {
        "num_cpus": 1,
        "object_store_memory": 80 << 20,
        "include_dashboard": False,
    }
    pickling: Any = cloudpickle
    modules = (fake_dataset, sys.modules[__name__])  # nodes cannot import them
    for module in modules:
        pickling.register_pickle_by_value(module)
    made = start_head(**node, temp_dir=folder)
    try:
        ray.init(address=made.address, log_to_driver=False, logging_level="ERROR")
        yield made
    finally:
        ray.shutdown()
        made.shutdown()
        for module in modules:
            pickling.unregister_pickle_by_value(module)
        shutil.rmtree(folder, ignore_errors=True)


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
    second = cluster.add_node(num_cpus=1, object_store_memory=80 << 20)
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

    threading.Thread(target=prepare_all, daemon=True).start()
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


def test_ray_needs_a_number_of_shards(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="say with `shards` how many"):
        prepare("synthetic", out=tmp_path / "new", ray="auto")


def test_a_task_gets_the_files_of_its_recordings_and_those_of_none(tmp_path: Path) -> None:
    names = ["a/one.hea", "a/one.dat", "b/one.hea", "b/one.dat", "b/ONE.atr", "all.h5", "table.csv"]
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    source = open_source(tmp_path)
    entries = [Entry(str(i), "", path) for i, path in enumerate(["a/one.hea", "all.h5"])]
    more = [Entry(str(i), "", path) for i, path in enumerate(["b/one.hea", "all.h5"])]
    files = files_of_shards(source, [Listing(tuple(entries)), Listing(tuple(more))])
    assert [sorted(own) for own in files] == [
        ["a/one.dat", "a/one.hea", "all.h5", "table.csv"],
        ["all.h5", "b/ONE.atr", "b/one.dat", "b/one.hea", "table.csv"],
    ]
    assert source.only(files[0]).names == tuple(sorted(files[0]))
    assert "b/one.hea" not in source.only(files[0])
