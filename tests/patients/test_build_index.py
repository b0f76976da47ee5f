"""An index is made complete or not at all, by one process, and its two levels agree."""

from __future__ import annotations

from pathlib import Path

import pytest

from clocs import Checkpoint, Store
from clocs.errors import BusyError, ClocsError, SettingError
from clocs.files import locked
from clocs.patients.build_index import index, open_index, similar
from clocs.store.manifest import MANIFEST


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
        ("is a file", tmp_path / "file", {}),
        ("other things, such as letter.txt", tmp_path / "full", {}),
        ("other things, such as", small_store.path, {}),
        ("is an index already", made, {}),
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
