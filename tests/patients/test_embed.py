"""Embedding streams what frames in memory would give, bit for bit, and drops nobody in silence."""

from __future__ import annotations

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

import clocs
from clocs import Checkpoint, Frames, Store
from clocs.errors import CheckpointError, ClocsWarning, FileError, SettingError, StoreError
from clocs.frames.make import make_frames
from clocs.frames.views import Views, instances
from clocs.patients.embed import embed_levels
from clocs.patients.embeddings import Embeddings, UnitMeans, as_units, expect_replaceable, joined
from clocs.patients.encode import Windows, encoded
from clocs.patients.index import PatientIndex
from clocs.recording import FrameSpec
from clocs.training.embed import AT_ONCE, embed_instances
from damage import read_damaged
from embedding_parts import random_embeddings


def test_the_stream_gives_the_bits_of_frames_in_memory(
    checkpoint: Checkpoint, small_store: Store, usual_frames: Frames
) -> None:
    for split, part in ((None, None), ("test", 2)):
        rows = instances(usual_frames, of="lead", views=Views(), split=part)
        expected = embed_instances([checkpoint], usual_frames, rows)[0].numpy()
        made = embed_levels(checkpoint, small_store, levels=["frame"], split=split)["frame"]
        np.testing.assert_array_equal(made.vectors, expected)
        owner = [usual_frames.patient_ids[usual_frames.patient[row]] for row in rows.frame]
        assert made.rows["patient"].to_list() == owner
        assert made.rows["segment"].to_list() == usual_frames.segment[rows.frame].tolist()
        assert made.rows["lead"].to_list() == [usual_frames.leads[lead] for lead in rows.lead]
        names = np.array(usual_frames.labels)
        labels = [names[usual_frames.target[row] > 0].tolist() for row in rows.frame]
        assert made.rows["labels"].to_list() == labels


def test_a_vector_does_not_depend_on_its_batch(checkpoint: Checkpoint) -> None:
    draw = np.random.default_rng(0)
    values = draw.integers(-500, 500, size=(AT_ONCE + 5, 1, 2500)).astype(np.int16)
    ones = np.ones((len(values), 1))
    windows = Windows(values, ones.astype(np.bool_), ones.astype(np.float32))
    whole = np.concatenate(list(encoded(checkpoint, [windows])))
    for size in (1, 2, 7, 700):
        starts = range(0, 1400, size)
        pieces = [windows[start : min(start + size, 1400)] for start in starts]
        np.testing.assert_array_equal(
            np.concatenate(list(encoded(checkpoint, pieces))), whole[:1400]
        )
    for row in (0, AT_ONCE - 1, AT_ONCE + 4):
        alone = next(encoded(checkpoint, [windows[row : row + 1]]))
        np.testing.assert_array_equal(alone[0], whole[row])


def test_recordings_and_patients_are_means_of_unit_vectors(
    checkpoint: Checkpoint, small_store: Store
) -> None:
    made = embed_levels(checkpoint, small_store, levels=["frame", "recording", "patient"])
    frames = made["frame"]
    for level in ("recording", "patient"):
        coarse = made[level]
        own = frames.rows[level].to_numpy()
        for vector, row in zip(
            coarse.vectors[:10], coarse.rows.iter_rows(named=True), strict=False
        ):
            mine = frames.vectors[own == row[level]].astype(np.float64)
            mean = (mine / np.linalg.norm(mine, axis=1, keepdims=True)).mean(axis=0)
            np.testing.assert_allclose(vector, mean / np.linalg.norm(mean), atol=1e-6)
            assert row["views"] == len(mine)
    again = frames.to("patient")
    np.testing.assert_array_equal(again.vectors, made["patient"].vectors)
    assert again.rows.equals(made["patient"].rows)
    assert made["patient"].rows.height == 40
    assert made["recording"].rows.height == 80


