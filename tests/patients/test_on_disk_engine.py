"""IVF-PQ on disk finds what it declares, keeps to filters, and survives kills and damage."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from numpy.typing import NDArray

from clocs.errors import StoreError
from clocs.files import replacing
from clocs.patients import on_disk_engine
from clocs.patients.embeddings import Embeddings
from clocs.patients.filters import Where
from clocs.patients.index import Hits, PatientIndex
from clocs.patients.index_files import VECTORS
from clocs.patients.on_disk_engine import RECALL, OnDisk
from clocs.patients.unit_vectors import as_units
from clocs.sealed import own_hash
from clocs.store.manifest import MANIFEST
from embedding_parts import random_embeddings

N, DIM = 20_000, 8
MADE = random_embeddings(N + 200, dim=DIM)
INDEXED = MADE.where(np.arange(len(MADE)) < N)
QUERIES = MADE.vectors[N:]

faiss = pytest.importorskip("faiss")


@pytest.fixture(scope="module", autouse=True)
def quick_training() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(on_disk_engine, "_CODEBOOK", 8)
        patch.setattr(on_disk_engine, "_ROUNDS", 3)
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("made") / "index"
    PatientIndex.build(INDEXED, "ivfpq").save(made)
    return made


@pytest.fixture
def copy(folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder, tmp_path / "copy"))


@pytest.fixture(scope="module")
def exact() -> PatientIndex:
    return PatientIndex.build(INDEXED, "exact")


def recall(found: Hits, true: Hits) -> float:
    pairs = zip(found.rows.tolist(), true.rows.tolist(), strict=True)
    return float(np.mean([len(set(a) & set(b)) / len(b) for a, b in pairs]))


def engine_of(index: PatientIndex) -> OnDisk:
    assert isinstance(index.engine, OnDisk)
    return index.engine


def test_it_finds_the_declared_share_of_neighbors_with_exact_distances(
    folder: Path, exact: PatientIndex
) -> None:
    index = PatientIndex.load(folder)
    near, true = index.search(QUERIES, 10), exact.search(QUERIES, 10)
    assert recall(near, true) >= RECALL
    efforts = engine_of(index).efforts
    assert min(effort.recall for effort in efforts) >= RECALL
    assert efforts[0].probes < engine_of(index).lists / 4  # and does not look at everything for it
    cosine = 1 - np.einsum("qkd,qd->qk", index.vectors[near.rows], as_units(QUERIES))
    np.testing.assert_allclose(near.cosine, cosine, atol=1e-5)
    assert (np.diff(near.cosine) >= 0).all()


def test_before_it_is_saved_search_is_exact(exact: PatientIndex) -> None:
    index = PatientIndex.build(INDEXED, "ivfpq")
    assert index.kind == "ivfpq" and index.engine is None
    assert np.array_equal(index.search(QUERIES[:5]).rows, exact.search(QUERIES[:5]).rows)


@pytest.mark.parametrize("where", [Where(label="C"), Where(min_age=60, sex="female")])
def test_filters_hold_whether_rows_are_scanned_or_searched_in_lists(
    where: Where, folder: Path, exact: PatientIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    index, true = PatientIndex.load(folder), exact.search(QUERIES, 10, where=where)
    monkeypatch.setattr(OnDisk, "scan_is_cheaper", lambda *_: True)
    assert np.array_equal(index.search(QUERIES, 10, where=where).rows, true.rows)
    monkeypatch.setattr(OnDisk, "scan_is_cheaper", lambda *_: False)
    near, passes = index.search(QUERIES, 10, where=where), where.mask(index.rows)
    assert passes is not None and passes[near.rows].all()
    assert recall(near, true) >= RECALL


def test_rows_that_pass_are_scanned_where_lists_would_read_more(folder: Path) -> None:
    engine = engine_of(PatientIndex.load(folder))
    cheaper = [engine.scan_is_cheaper(10, passing) for passing in range(N + 1)]
    assert cheaper[0] and cheaper[10] and not cheaper[N]
    assert cheaper == sorted(cheaper, reverse=True)  # up to a number of rows, and not beyond
    lists, codes, _ = engine.reads(10, N)
    assert lists == engine.efforts[0].probes and codes < N / 4
    assert engine.reads(10, 10)[:2] == (engine.lists, N)  # any ten may be anywhere


def test_no_row_is_missing_where_few_pass_however_far_they_are(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OnDisk, "scan_is_cheaper", lambda *_: False)
    few = np.arange(0, N, N // 7)
    mask = np.zeros(N, bool)
    mask[few] = True
    for k in (3, 7, 10**9):
        near = PatientIndex.load(folder).search(QUERIES[:5], k, where=mask).rows
        for rows in near.tolist():
            assert len(set(rows) & set(few.tolist())) == min(k, len(few))
            assert set(rows) <= {*few.tolist(), -1}
    assert (PatientIndex.load(folder).search(QUERIES[:2], where=~np.ones(N, bool)).rows < 0).all()


def test_more_neighbors_than_rows_are_all_rows(folder: Path) -> None:
    found = PatientIndex.load(folder).search(QUERIES[:1], 10**12).rows
    assert sorted(found[0].tolist()) == list(range(N))


def test_additions_are_found_before_and_after_saving_and_replaced_rows_never(copy: Path) -> None:
    index = PatientIndex.load(copy)
    fresh = random_embeddings(50, dim=DIM, seed=1, start=N)
    moved = Embeddings(-INDEXED.vectors[:3], INDEXED.rows[:3], "patient", INDEXED.encoder)
    assert index.add(fresh) == 50 and index.add(moved, replace=True) == 3
    for stage in ("added", "saved", "opened"):
        if stage == "saved":
            index.save(copy)
        if stage == "opened":
            index = PatientIndex.load(copy, verify=True)
        found = index.search(np.concatenate([fresh.vectors, moved.vectors]), 1).rows[:, 0]
        assert found.tolist() == list(range(N, N + 53)), stage
        assert not np.isin(index.search(INDEXED.vectors[:3], 20).rows, [0, 1, 2]).any()
        assert len(index) == N + 50
    assert engine_of(index).count == N + 53
    names = sorted(path.name for path in copy.iterdir())
    assert names == ["codes-1.ivf", "engine-1.faiss", MANIFEST, "rows-1.arrow", VECTORS]


def codes_of(index: Any) -> list[tuple[bytes, bytes]]:
    """IDs and codes, list by list."""
    lists, size = index.invlists, index.code_size
    found = []
    for number in range(index.nlist):
        n = lists.list_size(number)
        ids = faiss.rev_swig_ptr(lists.get_ids(number), n).copy()
        codes = faiss.rev_swig_ptr(lists.get_codes(number), n * size).reshape(n, size).copy()
        order = np.argsort(ids)
        found.append((ids[order].tobytes(), codes[order].tobytes()))
    return found


def test_shards_merged_equal_one_build_of_the_same_codes_and_a_graph_finds_the_lists(
    tmp_path: Path, exact: PatientIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(on_disk_engine, "_FLAT_UP_TO", 10)
    vectors = exact.vectors
    (tmp_path / "trained").mkdir()
    trained = on_disk_engine._trained(tmp_path / "trained", vectors)
    monkeypatch.setattr(on_disk_engine, "_trained", lambda *_: trained)
    made = []
    for size in (N, 3000):
        monkeypatch.setattr(on_disk_engine, "SHARD", size)
        (tmp_path / str(size)).mkdir()
        made.append(on_disk_engine.build(tmp_path / str(size), 0, vectors, None))
    once, merged = (codes_of(one._index) for one in made)
    assert once == merged and sum(len(ids) for ids, _ in once) == 8 * N
    assert made[1].efforts[0].recall >= RECALL


KILLED = """
import os, signal, sys
from pathlib import Path
import numpy as np
from clocs.patients import on_disk_engine as engine

