"""Chapman: both layouts, the rhythm groups, and every reason for quarantine."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import wfdb

from clocs.datasets.base import Dataset, open_dataset
from clocs.datasets.chapman import Chapman
from clocs.errors import SourceError, UnusableError
from clocs.recording import STANDARD_LEADS, Recording
from spreadsheet import write_spreadsheet

RNG = np.random.default_rng(0)
GOOD = "\n".join(",".join(f"{v:.5g}" for v in row) for row in RNG.normal(0, 99, (5000, 12)))


def published(folder: Path, **rhythms: str) -> Path:
    """The published layout: denoised tables in a folder, and the labels."""
    (folder / "ECGDataDenoised").mkdir(parents=True)
    write_spreadsheet(folder, **rhythms)
    for name in rhythms:
        (folder / "ECGDataDenoised" / f"{name}.csv").write_text(GOOD)
    return folder


def header_only(folder: Path, name: str, *comments: str, samples: int = 5000) -> None:
    signal = RNG.integers(-500, 500, (samples, 2))
    wfdb.wrsamp(
        name, fs=500, units=["mV"] * 2, sig_name=["II", "V2"], d_signal=signal, fmt=["16"] * 2,
        adc_gain=[200.0] * 2, baseline=[0] * 2, comments=list(comments), write_dir=str(folder),
    )  # fmt: skip


def read_one(dataset: Dataset, name: str) -> Recording:
    return dataset.read(next(entry for entry in dataset.list().entries if entry.id == name))


def reason(dataset: Dataset, name: str) -> str:
    with pytest.raises(UnusableError) as caught:
        read_one(dataset, name)
    return str(caught.value)


def test_the_published_layout_gives_labels_age_and_sex_from_the_table(tmp_path: Path) -> None:
    dataset = open_dataset("chapman", published(tmp_path, MUSE_1="SB", MUSE_2="AF"))
    assert [entry.id for entry in dataset.list().entries] == ["MUSE_1", "MUSE_2"]
    recording = read_one(dataset, "MUSE_2")
    assert recording.leads == STANDARD_LEADS
    assert (recording.labels, recording.age, recording.sex) == (("AFIB",), 59.0, "female")
    assert recording.extra == {"rhythm": "AF", "beat": "NONE"}
    assert recording.patient == "MUSE_2"


@pytest.mark.parametrize(
    ("rhythm", "label"),
    [("SB", "SB"), ("AFIB", "AFIB"), ("AF", "AFIB"), ("SVT", "GSVT"), ("AT", "GSVT"),
     ("SAAWR", "GSVT"), ("ST", "GSVT"), ("AVNRT", "GSVT"), ("AVRT", "GSVT"), ("SR", "SR"),
     ("SA", "SR"), ("SI", "SR")],
)  # fmt: skip
def test_eleven_rhythms_become_four_groups(tmp_path: Path, rhythm: str, label: str) -> None:
    header_only(tmp_path, "MUSE_1", f"Rhythm: {rhythm}", "Age: NaN", "Sex: Male")
    recording = read_one(open_dataset("chapman", tmp_path), "MUSE_1")
    assert (recording.labels, recording.age, recording.sex) == ((label,), None, "male")


def test_a_table_and_a_header_that_disagree_after_grouping_are_both_named(tmp_path: Path) -> None:
    write_spreadsheet(tmp_path, MUSE_1="SB", MUSE_2="SA", MUSE_3="SR")
    header_only(tmp_path, "MUSE_1", "Rhythm: AFIB")
    header_only(tmp_path, "MUSE_2", "Rhythm: SR")
    dataset = open_dataset("chapman", tmp_path)
    said = reason(dataset, "MUSE_1")
    assert said.startswith("unknown label: ")
    assert "'SB' in Diagnostics.xlsx and 'AFIB' in the header" in said
    assert read_one(dataset, "MUSE_2").labels == ("SR",)
    assert dataset.list().rows_without_recording == ("MUSE_3",)


def test_unlabeled_and_strangely_labeled_recordings_get_their_reason(tmp_path: Path) -> None:
    header_only(tmp_path, "MUSE_1", "Rhythm: SB")
    header_only(tmp_path, "MUSE_2")
    header_only(tmp_path, "MUSE_3", "Rhythm: XYZ")
    header_only(tmp_path, "MUSE_4", "Rhythm: SB", samples=4999)
    dataset = open_dataset("chapman", tmp_path)
    assert reason(dataset, "MUSE_2").startswith("no label: ")
    assert reason(dataset, "MUSE_3").startswith("unknown label: ")
    assert reason(dataset, "MUSE_4").startswith("too short: MUSE_4 has 4999 samples")


def test_flat_in_every_lead_is_refused_but_one_flat_lead_stays(tmp_path: Path) -> None:
    published(tmp_path, MUSE_1="SB", MUSE_2="SB")
    (tmp_path / "ECGDataDenoised" / "MUSE_1.csv").write_text("0,1,2,3,4,5,6,7,8,9,10,11\n" * 5000)
    one_flat = "\n".join("0," + row.partition(",")[2] for row in GOOD.split("\n"))
    (tmp_path / "ECGDataDenoised" / "MUSE_2.csv").write_text(one_flat)
    dataset = open_dataset("chapman", tmp_path)
    assert reason(dataset, "MUSE_1") == "flat: MUSE_1 is constant in every lead"
    assert read_one(dataset, "MUSE_2").leads == STANDARD_LEADS


def test_the_later_of_two_files_with_one_id_is_quarantined(tmp_path: Path) -> None:
    published(tmp_path, MUSE_1="SB")
    (tmp_path / "more-denoised").mkdir()
    (tmp_path / "more-denoised" / "MUSE_1.csv").write_text(GOOD)
    listing = open_dataset("chapman", tmp_path).list()
    assert [entry.path for entry in listing.entries] == ["ECGDataDenoised/MUSE_1.csv"]
    assert [(one.id, one.reason) for one in listing.quarantined] == [("MUSE_1", "duplicate id")]


def test_denoised_recordings_are_preferred_to_raw_ones(tmp_path: Path) -> None:
    published(tmp_path, MUSE_1="SB")
    shutil.copytree(tmp_path / "ECGDataDenoised", tmp_path / "ECGData")
    listing = open_dataset("chapman", tmp_path).list()
    assert [entry.path for entry in listing.entries] == ["ECGDataDenoised/MUSE_1.csv"]
    assert listing.quarantined == ()


def test_tables_without_labels_are_refused_with_the_file_to_add(tmp_path: Path) -> None:
    published(tmp_path, MUSE_1="SB")
    (tmp_path / "Diagnostics.xlsx").unlink()
    with pytest.raises(SourceError, match=r"no Diagnostics\.xlsx.*put Diagnostics\.xlsx into"):
        open_dataset("chapman", tmp_path).list()
    (tmp_path / "Diagnostics.xlsx").write_bytes(b"PK not really")
    with pytest.raises(SourceError, match=r"Diagnostics\.xlsx of .* is not the published table"):
        open_dataset("chapman", tmp_path).list()


def test_an_empty_folder_is_refused_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"holds no chapman recordings .*no files found\); give"):
        open_dataset("chapman", tmp_path).list()


def test_the_listing_changes_its_fingerprint_with_the_labels(tmp_path: Path) -> None:
    published(tmp_path, MUSE_1="SB")
    shutil.make_archive(str(tmp_path / "x"), "zip", tmp_path / "ECGDataDenoised")
    first = open_dataset("chapman", tmp_path / "x.zip").list()
    write_spreadsheet(tmp_path, MUSE_1="AF")
    second = open_dataset("chapman", tmp_path / "x.zip").list()
    assert first.fingerprint != second.fingerprint
    assert second.entries[0].info["rhythm"] == "AF"


def test_another_dataset_is_refused_by_its_name(real_data: Path) -> None:
    with pytest.raises(SourceError, match="looks like physionet2017, not chapman"):
        open_dataset("chapman", real_data / "physionet2017" / "physionet2017.zip").list()


def test_the_four_bad_published_samples_get_their_reasons(real_data: Path) -> None:
    dataset = open_dataset("chapman", real_data / "samples" / "chapman")
    listing = dataset.list()
    assert len(listing.entries) == 28
    assert len(listing.rows_without_recording) == 10_646 - 28
    bad: dict[str, str] = {}
    for entry in listing.entries:
        try:
            assert dataset.read(entry).labels[0] in dataset.labels
        except UnusableError as error:
            bad[entry.id] = error.reason
    assert bad == {
        "MUSE_20180113_124215_52000": "truncated",
        "MUSE_20180113_180425_75000": "nan",
        "MUSE_20180113_181145_89000": "nan",
        "MUSE_20180114_080214_06000": "nan",
    }


def test_csv_and_wfdb_of_one_recording_agree_by_lead_name(real_data: Path) -> None:
    csv = open_dataset("chapman", real_data / "samples" / "chapman")
    wfdb_zip = open_dataset("chapman", real_data / "chapman" / "chapman-4lead.zip")
    name = "MUSE_20180111_155115_19000"
    fine, coarse = read_one(csv, name), read_one(wfdb_zip, name)
    np.testing.assert_allclose(
        fine.select(coarse.leads).signal, coarse.signal, atol=0.0026
    )  # the zip is 5 µV a step
    assert fine.labels == coarse.labels
    assert (fine.age, fine.sex) == (coarse.age, coarse.sex)


def test_the_table_is_what_the_full_listing_says(real_data: Path) -> None:
    listing = open_dataset("chapman", real_data / "chapman").list()
    rows = pl.read_excel(real_data / "chapman" / "Diagnostics.xlsx")
    assert len(listing.entries) == 10_628
    assert len(listing.rows_without_recording) == len(rows) - 10_628 == 18


def test_the_frames_are_those_of_the_paper() -> None:
    assert Chapman.labels == ("AFIB", "GSVT", "SB", "SR")
    assert (Chapman.frame.seconds, Chapman.segment_frame.seconds) == (10.0, 5.0)


def test_datasets_are_imported_without_heavy_libraries() -> None:
    heavy = ("torch", "polars", "pandas", "wfdb", "soundfile", "scipy")
    code = f"import sys, clocs.datasets; print([m for m in {heavy} if m in sys.modules])"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"
