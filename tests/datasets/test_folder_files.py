"""A folder before and after reading: options, patients, hours and caps, what recordings suggest."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from clocs.datasets.base import Entry, datasets, open_dataset
from clocs.datasets.folder import Folder, hours_of, is_somebody, patients_in_paths
from clocs.datasets.label_table import FolderOptions
from clocs.errors import SettingError
from clocs.formats.source import hold_files, open_source
from clocs.recording import Episode, stretches_between
from own_files import record, several


def opened(source: Path, **options: Any) -> FolderOptions:
    dataset = open_dataset("folder", source, **options)
    assert isinstance(dataset, Folder)
    return dataset.options


@pytest.fixture
def data(tmp_path: Path) -> Path:
    several(tmp_path / "data", 1)
    return tmp_path / "data"


def test_a_file_of_options_is_not_read_which_is_said_and_changes_no_fingerprint(data: Path) -> None:
    before = open_source(data).fingerprint
    (data / "clocs.toml").write_text('patient = "file"')
    assert open_source(data).fingerprint == before
    assert opened(data).patient is None
    listed = open_dataset("folder", data).list()
    assert "clocs.toml is not read; give its options with the command" in listed.notices


def test_a_pattern_ends_whatever_it_is(data: Path) -> None:
    record(data, "a" * 43)
    started = time.process_time()
    with pytest.raises(SettingError, match="names no patient for any file"):
        open_dataset("folder", data, patient="pattern:^((?:a+)+)$").list()
    assert time.process_time() - started < 2


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
        assert patients_in_paths(rule, [path]) == [patient]


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
    missing = [
        one.name
        for one in datasets()["folder"].options
        if f"--{one.name.replace('_', '-')}" not in page
    ]
    assert not missing


def test_a_long_recording_is_cut_into_hours_that_keep_its_patient() -> None:
    cut = list(hours_of(Entry("x", "p", "x.edf"), 9000.0))
    assert [one.id for one in cut] == ["x@00:00:00", "x@01:00:00", "x@02:00:00"]
    assert {one.patient for one in cut} == {"p"}
    assert cut[2].info == {"start": "7200.0", "stop": "9000.0", "of": "x"}


def test_an_hour_is_not_cut_nor_is_what_has_no_known_end() -> None:
    for seconds in (3600.0, None):
        assert list(hours_of(Entry("x", "p", "x"), seconds)) == [Entry("x", "p", "x")]


def test_what_lies_in_a_stretch_is_counted_from_its_start() -> None:
    episodes = (Episode(0, 300, "SR"), Episode(300, 900, "AF"), Episode(900, 1000, "SR"))
    within = (Episode(0, 100, "SR"), Episode(100, 400, "AF"))
    assert stretches_between(episodes, 200, 600) == within


def test_notices_that_are_cut_say_how_much_is_left_out() -> None:
    rows = 20
    extra = [json.dumps({"notice": f"guess {number // 2}"}) for number in range(rows)]
    table = pl.DataFrame(
        {
            "labels": [["AF"]] * rows,
            "episodes": pl.Series([[]] * rows, dtype=pl.List(pl.Struct({"label": pl.String}))),
            "leads": [[f"X{number}"] for number in range(rows)],
            "extra": extra,
            "samples": [5000] * rows,
            "rate": [500.0] * rows,
            "patient": ["p"] * rows,
            "id": [f"r{number}" for number in range(rows)],
        }
    )
    classes = ("AF", *(f"C{number}" for number in range(9)))
    folder = Folder(hold_files({}), FolderOptions(classes=classes))
    unused, leads, *guesses = folder.with_inferred_schema(table).notices[1:]
    assert "C0, C1, C2, C3, C4, C5, C6, C7 and 1 more of `classes`" in unused
    assert "X7 (1) and 12 more; `lead_names`" in leads
    assert guesses[0] == "guess 0 (2 recordings)"
    assert guesses[-1] == "readers had to guess in 4 more recordings"
    assert len(guesses) == 9
