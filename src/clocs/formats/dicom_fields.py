"""What the fields of a DICOM ECG say: leads, scales, the patient, when it was recorded."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import numpy as np

from clocs.recording import UNITS_PER_MV

# Leads by their numbers in SCP-ECG ('5.6.3-9-61') and ISO/IEEE 11073 ('2:61'), which are the same.
_CHEST = ("V1", "V2", "V3", "V4", "V5", "V6", "V7", "V2R", "V3R", "V4R", "V5R", "V6R", "V7R")
_LEADS = dict(enumerate(("I", "II", *_CHEST, "X", "Y", "Z"), 1))
_LEADS |= {19: "CC5", 20: "CM5", 61: "III", 62: "aVR", 63: "aVL", 64: "aVF", 65: "-aVR"}
_LEADS |= {66: "V8", 67: "V9", 68: "V8R", 69: "V9R", 70: "D", 71: "A", 72: "J"}
SEXES = {"M": "male", "F": "female"}
_YEARS = {"Y": 1.0, "M": 1 / 12, "W": 7 / 365.25, "D": 1 / 365.25}
FIELDS = {
    "manufacturer": "Manufacturer",
    "model": "ManufacturerModelName",
    "institution": "InstitutionName",
    "description": "StudyDescription",
    "study": "StudyInstanceUID",
    "series": "SeriesInstanceUID",
}


def skew_of(channel: Any, rate: float) -> int:
    """By how many samples a channel starts late; fractions, from one converter in turn, are 0."""
    seconds = channel.get("ChannelTimeSkew")
    samples = channel.get("ChannelSampleSkew")
    late = float(samples) if samples not in (None, "") else float(seconds or 0) * rate
    return int(late + 0.5) if late >= 0 else -int(0.5 - late)


def lead_of(channel: Any, number: int) -> str:
    """By its code, else its meaning or the channel's label."""
    source: Any = next(iter(channel.get("ChannelSourceSequence") or ()), {})
    code = str(source.get("CodeValue") or "")
    scheme = str(source.get("CodingSchemeDesignator") or "").upper()
    mark = {"SCPECG": "5.6.3-9-", "MDC": "2:"}.get(scheme)
    digits = code[len(mark) :] if mark and code.startswith(mark) else ""
    if digits.isdecimal() and int(digits) in _LEADS:
        return _LEADS[int(digits)]
    meaning = str(source.get("CodeMeaning") or "").replace("MDC_ECG_LEAD_", "")
    meaning = meaning.partition("(")[0].partition(",")[0].strip()
    return meaning or str(channel.get("ChannelLabel") or "").strip() or f"channel {number + 1}"


def scale_of(channel: Any) -> tuple[float, float] | None:
    """The mV of one step and those of step 0; None where the channel is no voltage."""
    unit: Any = next(iter(channel.get("ChannelSensitivityUnitsSequence") or ()), {})
    per_mv = UNITS_PER_MV.get(str(unit.get("CodeValue") or "").lower())
    if per_mv is None or channel.get("ChannelSensitivity") in (None, ""):
        return None
    factor = channel.get("ChannelSensitivityCorrectionFactor")
    factor = 1.0 if factor in (None, "") else float(factor)
    step = float(channel.ChannelSensitivity) * factor / per_mv
    if not (np.isfinite(step) and step):
        raise ValueError(f"a channel's sensitivity is {step:g}")
    return step, float(channel.get("ChannelBaseline") or 0) / per_mv


def patient_of(dataset: Any) -> str | None:
    return str(dataset.get("PatientID") or "").strip() or None


def taken_of(dataset: Any) -> str | None:
    days = ("AcquisitionDate", "ContentDate", "StudyDate")
    texts = [str(dataset.get("AcquisitionDateTime") or "")]
    for day in days:
        time = str(dataset.get(day.replace("Date", "Time")) or "")
        texts.append(str(dataset.get(day) or "") + time)
    for text in texts:
        digits = text.partition(".")[0].partition("+")[0].partition("-")[0].strip()
        for form, length in (("%Y%m%d%H%M%S", 14), ("%Y%m%d%H%M", 12), ("%Y%m%d", 8)):
            try:
                moment = datetime.strptime(digits[:length], form)
            except ValueError:
                continue
            return moment.isoformat() if length > 8 else moment.date().isoformat()
    return None


def age_of(dataset: Any, taken: str | None) -> float | None:
    text = str(dataset.get("PatientAge") or "").strip()
    if text[:-1].isdecimal() and text[-1] in _YEARS:
        return int(text[:-1]) * _YEARS[text[-1]]
    try:
        born = datetime.strptime(str(dataset.get("PatientBirthDate") or ""), "%Y%m%d")
        days = (datetime.fromisoformat(taken or "") - born).days
    except ValueError:
        return None
    return float(int(days / 365.25)) if days >= 0 else None


def statements_of(dataset: Any) -> str:
    notes = dataset.get("WaveformAnnotationSequence") or ()
    return "; ".join(
        text for note in notes if (text := str(note.get("UnformattedTextValue") or ""))
    )