def test_zero_vectors_count_in_no_mean_and_patients_without_others_are_listed() -> None:
    rows = Embeddings.make_rows(
        {
            "dataset": ["d"] * 5,
            "patient": ["a", "a", "b", "b", "c"],
            "recording": ["a1", "a1", "b1", "b1", "c1"],
            "segment": [0, 1, 0, 1, 0],
            "lead": ["II"] * 5,
        },
        5,
    )
    vectors = np.array([[3, 0], [0, 0], [0, 0], [0, 0], [1, 1]], np.float32)
    made = Embeddings(vectors, rows, "frame", "e").to("patient")
    assert made.rows["patient"].to_list() == ["a", "c"]
    np.testing.assert_allclose(made.vectors[0], [1, 0])
    assert made.rows["views"].to_list() == [1, 1]
    assert made.only_zeros == (("d", "b", ""),)
    assert made.zero_vectors == 3


@pytest.mark.parametrize("maxima", [(), (1, 3)])
@pytest.mark.parametrize("in_order", [True, False])
def test_means_do_not_depend_on_batches_or_on_the_order_of_groups(
    in_order: bool, maxima: tuple[int, ...]
) -> None:
    generator = np.random.default_rng(0)
    group = generator.integers(0, 20, 200)
    group = np.sort(group) if in_order else group
    vectors = generator.normal(size=(200, 6)).astype(np.float32)
    vectors[::7] = 0
    vectors[:, 1:3] = abs(vectors[:, 1:3])  # as after a rectifier
    means = UnitMeans(group, 20, 6, maxima)
    for part in np.split(vectors, [1, 2, 50, *range(51, 120), 120]):
        means.add(part)
    wide = vectors.astype(np.float64)
    length = np.sqrt(np.einsum("nd,nd->n", wide, wide))[:, None]
    sums = np.zeros((20, 6))
    for own, one in zip(
        group, wide / np.where((length > 0) & (not maxima), length, 1), strict=True
    ):
        sums[own] += one
    if maxima:
        count = np.bincount(group[vectors.any(axis=1)])
        greatest = np.stack([wide[group == own].max(axis=0) for own in range(20)])
        sums[:, 1:3] = (greatest * count[:, None])[:, 1:3]
    assert np.array_equal(means.vectors, as_units(sums)) and means.nonzero.all()
    assert np.array_equal(means.views, np.bincount(group[vectors.any(axis=1)], minlength=20))
    assert means.zeros == len(vectors[::7])


def test_an_encoder_of_zeros_lists_all_patients(checkpoint: Checkpoint, small_store: Store) -> None:
    silent = {k: torch.zeros_like(v) for k, v in checkpoint.weights.items()}
    dead = replace(checkpoint, weights=silent)
    made = embed_levels(dead, small_store, levels=["patient"], split="test")["patient"]
    assert len(made) == 0
    test = set(make_frames(small_store).patients_of(2))
    assert {patient for _, patient, _ in made.only_zeros} == test


def test_labels_of_frames_count_where_they_hold_for_half_of_a_recording() -> None:
    labels = [["N"], ["N"], ["N", "V"], ["V"], ["A"], []]
    rows = Embeddings.make_rows(
        {
            "dataset": ["d"] * 6,
            "patient": ["p"] * 6,
            "recording": ["r1"] * 4 + ["r2"] * 2,
            "segment": [0, 1, 2, 3, 0, 1],
            "lead": ["I"] * 6,
            "labels": labels,
            "age": [None] * 4 + [60.0] * 2,
        },
        6,
    )
    frames = Embeddings(np.ones((6, 2), np.float32), rows, "frame", "e")
    assert frames.to("recording").rows["labels"].to_list() == [["N", "V"], ["A"]]
    patient = frames.to("patient").rows.row(0, named=True)
    assert sorted(patient["labels"]) == ["A", "N", "V"]
    assert patient["age"] == 60.0


