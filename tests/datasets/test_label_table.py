"""Tables of labels in every shape: which columns are what, and which rows are whose."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from datetime import date, datetime
from pathlib import Path
from typing import Any

import openpyxl
import polars as pl
import pytest

from clocs.datasets.base import Entry
from clocs.datasets.label_table import (
    Finder,
    FolderOptions,
    Labeled,
    label_recordings,
    read_codes,
    recording_finder,
)
from clocs.datasets.table_files import find_table, read_table
from clocs.errors import ClocsError, SettingError, SourceError
from clocs.formats.source import hold_files

PATHS = ("a/r1.hea", "a/r2.hea", "b/007.edf", "b/x.y.hea")
SUFFIXES = (".hea", ".edf", ".dat", ".mat")


def names(paths: Sequence[str] = PATHS) -> Finder:
    return recording_finder([Entry(path, "", path) for path in paths], SUFFIXES)


def matched(text: str, *, suffix: str = ".csv", **options: Any) -> Labeled:
    found = names()
    table = read_table(text.encode(), name=f"t{suffix}", is_id=lambda one: bool(found(one)))
    codes = options.pop("codes", None)
    return label_recordings(table, found, FolderOptions(**options), codes=codes, name="t")


def labels(given: Labeled) -> dict[int, list[str]]:
    return {number: json.loads(info["labels"]) for number, info in sorted(given.info.items())}


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("a/r1.hea", 0), ("r1", 0), ("R1.DAT", 0), ("./a/r1", 0), ("C:\\ecg\\a\\r1.mat", 0),
        ("/mnt/data/a/r2", 1), ("7", 2), ("007", 2), ("0007", 2), ("x.y", 3), ("x", None),
        ("r3", None), ("", None),
    ],
)  # fmt: skip
def test_recordings_are_found_by_what_people_write(text: str, number: int | None) -> None:
    assert list(names()(text)) == ([] if number is None else [number])


def test_a_name_that_fits_several_files_is_none_of_them() -> None:
    found = names(("a/r.hea", "b/r.hea"))
    assert not found("r")
    assert found("b/r") == [1]


def test_recordings_of_one_file_are_found_together_and_one_by_one() -> None:
    entries = [Entry(f"all#{i}", "", "all.npy", {"part": f"{i}"}) for i in range(3)]
    found = recording_finder(entries, (".npy",))
    assert found("all.npy") == [0, 1, 2]
    assert found("all#1") == [1]
    assert found("2") == [2]


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_any_separator_will_do(separator: str) -> None:
    rows = ("file,label", "r1,AF", "r2,SR")
    given = matched("\n".join(rows).replace(",", separator))
    assert labels(given) == {0: ["AF"], 1: ["SR"]}


def test_a_table_without_a_header_row_is_known_by_its_first_id() -> None:
    assert labels(matched("r1,AF\nr2,SR\n")) == {0: ["AF"], 1: ["SR"]}


def test_one_column_per_class_is_one_label_for_each_yes() -> None:
    given = matched("id,AF,PVC,note\nr1,1,0,x\nr2,1,1,y\n007,0,0,z\n")
    assert labels(given) == {0: ["AF"], 1: ["AF", "PVC"], 2: []}


def test_several_rows_of_one_recording_are_combined_which_is_said() -> None:
    given = matched("id,label,age\nr1,AF,60\nr1,PVC,61\nr1,AF,62\n")
    assert labels(given) == {0: ["AF", "PVC"]}
    assert given.info[0]["age"] == "60"
    assert given.notices == (
        "1 recordings have several rows in t; their labels are combined, and the first row tells "
        "the rest",
    )


def test_rows_without_a_recording_are_listed() -> None:
    assert matched("id,label\nr1,AF\nr8,AF\n,SR\n").unmatched == ("r8",)


def test_paths_of_two_columns_name_the_recordings_of_both() -> None:
    text = "ecg_id,scp_codes,filename_lr,filename_hr\n1,{'NORM': 100.0},a/r1,a/r2\n"
    assert labels(matched(text)) == {0: ["NORM"], 1: ["NORM"]}


def test_an_age_that_is_also_a_file_s_number_names_nobody() -> None:
    given = matched("file,label,age\nr1,AF,7\nr2,SR,80\n")
    assert labels(given) == {0: ["AF"], 1: ["SR"]}


def test_codes_get_their_names_and_empty_names_leave_them_out() -> None:
    codes = {"1": "AF", "2": ""}
    given = matched("id,label\nr1,1;2\nr2,2\n007,9\n", codes=codes)
    assert labels(given) == {0: ["AF"], 1: [], 2: ["9"]}
    assert given.notices == ("1 codes have no name in `codes` and keep theirs: 9",)


def test_columns_are_chosen_by_name_in_any_case() -> None:
    given = matched(
        "who,k1,k2,AGE_AT_ECG,part\nr1,x,y,50,test\n",
        id_column="WHO", label_columns=("k2",), columns={"age": "age_at_ecg", "fold": "part"},
    )  # fmt: skip
    assert given.info[0] == {"age": "50", "fold": "test", "labels": '["y"]'}


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        ("id,label\nq1,AF\n", {}, "no column of t .* names the recordings.*`id_column`"),
        ("id,k1,k2\nr1,a,b\n", {}, r"several columns that could be labels \(k1, k2\)"),
        ("id,label\nr1,a\n", {"id_column": "name"}, "`id_column` names the column 'name', but"),
        ("id,label\nr1,a\n", {"label_columns": ("x",)}, "`label_columns` names the column 'x'"),
        ("id,label\nr1,a\n", {"columns": {"weight": "w"}}, "`columns` names weight; it may name"),
        ("id,label\nr1,a\n", {"columns": {"fold": "f"}}, "`columns` names the column 'f'"),
    ],
)
def test_an_unclear_table_is_refused_with_the_option_that_helps(
    text: str, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(SettingError, match=words):
        matched(text, **options)


def test_numbers_for_sex_are_not_guessed() -> None:
    given = matched("id,label,sex\nr1,AF,1\nr2,SR,0\n")
    assert "sex" not in given.info[0]
    assert "do not say who is male or female" in given.notices[0]


def test_excel_keeps_dates_and_ids_that_lost_their_zeros(tmp_path: Path) -> None:
    book = openpyxl.Workbook()
    sheet = book.active
    assert sheet is not None
    for row in (
        ("ID", "Diagnosis", "Date", "Age"),
        (7, "AF", datetime(2020, 3, 4, 10, 30), 61),
        ("r1", "SR", date(2021, 1, 2), None),
    ):
        sheet.append(row)
    book.save(tmp_path / "t.xlsx")
    table = read_table((tmp_path / "t.xlsx").read_bytes(), name="t.xlsx")
    given = label_recordings(table, names(), FolderOptions(), name="t.xlsx")
    assert given.info[2] == {"recorded_at": "2020-03-04T10:30:00", "age": "61", "labels": '["AF"]'}
    assert given.info[0] == {"recorded_at": "2021-01-02", "labels": '["SR"]'}


def test_parquet_keeps_lists_whole_numbers_and_booleans(tmp_path: Path) -> None:
    frame = pl.DataFrame(
        {
            "ecg": ["r1", "r2"],
            "labels": [["AF", "PVC"], []],
            "age": [61.0, None],
            "ok": [True, False],
        }
    )
    frame.write_parquet(tmp_path / "t.parquet")
    table = read_table((tmp_path / "t.parquet").read_bytes(), name="t.parquet")
    assert table["age"] == ["61", ""]
    given = label_recordings(table, names(), FolderOptions(), name="t")
    assert labels(given) == {0: ["AF", "PVC"], 1: []}


@pytest.mark.parametrize("suffix", [".csv", ".xlsx", ".parquet"])
def test_what_is_no_table_is_refused_in_one_sentence(suffix: str) -> None:
    with pytest.raises(SourceError, match="cannot be read as a table"):
        read_table(b"" if suffix == ".csv" else b"\0\1junk", name=f"t{suffix}")


def test_tables_in_old_encodings_are_read() -> None:
    table = read_table("Datei;Diagnose\nr1;Flüttern\n".encode("cp1252"), name="t.csv")
    assert table == {"Datei": ["r1"], "Diagnose": ["Flüttern"]}


def test_names_of_codes_are_in_the_second_column_or_the_one_given() -> None:
    table = {"code": ["1", "2"], "name": ["AF", "nan"], "group": ["x", "y"]}
    assert read_codes(table, column=None, name="c") == {"1": "AF", "2": ""}
    assert read_codes(table, column="group", name="c") == {"1": "x", "2": "y"}
    with pytest.raises(SettingError, match="`code_names` names the column 'z'"):
        read_codes(table, column="z", name="c")
    with pytest.raises(SettingError, match="has one column"):
        read_codes({"code": []}, column=None, name="c")


@pytest.mark.parametrize("name", ["A" * 5000, "~nobody-of-this-name/x.csv", "a\0b.csv"])
def test_a_table_whose_name_can_be_no_path_is_refused(name: str) -> None:
    with pytest.raises(ClocsError):
        find_table(hold_files({"r.csv": b"1\n"}), name, option="labels")


def test_decimal_commas_are_no_two_labels() -> None:
    given = matched("id;label\nr1;1,0\nr2;51,8\n007;1.234,5\n")
    assert labels(given) == {0: ["1"], 1: ["51.8"], 2: ["1234.5"]}
    assert "such as '1,0' are taken for numbers" in given.notices[0]
    assert labels(matched("id;label\nr1;1,2\nr2;1,2,3\n")) == {0: ["1", "2"], 1: ["1", "2", "3"]}
    coded = matched("id;label\nr1;1,2\nr2;2\n", codes={"1": "AF", "2": "SR"})
    assert labels(coded) == {0: ["AF", "SR"], 1: ["SR"]}
    assert labels(matched("id;AF;SR\nr1;1,0;0,0\nr2;0,0;1,0\n")) == {0: ["AF"], 1: ["SR"]}


def many(cells: Sequence[str], column: str = "LVEF") -> tuple[dict[str, list[str]], Finder]:
    paths = [f"f{i}.hea" for i in range(len(cells))]
    return {"file": [path[:-4] for path in paths], column: list(cells)}, names(paths)


def test_a_column_of_many_numbers_is_no_label_unless_it_is_asked_for() -> None:
    cells = [f"{30 + i / 10:.1f}".replace(".", ",") for i in range(100)]
    for column in ("LVEF", "label"):
        table, found = many(cells, column)
        given = label_recordings(table, found, FolderOptions(), name="t")
        assert not any(labels(given).values())
        assert f"the column {column} of t holds 100 different numbers" in given.notices[0]
        assert f'`label_columns="{column} < 35"`' in given.notices[0]
    asked = label_recordings(table, found, FolderOptions(label_columns=("label",)), name="t")
    assert labels(asked)[1] == ["30.1"]
    codes, found = many([str(164889000 + i) for i in range(60)], "label")
    assert labels(label_recordings(codes, found, FolderOptions(), name="t"))[3] == ["164889003"]


@pytest.mark.parametrize(
    ("rule", "first", "second"),
    [
        ("LVEF<40", "LVEF<40", "LVEF>=40"),
        ("lvef <= 39,5", "LVEF<=39.5", "LVEF>39.5"),
        ("LVEF > 39.5", "LVEF<=39.5", "LVEF>39.5"),
        ("LVEF>=40", "LVEF<40", "LVEF>=40"),
    ],
)
def test_a_threshold_makes_two_classes_and_says_what_has_none(
    rule: str, first: str, second: str
) -> None:
    text = "id;LVEF;Age\nr1;39,5;70\nr2;51,8;71\n007;;72\nx.y;n/k;73\n"
    given = matched(text, label_columns=(rule,))
    assert labels(given) == {0: [first], 1: [second], 2: [], 3: []}
    assert "1 values are missing and 1 are not numbers, such as 'n/k'" in given.notices[0]
    assert given.info[0]["age"] == "70"


def test_a_threshold_that_is_none_is_refused() -> None:
    with pytest.raises(SettingError, match="'LVEF<forty', whose threshold is no number"):
        matched("id,LVEF\nr1,40\n", label_columns=("LVEF<forty",))
    with pytest.raises(SettingError, match="names the column 'EF', but t has id, LVEF"):
        matched("id,LVEF\nr1,40\n", label_columns=("EF<40",))


def test_cells_beyond_the_last_column_are_refused_unless_they_are_empty() -> None:
    assert labels(matched("id,label\nr1,AF,,\n")) == {0: ["AF"]}
    with pytest.raises(SourceError, match="row 3 has 3 cells, the first one 2; put quotes"):
        matched("id,LVEF\nr1,40\nr2,51,8\n")


def test_a_table_of_many_columns_is_read_soon_or_refused() -> None:
    started = time.process_time()
    given = matched("id,label" + "," * 4000 + "\nr1,AF\n")
    assert labels(given) == {0: ["AF"]} and time.process_time() - started < 2
    with pytest.raises(SourceError, match="has 10,002 columns; a table of labels has at most"):
        matched("id,label" + "," * 10_000 + "\nr1,AF\n")


@pytest.mark.parametrize("content", [b"", b"\n\n"])
def test_an_empty_table_is_said_to_be_empty(content: bytes) -> None:
    with pytest.raises(SourceError, match=r"labels.csv cannot be read as a table \(it is empty\)"):
        read_table(content, name="labels.csv")
