"""Options of a folder, and the file that keeps them beside the data."""

from __future__ import annotations

import time
import warnings
import zipfile
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from clocs.datasets.folder import Folder, save_folder_options
from clocs.datasets.folder_options import OPTIONS, FolderOptions
from clocs.datasets.folder_patients import is_somebody, patient_rule
from clocs.datasets.table import open_dataset
from clocs.errors import ClocsWarning, SettingError
from clocs.formats.source import open_source
from own_files import record, several


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
    (data / "t.csv").write_text("id,label\nr0,AF\n")
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


def test_tables_are_saved_by_their_names_in_the_folder_and_others_are_refused(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in (data, data.parent):
        (folder / f"{folder.name}.csv").write_text("id,label\nr0,AF\n")
    monkeypatch.chdir(data.parent)
    save_folder_options(data, labels="data/data.csv")
    with pytest.raises(SettingError, match=r"`codes` is .*not in .*copy it there to `save`"):
        save_folder_options(data, codes=f"{data.parent.name}.csv")
    monkeypatch.chdir("/")
    assert opened(data).labels == "data.csv"


@pytest.mark.parametrize(
    "labels",
    [
        "/etc/passwd", "../secret.csv", "reference://t.csv::http://h/refs.json", "s3://b/t.csv",
        "file:///etc/passwd", "~/secret.csv", "secret.csv", "sub/../../secret.csv", "out.csv",
    ],
)  # fmt: skip
def test_a_file_of_options_names_nothing_outside_of_its_folder(
    data: Path, labels: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (data.parent / "secret.csv").write_text("id,label\nr0,AF\n")
    (data / "out.csv").symlink_to(data.parent / "secret.csv")
    monkeypatch.chdir(data.parent)  # a name that only fits here is outside, too
    (data / "clocs.toml").write_text(f'labels = "{labels}"')
    with (
        warnings.catch_warnings(),
        pytest.raises(SettingError, match=r"`labels` is .* which is no file in"),
    ):
        warnings.simplefilter("ignore")
        opened(data)


def test_options_of_strangers_are_shown_and_not_used(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = 'patient = "file"\nrate = 250.0\nunit = "\\u001b[31m\\u009b"'
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.write(data / "r0.hea", "r0.hea")
        archive.writestr("clocs.toml", text)
    with pytest.warns(ClocsWarning, match="it is inside a zip; it says patient = .*`rate`") as said:
        assert opened(tmp_path / "a.zip").given() == {}
    assert str(said[0].message).isprintable()
    (data / "clocs.toml").write_text(text)
    assert opened(data).patient == "file"
    monkeypatch.setattr("os.getuid", lambda: -1)
    with pytest.warns(ClocsWarning, match="belongs to another user; it says patient"):
        assert opened(data, rate=500.0).given() == {"rate": 500.0}
    (data / "clocs.toml").write_text("patient = ")
    with pytest.warns(ClocsWarning, match="belongs to another user; it cannot be read"):
        assert opened(data).given() == {}


def test_a_pattern_ends_whatever_it_is(data: Path) -> None:
    record(data, "a" * 43)
    started = time.process_time()
    with pytest.raises(SettingError, match="names no patient for any file"):
        open_dataset("folder", data, patient="pattern:^((?:a+)+)$").list()
    assert time.process_time() - started < 2


def test_saving_options_does_not_make_the_source_another(data: Path) -> None:
    before = open_source(data).fingerprint
    save_folder_options(data, patient="file")
    assert open_source(data).fingerprint == before


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("pateint = 'file'", "clocs.toml does not take `pateint`; it has `patient`"),
        ("rate = 'fast'", "clocs.toml of .* `rate` must be a number .*correct or delete it"),
        ("patient = ", "clocs.toml of .* cannot be read"),
        ("patient = 'folder:" + "9" * 5000 + "'", "`patient` is 'folder:999"),
        ("lead_names = 3", "`lead_names` must be pairs"),
        ("rate = " + "9" * 400, "`rate` must be a number"),
        ("frame_samples = " + "9" * 400, "`frame_samples` must be a whole number"),
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
        ("pattern:(", "'\\(', which is no regular expression .unclosed group"),
        ("pattern:(?<=a)(b)", "look-around and backreferences cannot be used"),
        ("pattern:(a)\\1", "look-around and backreferences cannot be used"),
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
        found = patient_rule(rule).from_paths
        assert found is not None and found([path]) == [patient]


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