@pytest.mark.parametrize("unnamed", [False, True])
def test_rows_without_a_dataset_or_recording_still_have_their_groups(unnamed: bool) -> None:
    columns = {
        "patient": ["a", "a", "b"],
        "recording": ["1", "2", "3"],
        "labels": [["x"], ["y"], []],
        "age": [50.0, float("nan"), float("nan")],
    }
    rows = Embeddings.make_rows(columns, 3)
    if unnamed:  # made by other hands
        nothing = pl.lit(None, pl.String)
        rows = rows.with_columns(nothing.alias("dataset"), nothing.alias("recording"))
    frames = Embeddings(np.eye(3, dtype=np.float32), rows, "frame", "e")
    made = frames.to("patient")
    np.testing.assert_allclose(made.vectors, [[0.5**0.5, 0.5**0.5, 0], [0, 0, 1]], atol=1e-7)
    assert made.rows["labels"].to_list() == [["x", "y"], []]
    assert made.rows["age"].to_list() == [50.0, None]
    assert PatientIndex.build(made).similar("a", 5)["patient"].to_list() == ["b"]


def test_parquet_keeps_everything(
    checkpoint: Checkpoint, small_store: Store, tmp_path: Path
) -> None:
    made = embed_levels(checkpoint, small_store, levels=["recording"])["recording"]
    full = replace(made, only_zeros=(("d", "p", "r"),), zero_vectors=4, problems=(("x", "is bad"),))
    full = replace(full, maxima=(2, 4))
    full.save(tmp_path / "e.parquet")
    back = Embeddings.load(tmp_path / "e.parquet")
    np.testing.assert_array_equal(back.vectors, full.vectors)
    assert back.rows.equals(full.rows)
    facts = [
        "level",
        "encoder",
        "only_zeros",
        "zero_vectors",
        "problems",
        "frame",
        "leads",
        "maxima",
    ]
    assert all(getattr(back, name) == getattr(full, name) for name in facts)
    assert pl.read_parquet(tmp_path / "e.parquet").columns[-1] == "vector"  # for anybody's tools
    full.where(np.zeros(len(full), bool)).save(tmp_path / "none.parquet")
    assert Embeddings.load(tmp_path / "none.parquet").vectors.shape == (0, full.dim)
    (tmp_path / "bad.parquet").write_bytes(b"no")
    with pytest.raises(StoreError, match="holds no embeddings"):
        Embeddings.load(tmp_path / "bad.parquet")


def test_no_flipped_bit_of_saved_embeddings_changes_what_is_read(tmp_path: Path) -> None:
    path = tmp_path / "e.parquet"
    replace(random_embeddings(12, dim=4), problems=(("x", "is bad"),), frame=2.5).save(path)

    def read() -> object:
        found = Embeddings.load(path)
        facts = {k: v for k, v in vars(found).items() if k not in ("vectors", "rows")}
        return facts, found.vectors.tobytes(), found.rows.rows()

    assert read_damaged(path, read, most=300) == 300


def test_embeddings_of_an_earlier_version_get_a_sentence_and_can_be_replaced(
    tmp_path: Path,
) -> None:
    path = tmp_path / "e.parquet"
    random_embeddings(5).save(path)
    table, facts = pl.read_parquet(path), pl.read_parquet_metadata(path)
    table.write_parquet(path, metadata={"clocs.embeddings": facts["clocs.embeddings"]})
    with pytest.raises(StoreError, match=r"damaged, or an earlier version.*`clocs embed`"):
        Embeddings.load(path)
    expect_replaceable(path)


def test_leads_default_to_those_the_encoder_was_trained_on(
    checkpoint: Checkpoint, small_store: Store
) -> None:
    other = replace(checkpoint, card=replace(checkpoint.card, leads=("V6", "I")))
    made = embed_levels(other, small_store, levels=["frame"])["frame"]
    assert made.rows["lead"].unique().sort().to_list() == ["I", "V6"]
    assert made.leads == ("V6", "I")
    long = FrameSpec(small_store.recording(0).seconds + 1)
    with pytest.raises(SettingError, match="has no frame"):
        embed_levels(checkpoint, small_store, spec=long, levels=["patient"])


