"""An index is made complete or not at all, by one process, and its two levels agree."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from clocs import Checkpoint, Store
from clocs.errors import BusyError, ClocsError, SettingError
from clocs.files import locked
from clocs.patients.build_index import _add, index, open_index, similar
from clocs.patients.embeddings import Embeddings
from clocs.patients.index import PatientIndex
from clocs.patients.index_files import INDEXED
from clocs.patients.rows import Level
from clocs.store.manifest import MANIFEST


@dataclass
class Levels:
    """Two patients with two recordings each, as the two levels of an index."""

    opened: dict[Level, PatientIndex]

    def patients(self, level: Level) -> list[str]:
        index = self.opened[level]
        return index.rows.filter(pl.Series(index.live))[level].to_list()


def embedded(patients: list[str], recordings: list[str]) -> dict[Level, Embeddings]:
    """Patients, and recordings whose first letter is their patient."""
    draw = np.random.default_rng(len(recordings))
    people = {"dataset": ["d"] * len(patients), "patient": patients}
    owners = {
        "dataset": ["d"] * len(recordings),
        "patient": [one[0] for one in recordings],
        "recording": recordings,
    }
    made: dict[Level, Embeddings] = {}
    both: tuple[tuple[Level, dict[str, list[str]]], ...] = (
        ("patient", people),
        ("recording", owners),
    )
    for level, columns in both:
        rows = Embeddings.make_rows(columns, len(columns["patient"]))
        vectors = draw.normal(size=(rows.height, 4)).astype(np.float32)
        made[level] = Embeddings(vectors, rows, level, "e" * 64)
    return made


@pytest.fixture
def levels() -> Levels:
    made = embedded(["a", "b"], ["a1", "a2", "b1", "b2"])
    return Levels({level: PatientIndex.build(made[level]) for level in INDEXED})


def test_a_replaced_patient_keeps_no_old_recording(levels: Levels) -> None:
    added = _add(levels.opened, embedded(["a"], ["a2", "a3"]), replace=True)
    assert added == {"patient": 1, "recording": 2}
    assert levels.patients("patient") == ["b", "a"]
    assert levels.patients("recording") == ["b1", "b2", "a2", "a3"]


def test_a_patient_replaced_by_zero_vectors_is_removed(levels: Levels) -> None:
    made = embedded(["c"], ["c1"])
    made["patient"] = replace(made["patient"], only_zeros=(("d", "a", ""),))
    _add(levels.opened, made, replace=True)
    assert levels.patients("patient") == ["b", "c"]
    assert levels.patients("recording") == ["b1", "b2", "c1"]


def test_another_recording_of_a_known_patient_is_refused(levels: Levels) -> None:
    with pytest.raises(SettingError, match="1 of 2 patients are in the index already, such as a"):
        _add(levels.opened, embedded(["a", "c"], ["a3", "c1"]), replace=False)
    assert levels.patients("recording") == ["a1", "a2", "b1", "b2"]


def test_an_addition_interrupted_between_the_levels_is_completed(levels: Levels) -> None:
    more = embedded(["c"], ["c1", "c2"])
    levels.opened["patient"].add(more["patient"])  # and then the power failed
    assert _add(levels.opened, more, replace=False) == {"patient": 0, "recording": 2}
    assert levels.patients("recording")[-2:] == ["c1", "c2"]


def test_an_interrupted_first_run_is_made_again(
    checkpoint: Checkpoint, small_store: Store, tmp_path: Path
) -> None:
    index(checkpoint, small_store, out=tmp_path / "index")
    (tmp_path / "index" / "recording" / MANIFEST).unlink()
    done = index(checkpoint, small_store, out=tmp_path / "index")
    assert done.total == {"patient": 40, "recording": 80}
    assert len(open_index(tmp_path / "index", "recording")) == 80


def test_wrong_arguments_are_refused_before_anything_is_encoded_or_written(
    checkpoint: Checkpoint, small_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tmp_path / "index"
    index(checkpoint, small_store, out=made)
    before = {path: path.read_bytes() for path in made.rglob("*") if path.is_file()}
    (tmp_path / "file").write_text("mine")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").write_text("mine")

    def never(*_: object, **__: object) -> None:
        raise AssertionError("encoded in vain")

    monkeypatch.setattr("clocs.patients.embed.embed_levels", never)
    for words, folder, options in (
        ("give it with `add`", tmp_path / "new", {"replace": True}),
        ("is a file", tmp_path / "file", {}),
        ("other things, such as letter.txt", tmp_path / "full", {}),
        ("other things, such as", small_store.path, {}),
        ("is an index already", made, {}),
        ("leave out `kind`", made, {"add": True, "kind": "hnsw"}),
        ("is not an index to add to", tmp_path / "new", {"add": True}),
        ("no `kind` 'magic' of index", tmp_path / "new", {"kind": "magic"}),
        ("such as 5", tmp_path / "new", {"frame": -1.0}),
    ):
        with pytest.raises(ClocsError, match=words):
            index(checkpoint, small_store, out=folder, **options)
    with pytest.raises(SettingError, match="at least one"):
        index(checkpoint, out=tmp_path / "new")
    assert not (tmp_path / "new").exists()
    assert before == {path: path.read_bytes() for path in made.rglob("*") if path.is_file()}


def test_a_failure_leaves_no_folder_and_two_processes_do_not_write_one(
    checkpoint: Checkpoint, small_store: Store, tmp_path: Path
) -> None:
    with pytest.raises(ClocsError, match=r"`leads` are V9, and .* has none of them"):
        index(checkpoint, small_store, out=tmp_path / "new", leads=["V9"])
    assert not (tmp_path / "new").exists()
    with locked(tmp_path / "busy"), pytest.raises(BusyError, match="is being written"):
        index(checkpoint, small_store, out=tmp_path / "busy")
    index(checkpoint, small_store, out=tmp_path / "busy")
    patient = small_store.table["patient"][0]
    assert similar(tmp_path / "busy", patient=patient, k=3).height == 3
