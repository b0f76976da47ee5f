"""What fields are called beside the numbers of a file: attributes, columns, comments, datasets."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from clocs.recording import PLAUSIBLE_HZ, STANDARD_LEADS, canonical_lead

_NAMES = {
    "rate": "rate fs hz sampling_rate sample_rate samplerate sampling_frequency frequency freq "
    "sfreq",
    "leads": "leads lead_names leadnames sig_name sig_names channels channel_names ch_names",
    "unit": "unit units",
    "patient": "patient patients patient_id patient_ids patientid pid subject subject_id subjects",
    "id": "id ids exam_id exam_ids ecg_id record records recording recordings record_name filename "
    "file name names study_id",
    "labels": "label labels y dx diagnosis diagnoses class classes target",
    "age": "age ages",
    "sex": "sex gender",
    "taken": "taken date datetime recording_date acquisition_date exam_date",
    "lead": "lead channel lead_name derivation",
    "value": "value values amplitude voltage signal mv uv ecg",
    "sample": "sample samples index sample_number sample_index",
    "time": "time t seconds sec s ms timestamp elapsed_time time_s time_ms times zeit",
}
_MEANINGS = {name: meaning for meaning, names in _NAMES.items() for name in names.split()}
_IN_BRACKETS = re.compile(r"([^(\[]*)[(\[]([^)\]]*)[)\]]\Z")
_NUMBER = re.compile(r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?")
_LONGEST_NAME = 200  # characters
_MAX_TEXT = 1000  # characters of a field that is kept


def meaning_of(name: str) -> str | None:
    """What a field of this name holds, one of `_NAMES`; None where that is not known."""
    bare, _ = split_unit(name)
    if canonical_lead(bare) in STANDARD_LEADS:
        return None
    return _MEANINGS.get(re.sub(r"[\W_]+", "_", bare.lower()).strip("_"))


def split_unit(name: str) -> tuple[str, str | None]:
    """'II (mV)' and 'II [mV]' are 'II' in 'mV'."""
    match = _IN_BRACKETS.match(name.strip()) if len(name) < _LONGEST_NAME else None
    return (match[1].strip(), match[2].strip()) if match else (name.strip(), None)


def by_meaning(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fields under what they mean, the first of each."""
    found: dict[str, Any] = {}
    for name, value in fields.items():
        meaning = meaning_of(name)
        if meaning is not None:
            found.setdefault(meaning, value)
    return found


def rate_in(value: Any) -> float | None:
    """A rate in Hz from 500, '500', '500 Hz' or '511,3 Hertz'; None where it is none."""
    text = text_of(value)
    match = _NUMBER.match(text.replace(",", "."))
    number = float(match[0]) if match else 0.0
    if number < PLAUSIBLE_HZ[0] and re.match(r"\d{1,2},\d{3}\b", text):  # of thousands
        number *= 1000
    return number if 0 < number < math.inf else None


def age_in(value: Any) -> float | None:
    """An age in years; None where it is none that anybody has."""
    match = _NUMBER.match(text_of(value))
    years = float(match[0]) if match else math.nan
    return years if 0 <= years <= 150 else None


def sex_in(value: Any) -> str | None:
    """'male' or 'female' from what files write."""
    return {"m": "male", "male": "male", "f": "female", "female": "female"}.get(
        text_of(value).lower()
    )


def text_of(value: Any) -> str:
    """One value as text: bytes decoded, arrays of one element unpacked, nothing as ''."""
    while hasattr(value, "tolist"):
        value = value.tolist()
    while isinstance(value, (list, tuple)) and len(value) == 1:
        value = value[0]
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        value = int(value)
    text = str(value).strip("\0 \t\r\n")[:_MAX_TEXT]
    return text.encode("utf-8", "replace").decode()


def texts_of(value: Any) -> list[str]:
    """Several values as text; names in one string are divided at commas."""
    while hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, (str, bytes)):
        return [part.strip() for part in text_of(value).split(",")]
    if isinstance(value, Sequence):
        return [text_of(one) for one in value]
    return [text_of(value)]
