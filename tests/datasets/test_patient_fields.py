"""Patient fields of headers become pseudonyms; who is who stays beside the store, and text out."""

from __future__ import annotations

import json
import stat
import sys
import warnings
from pathlib import Path
from typing import Any

import edfio
import h5py
import numpy as np
import pytest

import clinical_files
import clocs
import dicom_files
from clocs import Store
from clocs.datasets.pseudonyms import KEY, Pseudonyms
from clocs.errors import ClocsWarning, StoreError
from edf_files import signal, write
from own_files import record, walk

pytestmark = pytest.mark.usefixtures("reads_in_threads")

JANE = "Doe Jane 02.03.1950 MRN 4711"  # as recorders without EDF+ fill the field
BY_FORMAT = {"ishne": "H-1", "aecg": "S-7", "muse": "M-3", "scp": "C-9", "mfer": "F-2"}


def plain_edf(path: Path, patient: str) -> None:
    """EDF as older recorders write it: any text in the patient's 80 bytes."""
    made = write(path.parent, [signal("II")], path.name)
    data = made.read_bytes()
    made.write_bytes(data[:8] + patient.encode().ljust(80) + data[88:])


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    folder = tmp_path / "archive"
    folder.mkdir()
    plain_edf(folder / "a.edf", JANE)
    plain_edf(folder / "b.edf", JANE)
    plus = edfio.Patient(code="MCH-0234567", sex="F", name="Haagse_Harry")
    how = edfio.Recording(
        hospital_administration_code="PSG-1234/2002", investigator_technician_code="Dr_Smith"
    )
    note = edfio.EdfAnnotation(3, None, "Mrs Doe coughs")
    write(folder, [signal("II")], "c.edf", patient=plus, recording=how, annotations=[note])
    facts = {"InstitutionName": "St Mary", "StudyDescription": "Jane Doe, room 7"}
    people = {"PatientID": "4711", "PatientName": "Doe^Jane", "PatientBirthDate": "19500302"}
    steps = walk(5000, 2, 3).astype(np.int16)
    group = dicom_files.group(steps)
    (folder / "d.dcm").write_bytes(
        dicom_files.file(group, **facts, **people, ManufacturerModelName="MAC")
    )
    (folder / "ishne.ecg").write_bytes(
        clinical_files.ishne(steps.T, ("I", "II"), nanovolts=5000, rate=200)
    )
    (folder / "aecg.xml").write_text(clinical_files.aecg(steps.T, ("I", "II"), microvolts=5))
    (folder / "muse.xml").write_text(clinical_files.muse(steps.T, ("I", "II"), microvolts=5))
    (folder / "scp.scp").write_bytes(clinical_files.scp(steps.T, ("I", "II"), nanovolts=5000))
    (folder / "mfer.mwf").write_bytes(clinical_files.mfer(steps.T, ("I", "II"), microvolts=5))
    with h5py.File(folder / "h.h5", "w") as file:
        file["ecg"] = steps.T / 1000
        file["ecg"].attrs["leads"] = ["I", "II"]
        file["ecg"].attrs["fs"], file["ecg"].attrs["patient_id"] = 500, "Muster, Max"
    record(folder, "w", comments=["Referred by: Dr Smith"])
    return folder


def prepared(archive: Path, out: str = "s", **options: Any) -> Store:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ClocsWarning)
        return clocs.prepare("folder", archive, out=archive.parent / out, workers=1, **options)


def patients(store: Store) -> dict[str, str]:
    return dict(store.table.select("id", "patient").iter_rows())


