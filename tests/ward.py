"""A folder as a ward leaves it behind: the tutorial's, as the formats' own libraries write it."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import numpy as np
import openpyxl
import pydicom
from edfio import Edf, EdfSignal, Patient
from pydicom.dataset import Dataset, FileDataset, FileMetaDataset
from pydicom.uid import ExplicitVRLittleEndian, generate_uid

from clocs.datasets.synthetic import Synthetic
from clocs.recording import STANDARD_LEADS, Recording
from plain_wfdb import write_record

PATIENTS, RECORDINGS, SECONDS = 120, 2, 12.0
_TWELVE_LEAD = "1.2.840.10008.5.1.4.1.1.9.1.1"
_SCP_CODES = dict(zip(STANDARD_LEADS, (1, 2, 61, 62, 63, 64, 3, 4, 5, 6, 7, 8), strict=True))


def write_ward(folder: Path, patients: int = PATIENTS) -> None:
    """Recordings in four formats, a table of diagnoses, and what else lies around."""
    simulated = Synthetic(patients=patients, recordings=RECORDINGS, seconds=SECONDS)
    rows = []
    for number, entry in enumerate(simulated.list().entries):
        one = simulated.read(entry)
        path = _WRITERS[number % len(_WRITERS)](folder, one)
        labeled = number % 5 != 4  # every fifth has no diagnosis
        sex = (one.sex or "")[:1].upper()
        rows.append([path, one.patient, one.labels[0] if labeled else None, one.age, sex])
    book = openpyxl.Workbook()
    sheet = book.worksheets[0]
    for row in (["file", "patient", "rhythm", "age", "sex"], *rows):
        sheet.append(row)
    book.save(folder / "diagnoses.xlsx")
    (folder / "read me.txt").write_text("ECGs of ward 7. Call extension 212 with questions.\n")
    whole = next(folder.rglob("*.edf")).read_bytes()
    (folder / "telemetry" / "interrupted.edf").write_bytes(whole[: len(whole) // 3])


def _wfdb(folder: Path, one: Recording) -> str:
    """Twelve leads, in the layout of most published sets."""
    place = folder / "cart 1"
    place.mkdir(parents=True, exist_ok=True)
    write_record(place, one.id, one.digital.T, one.leads, rate=one.rate, gain=one.gain.tolist())
    return f"cart 1/{one.id}"


def _edf(folder: Path, one: Recording) -> str:
    """Three leads at half the rate, as telemetry exports them."""
    place = folder / "telemetry"
    place.mkdir(parents=True, exist_ok=True)
    signals = [
        EdfSignal(
            one.select([lead]).signal[0, ::2], one.rate / 2, label=f"ECG {lead}",
            physical_dimension="mV", physical_range=(-8, 8),
        )
        for lead in ("I", "II", "V5")
    ]  # fmt: skip
    Edf(signals, patient=Patient(code=one.patient)).write(place / f"{one.id}.edf")
    return f"telemetry/{one.id}.edf"


def _dicom(folder: Path, one: Recording) -> str:
    """Twelve leads in a file without a suffix, as archives name them."""
    place = folder / "PACS"
    place.mkdir(parents=True, exist_ok=True)
    group = Dataset()
    group.NumberOfWaveformChannels, group.NumberOfWaveformSamples = one.digital.shape
    group.SamplingFrequency, group.WaveformOriginality = str(one.rate), "ORIGINAL"
    group.WaveformBitsAllocated, group.WaveformSampleInterpretation = 16, "SS"
    group.ChannelDefinitionSequence = [_channel(lead) for lead in one.leads]
    group.WaveformData = np.ascontiguousarray(one.digital.T, "<i2").tobytes()
    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID = pydicom.uid.UID(_TWELVE_LEAD)
    meta.MediaStorageSOPInstanceUID = generate_uid(entropy_srcs=[one.id])
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    file = FileDataset("", {}, file_meta=meta, preamble=b"\0" * 128)
    file.SOPClassUID, file.SOPInstanceUID = _TWELVE_LEAD, meta.MediaStorageSOPInstanceUID
    file.PatientID, file.Modality = one.patient, "ECG"
    file.AcquisitionDateTime = (one.recorded_at or date.today().isoformat()).translate(
        str.maketrans("", "", "-:T")
    )
    file.WaveformSequence = [group]
    file.save_as(place / f"IM_{one.id}", enforce_file_format=True)
    return f"PACS/IM_{one.id}"


def _channel(lead: str) -> Dataset:
    one, source, unit = Dataset(), Dataset(), Dataset()
    source.CodeValue, source.CodingSchemeDesignator = f"5.6.3-9-{_SCP_CODES[lead]}", "SCPECG"
    source.CodeMeaning = f"Lead {lead}"
    unit.CodeValue, unit.CodingSchemeDesignator = "uV", "UCUM"
    one.ChannelSourceSequence, one.ChannelSensitivityUnitsSequence = [source], [unit]
    one.ChannelSensitivity, one.ChannelSensitivityCorrectionFactor = "1", "1"
    one.ChannelBaseline, one.WaveformBitsStored = "0", 16
    return one


def _csv(folder: Path, one: Recording) -> str:
    """Two channels of a spreadsheet in German: semicolons, decimal commas, milliseconds."""
    place = folder / "Export Höhn"
    place.mkdir(parents=True, exist_ok=True)
    values = one.select(["II", "V5"]).signal.T.tolist()
    lines = ["time_ms;chan 1;chan 2"]
    lines += [f"{k * 2};{a:.3f};{b:.3f}".replace(".", ",") for k, (a, b) in enumerate(values)]
    (place / f"{one.id}.CSV").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return f"Export Höhn/{one.id}.CSV"


_WRITERS = (_wfdb, _edf, _dicom, _csv)
