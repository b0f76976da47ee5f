"""A list of patients, from the explorer or by hand, chooses them in stores and indexes."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

import clocs
from clocs import Checkpoint, Store
from clocs.errors import FileError, SettingError
from clocs.patients.cohort import as_cohort, cohort_text, read_cohort


@pytest.mark.parametrize(
    "text",
    [
        "dataset,patient\na,1\na,2\n",
        "Patient;labels;dataset\r\n1;AF;a\r\n2;;a\r\n",
        "a:1\n\n a:2 \na:2\n",
        cohort_text([("a", "2"), ("a", "1"), ("a", "2")]),
    ],
)
def test_tables_and_lists_name_the_same_patients(text: str, tmp_path: Path) -> None:
    file = tmp_path / "some.csv"
    file.write_text("\ufeff" + text, encoding="utf-8")
    assert read_cohort(file).ids == {"a:1", "a:2"}


def test_ids_that_look_like_formulas_are_read_back(tmp_path: Path) -> None:
    file = tmp_path / "some.csv"
    file.write_text(cohort_text([("=a", "-x"), ("=a", "-5")]))
    assert "'-x" in file.read_text() and read_cohort(file).ids == {"=a:-x", "=a:-5"}


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "lists no patient"),
        (b"patient\n\n", "lists no patient"),
        (b"code,dataset\n0123456789,a\n", "pseudonyms instead of IDs"),
        (b"id,age\n1,2\n", "none called patient"),
        (b"\xff\xfe\x00", "is not a text"),
    ],
)
def test_a_file_that_is_no_list_of_patients_is_refused(
    content: bytes, sentence: str, tmp_path: Path
) -> None:
    (tmp_path / "some.csv").write_bytes(content)
    with pytest.raises(SettingError, match=sentence):
        read_cohort(tmp_path / "some.csv")
    with pytest.raises(FileError, match="does not exist"):
        read_cohort(tmp_path / "nowhere.csv")


def test_stores_are_embedded_and_indexed_for_a_cohort_alone(
    checkpoint: Checkpoint, small_store: Store, tmp_path: Path
) -> None:
    wanted = small_store.table["patient"].unique().sort().to_list()[3:8]
    file = tmp_path / "five.csv"
    file.write_text(cohort_text((small_store.manifest.dataset, p) for p in wanted), "utf-8")
    made = clocs.embed(checkpoint, small_store, cohort=file)
    assert made.rows["patient"].to_list() == wanted
    everyone = clocs.embed(checkpoint, small_store)
    own = everyone.rows["patient"].is_in(wanted).to_numpy()
    assert (made.vectors == everyone.vectors[own]).all()
    done = clocs.index(checkpoint, small_store, out=tmp_path / "index", cohort=wanted)
    assert done.total == {"patient": 5, "recording": 10}
    near = clocs.similar(tmp_path / "index", patient=wanted[0], cohort=wanted[2:4])
    assert sorted(near["patient"]) == wanted[2:4]


def test_unknown_and_ambiguous_patients_and_files_are_refused_in_a_sentence(
    checkpoint: Checkpoint, small_store: Store, tmp_path: Path
) -> None:
    known = small_store.table["patient"][0]
    with pytest.raises(SettingError, match=r"1 of the 2 patients of .* not in .*'nobody'"):
        clocs.embed(checkpoint, small_store, cohort=[known, "nobody"])
    with pytest.raises(SettingError, match="chooses patients of stores"):
        clocs.embed(checkpoint, tmp_path / "file.csv", cohort=[known])
    rows = pl.DataFrame({"dataset": ["a", "b", "b"], "patient": ["1", "1", "2"]})
    with pytest.raises(SettingError, match=r"'1', which is an ID in 'a' and in 'b'; .* a:1"):
        as_cohort(["1"]).expect_known(rows, "here")
    for ids in (["b:1", "2"], ["b:1", "b:2"]):
        as_cohort(ids).expect_known(rows, "here")
        assert as_cohort(ids).mask(rows).tolist() == [False, True, True]
