"""A strange archive: one patient's ECGs in many formats, under odd names, told by their headers."""

from __future__ import annotations

import datetime
import warnings
from pathlib import Path
from typing import Any

import edfio
import h5py
import numpy as np
import polars as pl
import pytest

import clocs
import dicom_files
from clocs.errors import ClocsWarning
from own_files import record, walk

pytestmark = pytest.mark.usefixtures("reads_in_threads")


def mv(seconds: int, leads: int, rate: int = 250) -> np.ndarray[Any, np.dtype[np.float64]]:
    return walk(seconds * rate, leads, seconds).T / 1000.0


def write_edf(path: Path, *labels: str, code: str, name: str) -> None:
    signals = [
        edfio.EdfSignal(one, 250, label=label, physical_dimension="mV", physical_range=(-3.0, 3.0))
        for label, one in zip(labels, mv(20, len(labels)), strict=True)
    ]
    patient = edfio.Patient(code=code, sex="F", birthdate=datetime.date(1950, 6, 1), name=name)
    taken = edfio.Recording(startdate=datetime.date(2020, 6, 1))
    edfio.Edf(signals, patient=patient, recording=taken).write(path)


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    folder = tmp_path / "Archiv – alt"
    (folder / "EDF Dateien").mkdir(parents=True)
    record(folder / "WFDB", "A0001", leads=("MLII", "V5"))
    write_edf(folder / "EDF Dateien" / "Nacht 1.EDF", "ECG II", "V5-ref", code="P7", name="M")
    write_edf(folder / "EDF Dateien" / "no suffix", "Lead I", "AVF", code="X", name="X")
    steps = walk(5000, 2, 5).astype(np.int16)
    (folder / "IM0001").write_bytes(
        dicom_files.file(dicom_files.group(steps), PatientID="P7", PatientSex="F")
    )
    np.save(folder / "stack.npy", np.stack([mv(20, 12, 100)] * 3))
    with h5py.File(folder / "exams.h5", "w") as file:
        file["tracings"] = np.stack([mv(12, 12, 100), mv(12, 12, 100) * 2])
    pl.DataFrame({"time": np.arange(1200) / 100, "II": mv(12, 1, 100)[0]}).write_csv(
        folder / "export;1.TSV", separator="\t"
    )
    (folder / "Befund.pdf").write_bytes(b"%PDF-1.7\n%\xff")
    (folder / "leer.edf").write_bytes(b"")
    (folder / "readme.md").write_text("# Archive\n")
    return folder


def test_every_format_is_read_by_its_content_and_patients_by_their_headers(archive: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ClocsWarning)
        store = clocs.prepare("folder", archive, out=archive.parent / "s", rate=100)
    table = {row["id"]: row for row in store.table.to_dicts()}
    assert table["Nacht 1"]["patient"] == table["IM0001"]["patient"] != "P7"  # a pseudonym
    assert table["no suffix"]["patient"] == "no suffix"  # 'X' is nobody
    assert table["A0001"]["leads"] == ["II", "V5"]
    assert table["Nacht 1"]["leads"] == ["II", "V5"]
    assert (table["Nacht 1"]["sex"], table["Nacht 1"]["taken"][:10]) == ("female", "2020-06-01")
    assert table["export;1"]["leads"] == ["II"] and table["export;1"]["samples"] == 1200
    assert sum(name.startswith("stack#") for name in table) == 3
    assert sum(name.startswith("exams#") for name in table) == 2
    assert {row["patient"] for name, row in table.items() if name.startswith("stack#")} == {
        name for name in table if name.startswith("stack#")
    }
    lost = store.quarantine.to_dicts()
    assert [one["id"] for one in lost] == ["leer"], lost


def test_a_table_labels_the_recordings_inside_of_files(archive: Path) -> None:
    (archive / "labels.csv").write_text("id,label\nstack#1,AF\nexams.h5,SR\nNacht 1,AF\n")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ClocsWarning)
        store = clocs.prepare(
            "folder", archive, out=archive.parent / "s", rate=100, labels="labels.csv"
        )
    labels = {row["id"]: row["labels"] for row in store.table.to_dicts()}
    assert [labels[f"stack#{i}"] for i in range(3)] == [[], ["AF"], []]
    assert {tuple(one) for name, one in labels.items() if name.startswith("exams#")} == {("SR",)}
    assert labels["Nacht 1"] == ["AF"]
