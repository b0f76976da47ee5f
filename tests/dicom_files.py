"""Writes ECGs as DICOM, with pydicom."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pydicom
from numpy.typing import NDArray
from pydicom.dataset import Dataset, FileDataset, FileMetaDataset
from pydicom.uid import UID, ExplicitVRLittleEndian

from clocs.recording import STANDARD_LEADS

TWELVE_LEAD = "1.2.840.10008.5.1.4.1.1.9.1.1"
AMBULATORY = "1.2.840.10008.5.1.4.1.1.9.1.3"
SCP_CODES = dict(zip(STANDARD_LEADS, (1, 2, 61, 62, 63, 64, 3, 4, 5, 6, 7, 8), strict=True))
STEPS = np.arange(2 * 1000, dtype=np.int16).reshape(1000, 2) % 700 - 300  # (samples, channels)


def channel(lead: str = "I", **fields: Any) -> Dataset:
    source, unit, one = Dataset(), Dataset(), Dataset()
    source.CodeValue = f"5.6.3-9-{SCP_CODES.get(lead, 999)}"
    source.CodingSchemeDesignator = "SCPECG"
    source.CodeMeaning = f"Lead {lead}"
    unit.CodeValue = fields.pop("unit", "uV")
    unit.CodingSchemeDesignator = "UCUM"
    one.ChannelSourceSequence = [source]
    one.ChannelSensitivity = "2.5"
    one.ChannelSensitivityUnitsSequence = [unit]
    one.ChannelSensitivityCorrectionFactor = "1"
    one.ChannelBaseline = "0"
    one.WaveformBitsStored = 16
    for name, value in fields.items():
        setattr(one, name, value)
    return one


def group(
    steps: NDArray[Any] = STEPS, channels: list[Dataset] | None = None, **fields: Any
) -> Dataset:
    """A multiplex group of (samples, channels), in little-endian order."""
    one = Dataset()
    one.NumberOfWaveformSamples, one.NumberOfWaveformChannels = steps.shape
    one.SamplingFrequency = "500"
    one.WaveformOriginality = "ORIGINAL"
    one.ChannelDefinitionSequence = channels or [channel("I"), channel("II")]
    one.WaveformBitsAllocated = 8 * steps.itemsize
    kinds = {"i1": "SB", "u1": "UB", "i2": "SS", "u2": "US", "i4": "SL", "u4": "UL"}
    one.WaveformSampleInterpretation = kinds[steps.dtype.str[1:]]
    one.WaveformData = steps.tobytes()
    one["WaveformData"].VR = "OB" if steps.itemsize == 1 else "OW"
    for name, value in fields.items():
        setattr(one, name, value)
    return one


def file(*groups: Dataset, syntax: str = ExplicitVRLittleEndian, **fields: Any) -> bytes:
    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID = UID(fields.get("SOPClassUID", TWELVE_LEAD))
    meta.MediaStorageSOPInstanceUID = UID("1.2.3")
    meta.TransferSyntaxUID = UID(syntax)
    dataset = FileDataset("", {}, file_meta=meta, preamble=b"\0" * 128)
    dataset.SOPClassUID, dataset.SOPInstanceUID = UID(TWELVE_LEAD), UID("1.2.3")
    dataset.Modality = "ECG"
    dataset.WaveformSequence = list(groups)
    for name, value in fields.items():
        setattr(dataset, name, value)
    out = io.BytesIO()
    pydicom.dcmwrite(out, dataset, enforce_file_format=True)
    return out.getvalue()
