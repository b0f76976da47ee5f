"""Options of a folder, and the file that keeps them beside the data."""

from __future__ import annotations

import zipfile
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from clocs.datasets.folder import Folder, save_folder_options
from clocs.datasets.folder_options import OPTIONS, FolderOptions
from clocs.datasets.folder_patients import is_somebody, patient_rule
from clocs.datasets.table import open_dataset
from clocs.errors import SettingError
from clocs.formats.source import open_source
from own_files import several


def opened(source: Path, **options: Any) -> FolderOptions:
    dataset = open_dataset("folder", source, **options)
    assert isinstance(dataset, Folder)
    return dataset.options


@pytest.fixture
def data(tmp_path: Path) -> Path:
    several(tmp_path / "data", 1)
    return tmp_path / "data"


def test_every_option_is_a_field() -> None:
    assert [one.name for one in OPTIONS] == [one.name for one in fields(FolderOptions)]


def test_saved_options_are_read_and_those_given_win(data: Path) -> None:
    given = {
        "patient": "pattern:(\\d+)_\"x\"", "labels": "t.csv", "label_columns": "AF,sinus rhythm",
        "columns": {"age": "AGE AT ECG"}, "lead_names": "ECG1=II,ch 2=V5", "rate": 250,
        "frame_samples": 1000, "classes": ("b", "a"), "cap_minutes": 2.5,
    }  # fmt: skip
    path = save_folder_options(data, **given)
    assert path == data / "clocs.toml"
    saved = opened(data)
    assert saved == opened(data, **given)
    assert saved.columns == {"age": "AGE AT ECG"} and saved.lead_names == {
        "ECG1": "II",
        "ch 2": "V5",
    }
    assert saved.label_columns == ("AF", "sinus rhythm") and saved.rate == 250.0
    assert opened(data, patient="file").patient == "file"
    assert opened(data, patient="file").labels == "t.csv"


def test_saved_options_beside_a_zip_are_read(data: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.write(data / "r0.hea", "r0.hea")
    save_folder_options(tmp_path / "a.zip", patient="file")
    assert (tmp_path / "clocs.toml").is_file()
    assert opened(tmp_path / "a.zip").patient == "file"


def test_a_table_outside_the_folder_is_saved_with_its_place(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in (data, data.parent):
        (folder / f"{folder.name}.csv").write_text("id,label\nr0,AF\n")
    monkeypatch.chdir(data.parent)
    save_folder_options(data, labels="data/data.csv", codes=f"{data.parent.name}.csv")
    monkeypatch.chdir("/")
    saved = opened(data)
    assert saved.labels == "data.csv"
    assert Path(saved.codes or "").is_absolute() and Path(saved.codes or "").is_file()


def test_saving_options_does_not_make_the_source_another(data: Path) -> None:
    before = open_source(data).fingerprint
    save_folder_options(data, patient="file")
    assert open_source(data).fingerprint == before


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("pateint = 'file'", "clocs.toml does not take `pateint`; it has `patient`"),
        ("rate = 'fast'", "`rate` must be a number .*correct clocs.toml"),
        ("patient = ", "clocs.toml of .* cannot be read"),
        ("lead_names = 3", "`lead_names` must be pairs"),
        ("leads = 3", "clocs.toml"),
        ("leads = [3]", "clocs.toml"),
    ],
)
def test_a_wrong_file_of_options_is_one_sentence(data: Path, text: str, words: str) -> None:
    (data / "clocs.toml").write_text(text)
    with pytest.raises(SettingError, match=words):
        opened(data)


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ("mother", "`patient` is 'mother'; give header, folder"),
        ("folder:0", "`patient` is 'folder:0'"),
        ("column:", "`patient` is 'column:'"),
        ("pattern:(", "no regular expression"),
        ("pattern:abc", "with 0 groups; put parentheses"),
    ],
)
def test_a_wrong_rule_for_patients_is_one_sentence(data: Path, rule: str, words: str) -> None:
    with pytest.raises(SettingError, match=words):
        opened(data, patient=rule)


def test_patients_come_from_paths() -> None:
    path = "a.zip/ward 7/P12/rec_3.hea"
    for rule, patient in (
        ("folder", "P12"), ("folder:2", "ward 7"), ("folder:-2", "ward 7"), ("folder:9", ""),
        ("file", "rec_3"), ("pattern:P([0-9]+)", "12"), ("pattern:Q(.)", ""),
    ):  # fmt: skip
        found = patient_rule(rule).from_path
        assert found is not None and found(path) == patient


def test_words_for_nobody_are_no_patients() -> None:
    for word in ("", "X", "anonymous", "Anonymized", "000", "unknown", "N/A"):
        assert not is_somebody(word)
    for word in ("P1", "X12", "12", "Anna", "0815"):
        assert is_somebody(word)


def test_a_column_of_patients_needs_a_table(data: Path) -> None:
    with pytest.raises(SettingError, match="give it as `labels`"):
        open_dataset("folder", data, patient="column:id").list()


def test_a_missing_table_is_one_sentence(data: Path) -> None:
    with pytest.raises(
        SettingError, match=r"`labels` is nowhere\.csv, which is neither a file nor"
    ):
        open_dataset("folder", data, labels="nowhere.csv").list()


def test_every_option_is_explained_in_the_docs() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "own-ecgs.md").read_text("utf-8")
    missing = [one.name for one in OPTIONS if f"--{one.name.replace('_', '-')}" not in page]
    assert not missing
