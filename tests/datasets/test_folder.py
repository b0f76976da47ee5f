"""A folder of anybody's files becomes a store."""

from __future__ import annotations

import json
import shutil
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import clocs
from clinical_files import ishne
from clocs import Store
from clocs.datasets.base import open_dataset
from clocs.errors import ClocsWarning, SettingError, SourceError, StoreError
from clocs.formats.read import find_recordings
from own_files import record, several, walk

SNOMED = {"AF": "164889003", "NSR": "426783006"}

pytestmark = pytest.mark.usefixtures("reads_in_threads")


def prepared(source: Path, out: str | Path = "store", **options: Any) -> Store:
    """The store of a folder, beside it; notices are left aside."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ClocsWarning)
        folder = source.parent / out if isinstance(out, str) else out
        return clocs.prepare("folder", source, out=folder, workers=1, **options)


def rows(store: Store, *columns: str) -> dict[str, Any]:
    """Of each recording the value of a column, or of several, by ID."""
    table = store.table.select("id", *columns)
    return {one[0]: one[1] if len(columns) == 1 else one[1:] for one in table.iter_rows()}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    return folder


def test_mixed_formats_rates_lengths_and_leads_are_one_store(data: Path) -> None:
    record(data / "Ärzte & Co", "Müller 1".replace(" ", "_"), rate=250, leads=("II",))
    record(data / "b", "LONG", seconds=30, rate=500, leads=("I", "II", "V1"))
    np.savetxt(data / "plain table.CSV", walk(5000, 12, 1), delimiter=",", fmt="%d")
    (data / "x.ecg").write_bytes(ishne(walk(400, 1, 2).T.astype(np.int16), ("II",), nanovolts=5000))
    store = prepared(data, rate=500)  # of the table, which alone does not say it
    assert rows(store, "rate", "samples") == {
        "Müller_1": (250.0, 3000),
        "LONG": (500.0, 15000),
        "plain table": (500.0, 5000),
        "x": (200.0, 400),
    }
    assert store.table["leads"].list.len().to_list() == [3, 1, 12, 1]
    assert store.manifest.dataset == "folder" and store.manifest.labels == ()
    store.verify()


def test_files_that_are_no_recordings_are_counted_and_broken_ones_are_in_quarantine(
    data: Path,
) -> None:
    several(data, 2)
    (data / "r1.dat").write_bytes(b"")
    (data / "report.pdf").write_bytes(b"%PDF-1.7")
    (data / "notes.txt").write_text("Dear colleague")
    (data / "SHA256SUMS").write_text("0" * 64 + "  r0.dat\n")
    (data / "lost.dat").write_bytes(bytes(100))
    store = prepared(data)
    assert len(store) == 1
    lost = {one["id"]: (one["reason"], one["detail"]) for one in store.quarantine.to_dicts()}
    assert lost["r1"][0] == "truncated"
    assert lost["lost"] == ("unreadable", "lost.dat has no header beside it")
    assert len(lost) == 2
    listing = open_dataset("folder", data).list()
    assert listing.files["not a recording"] == 3
    assert listing.files["WFDB"] == 3


def test_what_is_wrong_with_files_is_counted_by_kind_with_an_example(data: Path) -> None:
    for number in range(4):
        (data / f"r{number}.csv").write_text("I,II\n" + 50 * "1,2\n" + f"x{number},d\n")
    (data / "other.csv").write_text("I,II\n" + 50 * "1,2\n" + "1\n")
    (data / "table.csv").write_text("name,value\na,b\n")
    facts = clocs.preview("folder", data, workers=1)
    assert [(one["reason"], one["count"]) for one in facts["problems"]] == [
        ("unreadable", 4),
        ("truncated", 1),
    ]
    assert "'x0' for a number in row 51" in facts["problems"][0]["examples"][0]
    assert any("1 whose content is not recognized as an ECG (table.csv)" in one
               for one in facts["notices"])  # fmt: skip
    with pytest.raises(StoreError, match=r"4 unreadable, such as: r0 has 'x0' for a number in"):
        prepared(data)


def test_equal_file_names_in_several_folders_are_told_apart_by_their_path(data: Path) -> None:
    for patient in ("p1", "p2"):
        record(data / patient, "ecg")
    record(data, "other")
    assert rows(prepared(data), "patient") == {
        "other": "other",
        "p1/ecg": "p1/ecg",
        "p2/ecg": "p2/ecg",
    }


def test_a_zip_and_zips_within_are_read_as_the_folder(data: Path, tmp_path: Path) -> None:
    several(data / "inner", 2)
    plain = prepared(data, "plain")
    for packed, names in ((tmp_path / "all.zip", ("inner/",)), (data / "more.zip", ("",))):
        with zipfile.ZipFile(packed, "w") as archive:
            for file in sorted((data / "inner").iterdir()):
                archive.write(file, f"{names[0]}{file.name}")
    shutil.rmtree(data / "inner")
    for source in (tmp_path / "all.zip", data):
        again = prepared(source, tmp_path / f"of {source.name}")
        assert again.manifest.content_hash == plain.manifest.content_hash


def test_segments_of_a_record_are_no_recordings_of_their_own(data: Path) -> None:
    for part in ("s_1", "s_2"):
        record(data, part, seconds=6, seed=1)
    (data / "s.hea").write_text("s/2 3 100 1200\ns_1 600\ns_2 600\n")
    record(data, "t")
    store = prepared(data)
    assert rows(store, "samples") == {"s": 1200, "t": 1200}
    assert store.quarantine.is_empty()


def test_a_folder_without_recordings_is_refused(data: Path) -> None:
    (data / "notes.txt").write_text("nothing here")
    with pytest.raises(SourceError, match="holds no recordings"):
        prepared(data)


def test_links_out_of_the_folder_are_followed_only_if_asked(data: Path) -> None:
    several(data, 1)
    record(data.parent / "other", "x")
    (data / "more").symlink_to(data.parent / "other", target_is_directory=True)
    with pytest.warns(ClocsWarning, match=r"not followed \(1: more\); `follow_links` reads"):
        assert [one.id for one in open_dataset("folder", data).list().entries] == ["r0"]
    assert rows(prepared(data, follow_links=True), "patient") == {"r0": "r0", "x": "x"}
    with pytest.warns(ClocsWarning, match="not followed"):
        assert len(find_recordings([data])) == 1
    assert len(find_recordings([data], follow_links=True)) == 2


def test_a_store_inside_its_own_source_is_refused(data: Path) -> None:
    several(data, 1)
    with pytest.raises(SettingError, match=r"`out` is .* lies in the source"):
        prepared(data, data / "store")


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("folder", ["A", "A", "B"]),
        ("folder:1", ["ward", "ward", "ward"]),
        ("folder:-2", ["ward", "ward", "ward"]),
        ("file", ["r0", "r1", "r0"]),
        ("pattern:ward/(.)/r", ["A", "A", "B"]),
    ],
)
def test_patients_are_told_by_the_path(data: Path, rule: str, expected: list[str]) -> None:
    several(data / "ward" / "A", 2)
    several(data / "ward" / "B", 1)
    store = prepared(data, patient=rule)
    assert sorted(store.table["patient"]) == sorted(expected)
    assert store.manifest.settings == {"patient": rule}


def test_without_a_word_on_patients_each_file_is_one_which_is_said(data: Path) -> None:
    several(data, 3)
    with pytest.warns(ClocsWarning, match="patient IDs are missing in 3 of the recordings"):
        clocs.prepare("folder", data, out=data.parent / "s")


def test_a_rule_that_names_nobody_is_refused_and_for_some_files_it_is_said(data: Path) -> None:
    several(data, 1)
    with pytest.raises(SettingError, match=r"names no patient for any file, such as r0\.hea"):
        prepared(data, patient="folder")
    record(data / "A", "x")
    with pytest.warns(ClocsWarning, match=r"names no patient for 1 files, such as r0\.hea"):
        store = clocs.prepare("folder", data, out=data.parent / "s", patient="folder")
    assert rows(store, "patient") == {"r0": "r0", "x": "A"}


def test_a_table_gives_labels_patients_ages_dates_and_folds(data: Path) -> None:
    several(data, 4)
    (data / "labels.csv").write_text(
        "file,diagnosis,Patient ID,AGE,gender,recording_date,strat_fold\n"
        "r0.hea,AF,7,61,M,2020-03-04,1\nr1,AF;PVC,7,62 years,female,2021-03-04 10:30:00,2\n"
        "R2.dat,,8,NaN,,unknown,2\nr9,SR,9,1,M,2020-01-01,1\n"
    )
    store = prepared(data, labels="labels.csv")
    assert store.manifest.labels == ("AF", "PVC") and store.manifest.multilabel
    assert rows(store, "patient", "labels", "age", "sex", "taken", "fold") == {
        "r0": ("7", ["AF"], 61.0, "male", "2020-03-04", "1"),
        "r1": ("7", ["AF", "PVC"], 62.0, "female", "2021-03-04T10:30:00", "2"),
        "r2": ("8", [], None, None, None, "2"),
        "r3": ("r3", [], None, None, None, None),
    }
    assert store.rows_without_recording == ("r9",)
    assert store.quarantine.is_empty()


def test_a_table_of_patients_labels_all_their_recordings(data: Path) -> None:
    several(data / "P 1", 2)
    several(data / "P 2", 1)
    (data / "t.csv").write_text("patient,diagnosis\np 1,AF\nP 2,SR\nP 3,SR\n")
    store = prepared(data, patient="folder", labels="t.csv")
    assert rows(store, "labels") == {"P 1/r0": ["AF"], "r1": ["AF"], "P 2/r0": ["SR"]}
    assert store.rows_without_recording == ("P 3",)


def test_the_header_s_codes_are_labels_by_their_names(data: Path) -> None:
    record(data, "a", comments=[f"Dx: {SNOMED['AF']},{SNOMED['NSR']}", "Age: 63", "Sex: Female"])
    record(data, "b", comments=[f"Dx: {SNOMED['AF']}", "Age: NaN"])
    record(data, "c", comments=["Dx: 12345"])
    record(data, "d")
    store = prepared(data, labels="header")
    assert rows(store, "labels") == {"a": ["AF", "NSR"], "b": ["AF"], "c": ["12345"], "d": []}
    assert store.manifest.labels == ("AF", "12345", "NSR")
    assert rows(store, "age", "sex")["a"] == (63.0, "female")
    (data / "codes.csv").write_text("code,name\n12345,odd\n164889003,fibrillation\n")
    named = prepared(data, "named", labels="header", codes="codes.csv", classes="odd,fibrillation")
    assert rows(named, "labels")["c"] == ["odd"]
    notices = clocs.preview("folder", data)["notices"]
    assert 'labels of 3 of the headers are not read; `labels="header"` reads them' in notices
    assert named.manifest.labels == ("odd", "fibrillation")


def test_headers_of_ptb_give_the_diagnosis_the_day_and_the_person(data: Path) -> None:
    said = ["age: 81", "sex: female", "ECG date: 01/10/1990", "Diagnose:"]
    record(data, "a", comments=[*said, "Reason for admission: Myocardial infarction"])
    record(data, "b", comments=["ECG date: n/a", "Reason for admission: n/a"])
    store = prepared(data, labels="header")
    found = rows(store, "labels", "taken", "age", "sex")
    assert found["a"] == (["Myocardial infarction"], "1990-10-01", 81.0, "female")
    assert found["b"] == ([], None, None, None)


def test_leads_are_renamed_and_chosen_and_a_missing_one_is_missing(data: Path) -> None:
    record(data, "a", leads=("ECG1", "ch2", "V1"))
    record(data, "b", leads=("I", "V1"))
    record(data, "c", leads=("V6",))
    store = prepared(data, lead_names="ECG1=II,ch2=V5", leads="II,V1")
    assert rows(store, "leads") == {"a": ["II", "V1"], "b": ["V1"]}
    assert store.quarantine["reason"].to_list() == ["no known lead"]


def test_unknown_leads_are_named_with_the_option_that_maps_them(data: Path) -> None:
    record(data, "a", leads=("channel 7", "V1"))
    with pytest.warns(ClocsWarning, match="unknown names .*channel 7 .*`lead_names`"):
        clocs.prepare("folder", data, out=data.parent / "s")


def test_the_frame_follows_from_the_lengths_unless_it_is_given(data: Path) -> None:
    several(data, 3, seconds=12)
    assert prepared(data, "long").manifest.frame == clocs.FrameSpec(5.0, 2500)
    given = prepared(data, "given", frame_seconds=4.0).manifest
    assert given.frame == given.segment_frame == clocs.FrameSpec(4.0, 2500)
    several(data, 3, seconds=6)
    assert prepared(data, "short").manifest.frame == clocs.FrameSpec(2.5, 2500)


def test_another_table_or_other_options_are_another_store(data: Path) -> None:
    several(data, 2)
    table = data.parent / "labels.csv"
    table.write_text("id,label\nr0,AF\nr1,SR\n")
    first = prepared(data, labels=str(table))
    assert prepared(data, labels=str(table)).manifest == first.manifest
    with pytest.raises(StoreError, match="another settings"):
        prepared(data, labels=str(table), patient="file")
    table.write_text("id,label\nr0,AF\nr1,AF\n")
    with pytest.raises(StoreError, match="another source"):
        prepared(data, labels=str(table))


def test_interrupted_preparing_resumes_with_the_same_content(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from clocs.datasets.folder import Folder
    from clocs.store import chunks

    monkeypatch.setattr(chunks, "CHUNK_SAMPLES", 5000)
    monkeypatch.setattr(chunks, "CHUNKS_PER_PART", 1)
    several(data, 12)
    table = "file,label\n" + "".join(f"r{i},{'AB'[i % 2]}\n" for i in range(12))
    (data / "t.csv").write_text(table)
    whole = prepared(data, "whole", labels="t.csv")
    read, count = Folder.read, 0

    def interrupted(self: Folder, entry: Any) -> clocs.Recording:
        nonlocal count
        count += 1
        if count == 8:
            raise KeyboardInterrupt
        return read(self, entry)

    monkeypatch.setattr(Folder, "read", interrupted)
    with pytest.raises(KeyboardInterrupt):
        prepared(data, "cut", labels="t.csv")
    before = count
    resumed = prepared(data, "cut", labels="t.csv")
    assert 0 < count - before < 12
    assert resumed.manifest.content_hash == whole.manifest.content_hash


def test_an_unlabeled_and_a_partly_labeled_store_give_frames(data: Path) -> None:
    from clocs.frames.make import make_frames

    several(data, 6)
    (data / "t.tsv").write_text("name\tclass\nr0\tAF\nr1\tSR\n")
    for options, labeled in (({}, 0), ({"labels": "t.tsv"}, 4)):
        store = prepared(data, f"s{labeled}", **options)
        frames = make_frames(store)
        assert len(frames.starts) == 12
        assert int(frames.has_label.sum()) == labeled


def test_the_dataset_may_have_a_name_of_its_own(data: Path) -> None:
    several(data, 1)
    assert prepared(data, dataset="ward-7").manifest.dataset == "ward-7"
    with pytest.raises(SettingError, match="`dataset` is 'a b'"):
        prepared(data, "other", dataset="a b")


def test_three_thousand_small_files_are_listed_by_name_and_read(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    header = record(data, "first", leads=("II",), seconds=10)
    text, samples = header.read_text(), header.with_suffix(".dat").read_bytes()
    for number in range(3000):
        (data / f"n{number}.hea").write_text(text.replace("first", f"n{number}"))
        (data / f"n{number}.dat").write_bytes(samples)
    pl.DataFrame(
        {"file": [f"n{i}" for i in range(3000)], "label": ["a", "b", "c"] * 1000}
    ).write_parquet(data / "labels.parquet")
    monkeypatch.undo()  # in processes
    store = prepared(data, labels="labels.parquet")
    assert len(store) == 3001
    assert json.loads(json.dumps(store.manifest.labels)) == ["a", "b", "c"]
