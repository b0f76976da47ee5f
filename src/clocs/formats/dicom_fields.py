"""What the fields of a DICOM ECG say: leads, scales, the patient, when it was recorded."""

from __future__ import annotations

from datetime import datetime
from typing import Any, NamedTuple

import numpy as np

from clocs.recording import UNITS_PER_MV

# Leads by their numbers in SCP-ECG ('5.6.3-9-61') and ISO/IEEE 11073 ('2:61'), which are the same.
_CHEST = ("V1", "V2", "V3", "V4", "V5", "V6", "V7", "V2R", "V3R", "V4R", "V5R", "V6R", "V7R")
_LEADS = dict(enumerate(("I", "II", *_CHEST, "X", "Y", "Z"), 1))
_LEADS |= {19: "CC5", 20: "CM5", 61: "III", 62: "aVR", 63: "aVL", 64: "aVF", 65: "-aVR"}
_LEADS |= {66: "V8", 67: "V9", 68: "V8R", 69: "V9R", 70: "D", 71: "A", 72: "J"}
_SEEN: dict[tuple[Any, ...], tuple[Channel, ...]] = {}
_MAX_SEEN = 64
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


class Channel(NamedTuple):
    """One channel of a multiplex group.

    Attributes:
        lead: Its name.
        scale: The mV of one step and those of step 0; None where it is no voltage.
        late_samples: By how many samples it starts late; None where only the time is given.
        late_seconds: By how many seconds.
    """

    lead: str
    scale: tuple[float, float] | None
    late_samples: float | None
    late_seconds: float

    def shift(self, rate: float) -> int:
        """By how many samples it starts late; fractions, from one converter in turn, are 0."""
        late = self.late_seconds * rate if self.late_samples is None else self.late_samples
        return int(late + 0.5) if late >= 0 else -int(0.5 - late)


def channels_of(item: Any, encoding: tuple[Any, ...]) -> tuple[Channel, ...]:
    """The channels of a multiplex group; those of most files of a device are the same bytes.

    Args:
        item: The group.
        encoding: Of the dataset, with its character set.
    """
    raw = item.get_item("ChannelDefinitionSequence")
    held = getattr(raw, "value", None)
    key = (held, *encoding) if isinstance(held, bytes) else None
    if key is not None and key in _SEEN:
        return _SEEN[key]
    found = []
    for number, channel in enumerate(item.ChannelDefinitionSequence):
        samples = channel.get("ChannelSampleSkew")
        found.append(
            Channel(
                lead_of(channel, number),
                scale_of(channel),
                None if samples in (None, "") else float(samples),
                float(channel.get("ChannelTimeSkew") or 0),
            )
        )
    if key is not None:
        if len(_SEEN) >= _MAX_SEEN:
            _SEEN.clear()
        _SEEN[key] = tuple(found)
    return tuple(found)


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