def test_another_number_of_samples_and_a_wrong_level_are_refused(
    checkpoint: Checkpoint, small_store: Store
) -> None:
    with pytest.raises(CheckpointError, match="takes frames of 2500 samples, not 1000"):
        embed_levels(checkpoint, small_store, spec=FrameSpec(2.0, 1000), levels=["patient"])
    with pytest.raises(SettingError, match="choose one of frame, recording, patient"):
        embed_levels(checkpoint, small_store, levels=["person"])  # type: ignore[list-item]
    with pytest.raises(SettingError, match="no split 'tset'"):
        embed_levels(checkpoint, small_store, split="tset", levels=["patient"])


def test_a_store_given_twice_is_refused(checkpoint: Checkpoint, small_store: Store) -> None:
    with pytest.raises(SettingError, match="is given twice"):
        clocs.embed(checkpoint, small_store, small_store)


def test_a_store_with_some_leads_of_the_encoder_uses_them_and_one_with_none_is_refused(
    checkpoint: Checkpoint, small_store: Store
) -> None:
    other = replace(checkpoint, card=replace(checkpoint.card, leads=("II", "V9")))
    with pytest.warns(ClocsWarning, match="has no lead V9: it is read from II alone"):
        made = clocs.embed(other, small_store)
    only = clocs.embed(other, small_store, leads=["ii"])
    assert (made.leads, only.leads) == (("II", "V9"), ("II",))
    np.testing.assert_array_equal(made.vectors, only.vectors)
    none = replace(checkpoint, card=replace(checkpoint.card, leads=("V8", "V9")))
    with pytest.raises(SettingError, match=r"trained on V8, V9, and .* none of them; .*`leads`"):
        clocs.embed(none, small_store)


def test_vectors_of_different_leads_cannot_be_joined(
    checkpoint: Checkpoint, small_store: Store
) -> None:
    parts = [
        clocs.embed(checkpoint, small_store, leads=leads, split=split)
        for leads, split in ((["II"], "test"), (["II", "V2"], "validation"))
    ]
    with pytest.raises(SettingError, match=r"different leads .*; choose `leads` for all"):
        joined(parts)


def test_arrays_are_refused_in_one_sentence(checkpoint: Checkpoint) -> None:
    for wrong in (np.zeros((1, 4)), [Path("a.csv")], None):
        with pytest.raises(SettingError, match="`sources` are stores, or the paths of files"):
            clocs.embed(checkpoint, wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("code", "words"), [(errno.ENOSPC, "the disk is full"), (errno.EACCES, "permission is missing")]
)
def test_a_file_that_cannot_be_written_leaves_the_old_one_and_nothing_else(
    code: int, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "e.parquet"
    random_embeddings(5).save(path)
    before = path.read_bytes()

    def refused(self: pl.DataFrame, file: Path, **_: object) -> None:
        file.write_bytes(b"half of it")
        raise pl.exceptions.ComputeError(
            f"parquet: IO error: {os.strerror(code)} (os error {code})"
        )

    monkeypatch.setattr(pl.DataFrame, "write_parquet", refused)
    with pytest.raises(FileError, match=f"e.parquet cannot be written: {words}"):
        random_embeddings(9).save(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_embeddings_saved_at_once_to_different_files_do_not_mix(tmp_path: Path) -> None:
    made = {tmp_path / f"{n}.parquet": random_embeddings(n) for n in range(200, 232)}
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda one: one[1].save(one[0]), made.items()))
    for path, expected in made.items():
        np.testing.assert_array_equal(Embeddings.load(path).vectors, expected.vectors)
    assert set(tmp_path.iterdir()) == set(made)