engine._CODEBOOK, engine._ROUNDS, engine.SHARD = 8, 3, 4000
kept = engine._kept

def until_the_third_shard(path, make):
    if sum(1 for one in path.parent.glob("shard-*.xxh3")) == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return kept(path, make)

engine._kept = until_the_third_shard
engine.build(Path(sys.argv[1]), 0, np.load(sys.argv[2]), None)
"""


def test_a_killed_build_goes_on_with_the_shards_that_are_whole(
    tmp_path: Path, exact: PatientIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    vectors, work = exact.vectors, tmp_path / "building"
    np.save(tmp_path / "vectors.npy", vectors)
    command = [sys.executable, "-c", KILLED, str(tmp_path), str(tmp_path / "vectors.npy")]
    assert subprocess.run(command, check=False, timeout=900).returncode == -9
    shards = sorted(work.glob("shard-*.faiss"))
    assert len(shards) == 3
    content = bytearray(shards[1].read_bytes())
    content[-5] ^= 1
    shards[1].write_bytes(content)
    made = []

    def noted(path: Path) -> Any:
        made.append(path.name)
        return replacing(path)

    monkeypatch.setattr(on_disk_engine, "replacing", noted)
    monkeypatch.setattr(on_disk_engine, "SHARD", 4000)
    engine = on_disk_engine.build(tmp_path, 0, vectors, None)
    assert engine.count == N and engine.efforts[0].recall >= RECALL
    assert shards[1].name in made and shards[0].name not in made and shards[2].name not in made
    assert len(made) == 4 and not work.exists()  # two shards, the damaged one and the engine


def test_an_index_can_be_moved_and_nothing_is_printed(
    copy: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    moved = copy.rename(copy.with_name("moved"))
    assert len(PatientIndex.load(moved).search(QUERIES[:2], 3).rows) == 2
    index = PatientIndex.load(moved)
    index.add(random_embeddings(5, dim=DIM, seed=1, start=N))
    index.save(moved)
    assert capfd.readouterr() == ("", "")


def flip(name: str) -> Callable[[Path], object]:
    def act(folder: Path) -> None:
        content = bytearray((folder / name).read_bytes())
        content[len(content) // 2] ^= 1
        (folder / name).write_bytes(content)

    return act


def shorten(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:-1])


@pytest.mark.parametrize(
    "damage",
    [flip("engine-0.faiss"), shorten("codes-0.ivf"), shorten(VECTORS), shorten("rows-0.arrow")],
)
def test_damage_is_refused_on_opening(damage: Callable[[Path], object], copy: Path) -> None:
    damage(copy)
    with pytest.raises(StoreError, match="is damaged"):
        PatientIndex.load(copy)


@pytest.mark.parametrize("name", ["codes-0.ivf", VECTORS, "rows-0.arrow"])
def test_what_is_not_read_on_opening_is_compared_when_asked(name: str, copy: Path) -> None:
    PatientIndex.load(copy, verify=True)
    flip(name)(copy)
    with pytest.raises(StoreError, match=f"{name} is damaged"):
        PatientIndex.load(copy, verify=True)


def test_an_id_that_a_damaged_file_invents_is_not_followed(copy: Path) -> None:
    codes = bytearray((copy / "codes-0.ivf").read_bytes())
    codes[:] = b"\xff" * len(codes)
    (copy / "codes-0.ivf").write_bytes(codes)
    assert (PatientIndex.load(copy).search(QUERIES[:3], 5).rows < N).all()


def test_a_newer_format_asks_for_an_update(copy: Path) -> None:
    manifest = json.loads((copy / MANIFEST).read_text())
    del manifest["sha256"]
    manifest["format"] = 6
    manifest["sha256"] = own_hash(manifest)
    (copy / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(StoreError, match="a newer version of clocs wrote; update clocs"):
        PatientIndex.load(copy)


def test_too_few_vectors_to_learn_codes_from_are_scanned(tmp_path: Path) -> None:
    PatientIndex.build(random_embeddings(500), "ivfpq").save(tmp_path)
    assert PatientIndex.load(tmp_path).kind == "exact"


def test_equal_vectors_are_all_found(tmp_path: Path) -> None:
    vectors: NDArray[np.float32] = np.repeat(INDEXED.vectors[:20], 500, axis=0)
    rows = INDEXED.rows[: len(vectors)].with_columns(pl.lit("made").alias("dataset"))
    index = PatientIndex.build(Embeddings(vectors, rows, "patient", INDEXED.encoder), "ivfpq")
    index.save(tmp_path / "index")
    assert engine_of(index).efforts[0].recall == 1
    assert index.search(INDEXED.vectors[:20], 10).cosine.max() < 1e-6