def test_no_patient_field_becomes_an_id_and_the_map_is_beside_the_store_alone(
    archive: Path,
) -> None:
    with pytest.warns(ClocsWarning, match=r"9 patients, who have pseudonyms.*s\.patients says"):
        store = clocs.prepare("folder", archive, out=archive.parent / "s", workers=1)
    whose = archive.parent / "s.patients"
    found, names = patients(store), json.loads((whose / "s.json").read_text())
    said = {"a": JANE, "b": JANE, "c": "MCH-0234567", "d": "4711", "h": "Muster, Max", **BY_FORMAT}
    assert {name: names[found[name]] for name in said} == said
    assert found["a"] == found["b"] and found["a"] == Pseudonyms((whose / KEY).read_bytes())(JANE)
    assert found["w"] == "w"  # the name of a WFDB record is no field of a patient
    held = b"".join(one.read_bytes() for one in (archive.parent / "s").rglob("*") if one.is_file())
    held += json.dumps(store.table.drop("digest").to_dicts()).encode()
    for words in (JANE, "Doe", "MCH-0234567", "Muster", "St Mary", "room 7", "coughs", "Smith"):
        assert words.encode() not in held
    extra = {row["id"]: json.loads(row["extra"]) for row in store.table.to_dicts()}
    assert extra["d"] == {"model": "MAC"} and "annotations" not in extra["c"]
    if sys.platform != "win32":
        files = (whose, whose / KEY, whose / "s.json")
        assert [stat.S_IMODE(one.stat().st_mode) for one in files] == [0o700, 0o600, 0o600]


def test_shards_have_the_same_pseudonyms_and_a_map_each(archive: Path) -> None:
    store = prepared(archive, shards=3)
    found = patients(store)
    maps = [json.loads(one.read_text()) for one in (archive.parent / "s.patients").glob("*.json")]
    names = {key: said for one in maps for key, said in one.items()}
    assert found["a"] == found["b"] and names[found["a"]] == JANE
    assert set(BY_FORMAT.values()) <= set(names.values())


def test_a_resumed_preparation_keeps_its_pseudonyms_and_needs_their_key(
    archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clocs.store.chunks.CHUNK_SAMPLES", 5000)
    monkeypatch.setattr("clocs.store.chunks.CHUNKS_PER_PART", 1)

    def stop(done: int, total: int) -> None:
        if done >= 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepared(archive, progress=stop)
    whose = archive.parent / "s.patients"
    before = json.loads((whose / "s.json").read_text())
    key = (whose / KEY).rename(archive / "taken")
    with pytest.raises(StoreError, match=r"key of its pseudonyms, .* is missing; put it back"):
        prepared(archive)
    key.rename(whose / KEY)
    found = patients(prepared(archive))
    after = json.loads((whose / "s.json").read_text())
    assert found["a"] == found["b"] and before.items() < after.items() and before
    (whose / KEY).unlink()
    assert patients(prepared(archive)) == found  # complete: no key is needed


def test_headers_and_their_text_are_kept_where_asked_for_which_is_said(archive: Path) -> None:
    with pytest.warns(ClocsWarning, match="names, birth dates and numbers, is kept unchanged"):
        store = clocs.prepare(
            "folder", archive, out=archive.parent / "s", workers=1, patient="header",
            keep_text="institution",
        )  # fmt: skip
    assert patients(store)["a"] == JANE and not (archive.parent / "s.patients").exists()
    extra = {row["id"]: json.loads(row["extra"]) for row in store.table.to_dicts()}
    assert extra["d"] == {"institution": "St Mary", "model": "MAC"}
    extra = dict(prepared(archive, "t", keep_text="all").table.select("id", "extra").iter_rows())
    assert json.loads(extra["muse"])["statements"] == "Sinus rhythm"


def test_files_that_name_nobody_leave_no_key_behind(tmp_path: Path) -> None:
    record(tmp_path / "archive", "w")
    prepared(tmp_path / "archive")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["archive", "s"]


def test_embedded_and_predicted_files_are_called_by_their_names(archive: Path) -> None:
    from clocs.formats.base import ReadOptions
    from clocs.patients.sources import read_files

    frame = clocs.FrameSpec(5.0, 2500)
    _, recordings = read_files([archive / "a.edf", archive / "d.dcm"], ReadOptions(), frame)
    assert [one.patient for one in recordings if isinstance(one, clocs.Recording)] == ["a", "d"]
