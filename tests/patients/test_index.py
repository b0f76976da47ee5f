"""The index finds what a slow search finds, under conditions too, and survives the disk."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import polars as pl
import pytest
import xxhash
from numpy.typing import NDArray

from clocs.errors import CheckpointError, ClocsError, FileError, SettingError, StoreError
from clocs.patients.cohort import Where
from clocs.patients.embeddings import Embeddings, as_units, joined
from clocs.patients.index import PatientIndex, pick_kind
from clocs.patients.index_files import VECTORS
from clocs.sealed import own_hash
from clocs.store.manifest import MANIFEST
from damage import read_damaged
from embedding_parts import random_embeddings

Kind = Literal["exact", "hnsw", "ivf"]
KINDS: tuple[Kind, ...] = ("exact", "hnsw", "ivf")


def slow_search(
    embeddings: Embeddings, query: NDArray[np.float32], k: int, mask: NDArray[np.bool_]
) -> list[int]:
    """By hand: cosine of every row, the rows that do not pass left out."""
    scores = []
    for row, vector in enumerate(embeddings.vectors.astype(np.float64)):
        if mask[row]:
            wide = query.astype(np.float64)
            cosine = vector @ wide / (np.linalg.norm(vector) * np.linalg.norm(wide))
            scores.append((-cosine, row))
    return [row for _, row in sorted(scores)[:k]]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("where", "passes"),
    [
        (Where(label="C"), lambda row: "C" in row["labels"]),
        (
            Where(min_age=40, max_age=50),
            lambda row: row["age"] is not None and 40 <= row["age"] <= 50,
        ),
        (
            Where(sex="female", label="A"),
            lambda row: row["sex"] == "female" and "A" in row["labels"],
        ),
        (Where(label="nowhere"), lambda row: False),
    ],
)
def test_filters_are_exact_in_every_kind(
    kind: Kind, where: Where, passes: Callable[[dict[str, object]], bool]
) -> None:
    embeddings, queries = random_embeddings(2000), random_embeddings(5, seed=9).vectors
    index = PatientIndex.build(embeddings, kind)
    mask = np.array([passes(row) for row in embeddings.rows.iter_rows(named=True)])
    hits = index.search(queries, 10, where=where)
    for query in range(len(queries)):
        expected = slow_search(embeddings, queries[query], 10, mask)
        assert [row for row in hits.rows[query].tolist() if row >= 0] == expected


def test_exact_search_equals_a_slow_one_and_both_distances_agree() -> None:
    embeddings, queries = random_embeddings(500), random_embeddings(20, seed=4).vectors
    index = PatientIndex.build(embeddings)
    hits = index.search(queries, 7)
    assert index.kind == "exact"
    for query in range(20):
        everyone = np.ones(500, bool)
        assert hits.rows[query].tolist() == slow_search(embeddings, queries[query], 7, everyone)
    unit = queries / np.linalg.norm(queries, axis=1, keepdims=True)
    apart = np.linalg.norm(index.vectors[hits.rows] - unit[:, None], axis=2)
    np.testing.assert_allclose(hits.euclidean, apart, atol=1e-3)
    np.testing.assert_allclose(hits.cosine, apart**2 / 2, atol=1e-5)


@pytest.mark.parametrize("kind", ["hnsw", "ivf"])
def test_approximate_search_finds_most_and_states_true_distances(kind: Kind) -> None:
    embeddings, queries = random_embeddings(5000), random_embeddings(50, seed=4).vectors
    exact = PatientIndex.build(embeddings, "exact").search(queries, 10)
    index = PatientIndex.build(embeddings, kind)
    near = index.search(queries, 10)
    found = [
        len(set(a) & set(b)) for a, b in zip(exact.rows.tolist(), near.rows.tolist(), strict=True)
    ]
    assert np.mean(found) >= 9.5
    unit = queries / np.linalg.norm(queries, axis=1, keepdims=True)
    true = 1 - np.einsum("qkd,qd->qk", index.vectors[near.rows], unit)
    np.testing.assert_allclose(near.cosine, true, atol=1e-5)


def test_a_filter_passed_by_too_many_rows_to_scan_uses_the_engine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("clocs.patients.index.EXACT_UP_TO", 100)
    embeddings, queries = random_embeddings(3000), random_embeddings(20, seed=4).vectors
    mask = Where(label="A").mask(embeddings.rows)
    assert mask is not None
    for kind in ("hnsw", "ivf"):
        index = PatientIndex.build(embeddings, kind)
        hits = index.search(queries, 10, where=mask)
        assert (hits.rows >= 0).all() and mask[hits.rows].all()
        same = [
            len(set(hits.rows[q].tolist()) & set(slow_search(embeddings, queries[q], 10, mask)))
            for q in range(20)
        ]
        assert np.mean(same) >= 9.5


@pytest.mark.parametrize("kind", KINDS)
def test_the_query_itself_is_never_returned(kind: Kind) -> None:
    embeddings = random_embeddings(300)
    index = PatientIndex.build(embeddings, kind)
    hits = index.search(embeddings, 10)
    assert not (hits.rows == np.arange(300)[:, None]).any()
    assert (hits.rows >= 0).all()
    found = index.similar("p7", 10)
    assert "p7" not in found["patient"].to_list()
    assert found["distance"].is_sorted() and found.height == 10


def test_no_recording_of_the_query_patient_is_returned() -> None:
    made = random_embeddings(60)
    rows = made.rows.with_columns(
        pl.Series("patient", [f"p{i // 6}" for i in range(60)]),
        pl.Series("recording", [f"r{i}" for i in range(60)]),
    )
    index = PatientIndex.build(Embeddings(made.vectors, rows, "recording", made.encoder))
    found = index.similar("p3", 100)
    assert found.height == 54
    assert "p3" not in found["patient"].to_list()
    assert index.row_of("r20").tolist() == [20]


def test_an_id_in_two_datasets_needs_the_dataset() -> None:
    made = random_embeddings(20)
    names = pl.Series("dataset", ["a"] * 10 + ["b"] * 10)
    twice = pl.Series("patient", [f"p{i % 10}" for i in range(20)])
    index = PatientIndex.build(
        Embeddings(made.vectors, made.rows.with_columns(names, twice), "patient", made.encoder)
    )
    with pytest.raises(SettingError, match="'a' and in 'b'; say which one, as a:p3"):
        index.similar("p3")
    found = index.similar("p3", 19, dataset="b")
    assert ("a", "p3") in found.select("dataset", "patient").rows()
    assert ("b", "p3") not in found.select("dataset", "patient").rows()


@pytest.mark.parametrize("kind", KINDS)
def test_saved_and_opened_it_finds_the_same(kind: Kind, tmp_path: Path) -> None:
    made = random_embeddings(1700)
    built = PatientIndex.build(made, kind)
    built.save(tmp_path / "index")
    opened = PatientIndex.load(tmp_path / "index")
    assert len(opened) == 1700 and opened.kind == kind
    found = opened.search(made.vectors[1500:], 1)
    assert np.array_equal(found.rows, built.search(made.vectors[1500:], 1).rows)
    assert (found.rows[:, 0] == np.arange(1500, 1700)).mean() > 0.98
    names = sorted(path.name for path in (tmp_path / "index").iterdir())
    assert len(names) == (3 if kind == "exact" else 4)


def test_an_index_that_an_earlier_version_has_added_to_opens(tmp_path: Path) -> None:
    """Its vectors came in parts, and replaced rows stayed in place."""
    embeddings = random_embeddings(100)
    index = PatientIndex.build(embeddings)
    index.live[:3] = False
    index.save(tmp_path)
    manifest, content = json.loads((tmp_path / MANIFEST).read_text()), (tmp_path / VECTORS)
    whole = content.read_bytes()
    parts = (whole[: 64 * 40], whole[64 * 40 :])
    manifest["vectors"] = [
        {"bytes": len(part), "xxh3": xxhash.xxh3_128_hexdigest(part)} for part in parts
    ]
    content.write_bytes(whole + b"half a vector")  # of an addition that was interrupted
    del manifest["sha256"]
    (tmp_path / MANIFEST).write_text(json.dumps(manifest | {"sha256": own_hash(manifest)}))
    opened = PatientIndex.load(tmp_path)
    assert len(opened) == 97
    assert not np.isin(opened.search(embeddings.vectors[:3], 97).rows, [0, 1, 2]).any()
    with pytest.raises(SettingError, match="holds no patient 'p0'"):
        opened.similar("p0")


def test_a_recording_is_found_by_its_id_in_the_dataset_that_is_named() -> None:
    made = random_embeddings(4)
    rows = made.rows.with_columns(
        pl.Series("dataset", ["a", "a", "b", "b"]),
        pl.Series("patient", ["x", "y", "u", "v"]),
        pl.Series("recording", ["1", "2", "x", "3"]),
    )
    index = PatientIndex.build(Embeddings(made.vectors, rows, "recording", made.encoder))
    assert index.row_of("x").tolist() == [0]  # patients before recordings
    assert index.row_of("x", "b").tolist() == [2]
    with pytest.raises(SettingError, match="holds no recording '1' of b"):
        index.row_of("1", "b")


def test_more_neighbors_than_rows_are_all_rows_and_cost_no_memory() -> None:
    made = random_embeddings(30)
    for kind in KINDS:
        index = PatientIndex.build(made, kind)
        near = index.similar("p3", 10**12)
        assert sorted(near["patient"]) == sorted(f"p{i}" for i in range(30) if i != 3)
    alone = PatientIndex.build(random_embeddings(1))
    assert alone.similar("p0").height == 0
    assert alone.search(made.vectors[:2], 5).rows.tolist() == [[0], [0]]


def test_equal_vectors_are_all_found_and_the_query_is_not_returned() -> None:
    made = random_embeddings(50)
    made.vectors[:] = made.vectors[0]
    for kind in KINDS:
        near = PatientIndex.build(made, kind).similar("p7", 10)
        assert near.height == 10 and "p7" not in near["patient"].to_list()
        assert near["distance"].to_numpy().max() < 1e-6


def test_meaningless_filters_are_refused_and_unknown_ages_never_pass() -> None:
    rows = Embeddings.make_rows({"age": [float("nan"), None, 50.0, 90.0]}, 4)
    for where in (Where(min_age=60), Where(min_age=60, max_age=float("inf"))):
        mask = where.mask(rows)
        assert mask is not None and mask.tolist() == [False, False, False, True]
    for words, wrong in (
        ("choose one of male, female", {"sex": "Female"}),
        ("choose one of train", {"split": "tset"}),
        ("highest age is not a number", {"max_age": float("nan")}),
        ("lowest age 90 is above the highest age 20", {"min_age": 90, "max_age": 20}),
    ):
        with pytest.raises(SettingError, match=words):
            Where(**wrong)
    known = random_embeddings(50).rows
    Where(label="A", dataset="made").expect_known(known)
    with pytest.raises(SettingError, match="the label 'a'; did you mean A"):
        Where(label="a").expect_known(known)
    with pytest.raises(SettingError, match="the dataset 'Made'; did you mean made"):
        Where(dataset="Made").expect_known(known)


def test_a_vector_of_another_encoder_is_refused() -> None:
    index = PatientIndex.build(random_embeddings(10))
    made = random_embeddings(3, start=10)
    foreign = Embeddings(made.vectors, made.rows, "patient", "f" * 64)
    with pytest.raises(CheckpointError, match="by the encoders eeeeeeeeeeee… and ffffffffffff"):
        index.search(foreign)


def test_a_vector_of_another_frame_is_refused(tmp_path: Path) -> None:
    made = [replace(random_embeddings(5, start=5 * i), frame=f) for i, f in enumerate((10.0, 5.0))]
    index = PatientIndex.build(made[0])
    index.save(tmp_path)
    for one in (index, PatientIndex.load(tmp_path)):
        with pytest.raises(SettingError, match="frames of 5 s and 10 s"):
            one.search(made[1])
    with pytest.raises(SettingError, match="frames of 5 s and 10 s"):
        joined(made)
    assert len(index.search(random_embeddings(5, start=10), 1).rows) == 5  # of an unknown one


def test_zero_vectors_are_not_indexed_and_cannot_be_queries() -> None:
    made = random_embeddings(10)
    made.vectors[4] = 0
    index = PatientIndex.build(made)
    assert len(index) == 9 and "p4" not in index.rows["patient"].to_list()
    with pytest.raises(SettingError, match="zero or not finite"):
        index.search(np.zeros((1, 16), np.float32))


def test_a_vector_that_is_not_finite_is_refused_by_name() -> None:
    for wrong in (np.nan, np.inf):
        made = random_embeddings(10)
        made.vectors[6, 2] = wrong
        with pytest.raises(SettingError, match="vector of p6 is not finite"):
            PatientIndex.build(made)


def test_vectors_are_normalized_block_by_block_and_unit_vectors_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("clocs.patients.embeddings._AT_ONCE", 7)
    made = random_embeddings(30).vectors
    made[11] = 0
    unit, alive = as_units(made), np.arange(30) != 11
    length = np.linalg.norm(made.astype(np.float64), axis=1, keepdims=True)
    np.testing.assert_array_equal(unit[alive], (made[alive] / length[alive]).astype(np.float32))
    assert not unit[11].any()
    assert as_units(unit[alive]) is not unit and as_units(kept := unit[alive]) is kept


def test_an_index_that_cannot_be_written_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(engine: object, path: Path) -> None:
        path.write_bytes(b"half of it")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("clocs.patients.index.write_engine", full)
    with pytest.raises(FileError, match="the disk is full"):
        PatientIndex.build(random_embeddings(100), "hnsw").save(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {VECTORS, "rows-0.parquet"}


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda folder: (folder / VECTORS).write_bytes(b"short"), "damaged"),
        (lambda folder: (folder / "rows-0.parquet").unlink(), "missing"),
        (lambda folder: (folder / "engine-0.faiss").write_bytes(b"x" * 10), "damaged"),
        (lambda folder: (folder / MANIFEST).write_text("{}"), "not a manifest"),
        (lambda folder: (folder / MANIFEST).write_text("[1]"), "not a manifest"),
        (lambda folder: change_manifest(folder, "count", 3), "differs from its own hash"),
    ],
)
def test_damage_is_named_on_opening(
    damage: Callable[[Path], object], words: str, tmp_path: Path
) -> None:
    PatientIndex.build(random_embeddings(200), "hnsw").save(tmp_path)
    damage(tmp_path)
    with pytest.raises(StoreError, match=words):
        PatientIndex.load(tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_no_flipped_bit_of_an_index_changes_what_is_read(kind: Kind, tmp_path: Path) -> None:
    folder = tmp_path / "index"
    PatientIndex.build(random_embeddings(34, dim=4), kind).save(folder)

    def read() -> object:
        found = PatientIndex.load(folder)
        facts = [getattr(found, name) for name in ("level", "encoder", "frame", "leads", "kind")]
        hits = found.search(np.eye(4, dtype=np.float32), 3)
        arrays = (found.vectors, found.live, hits.rows, hits.cosine)
        return facts, found.rows.rows(), [np.array(array).tobytes() for array in arrays]

    for file in sorted(folder.iterdir()):
        refused = read_damaged(file, read, most=120)
        assert refused == min(120, file.stat().st_size) or file.name == MANIFEST


def test_an_index_of_a_format_long_ago_is_refused(tmp_path: Path) -> None:
    PatientIndex.build(random_embeddings(30)).save(tmp_path)
    manifest = json.loads((tmp_path / MANIFEST).read_text())
    del manifest["sha256"]
    manifest["format"] = 3
    manifest["sha256"] = own_hash(manifest)
    (tmp_path / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(StoreError, match="is an index of format 3, and this version reads"):
        PatientIndex.load(tmp_path)


def change_manifest(folder: Path, name: str, value: object) -> None:
    fields = json.loads((folder / MANIFEST).read_text())
    (folder / MANIFEST).write_text(json.dumps(fields | {name: value}))


def test_a_forged_manifest_cannot_name_a_file_outside_the_folder(tmp_path: Path) -> None:
    folder, mine = tmp_path / "index", tmp_path / "mine.txt"
    mine.write_text("mine")
    PatientIndex.build(random_embeddings(10)).save(folder)
    manifest = json.loads((folder / MANIFEST).read_text())
    manifest["files"]["rows"]["name"] = "../mine.txt"
    del manifest["sha256"]
    manifest["sha256"] = own_hash(manifest)  # anybody can compute it
    (folder / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(StoreError, match="is damaged"):
        PatientIndex.load(folder)
    assert mine.read_text() == "mine"


def test_few_vectors_are_indexed_without_warnings(
    capfd: pytest.CaptureFixture[str],
) -> None:
    for n in (1, 5, 30):
        index = PatientIndex.build(random_embeddings(n), "ivf")
        assert index.search(index.vectors[:1], 1).rows.tolist() == [[0]]
    assert capfd.readouterr() == ("", "")


def test_another_index_is_not_overwritten(tmp_path: Path) -> None:
    PatientIndex.build(random_embeddings(10)).save(tmp_path)
    with pytest.raises(SettingError, match="already holds an index"):
        PatientIndex.build(random_embeddings(20)).save(tmp_path)


def test_the_kind_depends_on_the_size_and_wrong_arguments_are_refused() -> None:
    sizes = {10: "exact", 1_000_000: "exact", 1_000_001: "hnsw", 10_000_000: "ivf"}
    sizes[10_000_001] = "ivf"
    assert {n: pick_kind("auto", n) for n in sizes} == sizes
    index = PatientIndex.build(random_embeddings(10))
    for act in (
        lambda: pick_kind("magic", 1),  # type: ignore[arg-type]
        lambda: index.search(np.ones((1, 3), np.float32)),
        lambda: index.search(index.vectors, 0),
        lambda: index.search(index.vectors, where=np.ones(3, bool)),
        lambda: index.similar("nobody"),
        lambda: index.search(index.vectors, exclude=[("made", "p1")]),
    ):
        with pytest.raises(ClocsError):
            act()


def test_without_faiss_a_sentence_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(SettingError, match=r"pip install '\.\[search\]'"):
        PatientIndex.build(random_embeddings(10)).search(random_embeddings(1).vectors)


def test_torch_and_faiss_work_in_one_process() -> None:
    import torch

    x = torch.rand(2000, 64)
    index = PatientIndex.build(random_embeddings(2000), "hnsw")
    for _ in range(3):
        before = (x @ x.T).sum()
        assert len(index.search(random_embeddings(50, seed=1).vectors, 5).rows) == 50
        assert torch.equal((x @ x.T).sum(), before)


def test_an_index_whose_engine_was_on_disk_is_searched_exactly(tmp_path: Path) -> None:
    """Earlier versions kept those of the kind 'ivfpq' in format 5, with rows for Arrow."""
    made = PatientIndex.build(random_embeddings(50))
    made.save(tmp_path)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    table = pl.read_parquet(tmp_path / manifest["files"]["rows"]["name"])
    table.write_ipc(tmp_path / "rows-0.arrow", compression="uncompressed")
    contents = {"rows": tmp_path / "rows-0.arrow", "codes": tmp_path / "codes-0.ivf"}
    contents["engine"] = tmp_path / "engine-0.faiss"
    for role in ("codes", "engine"):
        contents[role].write_bytes(role.encode())
    manifest |= {"format": 5, "kind": "ivfpq", "efforts": []}
    manifest["files"] = {
        role: {
            "name": path.name,
            "bytes": path.stat().st_size,
            "xxh3": xxhash.xxh3_128_hexdigest(path.read_bytes()),
        }
        for role, path in contents.items()
    }
    del manifest["sha256"], manifest["datasets"]
    manifest["sha256"] = own_hash(manifest)
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    opened = PatientIndex.load(tmp_path)
    assert opened.kind == "exact" and isinstance(opened.vectors, np.memmap)
    patient = made.rows["patient"][3]
    assert opened.similar(patient).equals(made.similar(patient))
