"""Predictions as FHIR R4: for each recording two Observations in one Bundle.

The first is the ECG: its samples by lead, the quality of the signals, and whatever was measured.
The second is derived from it: what a classifier predicts, or why it does not, with the classifier
as the device. Codes are those of ISO/IEEE 11073 (leads) and LOINC (measured quantities); a label
has its name alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple
from uuid import NAMESPACE_URL, UUID, uuid5

import numpy as np

from clocs._version import __version__
from clocs.files import private_folder, replacing, writing
from clocs.measurements.quality import signal_quality
from clocs.models.classifier import Classifier, probability_column
from clocs.recording import STANDARD_LEADS, Recording
from clocs.sealed import own_hash

SUFFIX = ".fhir.json"
LONGEST = 3600.0  # seconds of a recording whose samples are written
_LOINC, _UCUM = "http://loinc.org", "http://unitsofmeasure.org"
_MDC = "urn:iso:std:iso:11073:10101"
_HL7 = "http://terminology.hl7.org/CodeSystem/"
_ECG = 131328  # MDC_ECG_ELEC_POTL; of a lead, so much more
_OF_LEADS = dict(zip(STANDARD_LEADS, (1, 2, 61, 62, 63, 64, *range(3, 9)), strict=True))
_CODES = {
    "heart_rate": ("8867-4", "Heart rate"),
    "pr": ("8625-6", "P-R Interval"),
    "qrs": ("8633-0", "QRS duration"),
    "qt": ("8634-8", "Q-T interval"),
    "qtc": ("8636-3", "Q-T interval corrected"),
    "qrs_axis": ("8632-2", "QRS axis"),
    "t_axis": ("8638-9", "T wave axis"),
}
_UNITS = {"1/min": "/min", "°": "deg"}  # as UCUM writes them
_Fields = dict[str, Any]


class Quantity(NamedTuple):
    """A measured value, or why there is none."""

    value: float | None
    unit: str
    reason: str | None = None


class Predicted(NamedTuple):
    """A recording and what is said of it.

    Attributes:
        row: Of the table of `clocs.predict`.
        recording: None where it cannot be read; the row says why.
        measured: By name, such as 'heart_rate' or 'qt'; names that LOINC has no code for are text.
    """

    row: Mapping[str, Any]
    recording: Recording | None
    measured: Mapping[str, Quantity] = {}


def write_fhir(path: Path, classifier: Classifier, rows: Iterable[Predicted]) -> None:
    """Write a Bundle, whole or not at all; one recording is in memory at a time."""
    private_folder(path.parent)
    device = _device(classifier)
    with writing(path), replacing(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        file.write('{"resourceType": "Bundle", "type": "collection", "entry": [\n')
        file.write(_entry(device))
        for one in rows:
            for resource in observations(classifier, one, device["id"]):
                file.write(f",\n{_entry(resource)}")
        file.write("\n]}\n")


def _entry(resource: _Fields) -> str:
    entry = {"fullUrl": f"urn:uuid:{resource['id']}", "resource": resource}
    return json.dumps(entry, ensure_ascii=False, allow_nan=False)


def _device(classifier: Classifier) -> _Fields:
    card = classifier.card
    digest = own_hash(card.to_dict())
    return {
        "resourceType": "Device",
        "id": str(uuid5(NAMESPACE_URL, digest)),
        "identifier": [{"system": "urn:ietf:rfc:3986", "value": f"urn:sha256:{digest}"}],
        "deviceName": [{"name": card.name, "type": "model-name"}],
        "version": [
            {"type": {"text": "card, sha256"}, "value": digest},
            {"type": {"text": "clocs"}, "value": __version__},
        ],
        "note": [{"text": card.intended_use}],
    }


def observations(classifier: Classifier, one: Predicted, device: str) -> list[_Fields]:
    """The Observations of the ECG, where there is one, and of the prediction."""
    row, recording = one.row, one.recording
    key = json.dumps([row["dataset"], row["file"], row["recording"], device])
    own = uuid5(UUID(device), key)
    about: _Fields = {"resourceType": "Observation", "status": "preliminary"}
    about["category"] = [{"coding": [_coding(_HL7 + "observation-category", "procedure")]}]
    if row["patient"]:
        about["subject"] = {"identifier": {"value": row["patient"]}}
    made = []
    predicted = about | {"id": str(uuid5(own, "prediction"))} | _prediction(classifier, row)
    predicted["device"] = {"reference": f"urn:uuid:{device}"}
    if recording is not None:
        if when := _when(recording.recorded_at):
            about["effectiveDateTime"] = predicted["effectiveDateTime"] = when
        ecg = about | {"id": str(uuid5(own, "ecg"))} | _ecg(recording, one.measured)
        predicted["derivedFrom"] = [{"reference": f"urn:uuid:{ecg['id']}"}]
        made.append(ecg)
    if notes := row["notes"]:
        predicted["note"] = [{"text": note} for note in notes]
    return [*made, predicted]


def _when(recorded_at: str | None) -> str | None:
    """The day: FHIR has no time of day without a time zone."""
    try:
        return None if recorded_at is None else str(datetime.fromisoformat(recorded_at).date())
    except ValueError:
        return None


def _coding(system: str, code: str, display: str | None = None) -> _Fields:
    return {"system": system, "code": code} | ({"display": display} if display else {})


def _absent(reason: str) -> _Fields:
    return {"coding": [_coding(_HL7 + "data-absent-reason", "unknown")], "text": reason}


def _ecg(recording: Recording, measured: Mapping[str, Quantity]) -> _Fields:
    quality = signal_quality(recording)
    components = [_lead(recording, place) for place in range(len(recording.leads))]
    components.append(_quantity("signal quality, 0 to 1", Quantity(quality.value, "1")))
    for lead, reason in quality.reasons.items():
        value = Quantity(quality.leads[lead], "1")
        components.append(_quantity(f"signal quality of {lead}, 0 to 1: {reason}", value))
    components += [_quantity(name, one) for name, one in measured.items()]
    code = {"coding": [_coding(_MDC, str(_ECG), "MDC_ECG_ELEC_POTL")], "text": "ECG"}
    return {"code": code, "component": components}


def _lead(recording: Recording, place: int) -> _Fields:
    lead, unit = recording.leads[place], recording.unit
    code: _Fields = {"text": lead}
    if lead in _OF_LEADS:
        number, name = _ECG + _OF_LEADS[lead], f"MDC_ECG_ELEC_POTL_{lead.upper()}"
        code["coding"] = [_coding(_MDC, str(number), name)]
    if recording.seconds > LONGEST:
        reason = f"samples of {recording.seconds / 3600:.1f} h are not included"
        return {"code": code, "dataAbsentReason": _absent(reason)}
    steps = recording.digital[place].astype(np.int64) - int(recording.baseline[place])
    data = steps.astype(str).tolist()
    for gap in recording.gaps:
        if gap.lead == lead:
            data[gap.start : gap.stop] = ["E"] * (gap.stop - gap.start)
    zero: _Fields = {"value": 0, "unit": unit}
    zero |= {"system": _UCUM, "code": "mV"} if unit == "mV" else {}
    sampled = {
        "origin": zero,
        "period": 1000 / recording.rate,
        "factor": 1 / float(recording.gain[place]),
        "dimensions": 1,
        "data": " ".join(data),
    }
    return {"code": code, "valueSampledData": sampled}


def _quantity(name: str, one: Quantity) -> _Fields:
    found = _CODES.get(name) or _CODES.get(name.partition("_")[0])
    code: _Fields = {"text": name.replace("_", " ")}
    if found is not None:
        code["coding"] = [_coding(_LOINC, *found)]
    if one.value is None:
        return {"code": code, "dataAbsentReason": _absent(one.reason or "not measured")}
    ucum = {"system": _UCUM, "code": _UNITS.get(one.unit, one.unit)}
    return {"code": code, "valueQuantity": {"value": one.value, "unit": one.unit} | ucum}


def _prediction(classifier: Classifier, row: Mapping[str, Any]) -> _Fields:
    card = classifier.card
    chosen = row["predicted"]
    labels = [chosen] if isinstance(chosen, str) else chosen
    made: _Fields = {"code": {"text": f"Prediction of {card.name} (research, no diagnosis)"}}
    if labels is None:
        why = row["problem"] or row["abstained"] or "nothing is predicted"
        made["dataAbsentReason"] = _absent(why)
    else:
        words = "; ".join(card.meanings[one] for one in labels) or "none of the labels"
        made["valueCodeableConcept"] = {"text": words}
    chances = {label: row[probability_column(label)] for label in card.labels}
    made["component"] = [
        {
            "code": {"text": f"probability of {card.meanings[label]} ({label})"},
            "valueQuantity": {"value": chance, "unit": "1", "system": _UCUM, "code": "1"},
        }
        for label, chance in chances.items()
        if chance is not None
    ]
    if row["ecg_share"] is not None:
        share = Quantity(row["ecg_share"], "1")
        made["component"].append(_quantity("share of the power that looks like an ECG", share))
    return made if made["component"] else {k: v for k, v in made.items() if k != "component"}
