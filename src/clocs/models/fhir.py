"""Measurements and predictions as FHIR R4: Observations of recordings in one Bundle.

The first of a recording is the ECG: its samples by lead, the quality of the signals, and what was
measured. With a classifier, a second one is derived from it: what is predicted, or why nothing is.
The device is the classifier, or `clocs measure`. Codes are those of ISO/IEEE 11073 (leads) and
LOINC (measured quantities); a label has its name alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_URL, UUID, uuid5

import numpy as np

from clocs._version import __version__
from clocs.files import private_folder, replacing, writing
from clocs.measurements.intervals import UNITS, Measure
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
_Row = Mapping[str, Any]
_Values = Mapping[str, Measure]
_Add = Callable[[_Row, Recording | None, _Values], None]


@contextmanager
def fhir_bundle(path: Path, classifier: Classifier | None = None) -> Iterator[_Add]:
    """A Bundle, written whole or not at all, and what adds a recording to it.

    Args:
        path: Ends in `SUFFIX`.
        classifier: Where the rows that are added are those of `clocs.predict`.
    """
    private_folder(path.parent)
    with writing(path), replacing(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        file.write('{"resourceType": "Bundle", "type": "collection", "entry": [\n')
        file.write(_entry(_device(classifier)))

        def add(row: _Row, recording: Recording | None, measured: _Values) -> None:
            for resource in observations(row, recording, measured, classifier):
                file.write(f",\n{_entry(resource)}")

        yield add
        file.write("\n]}\n")


def _entry(resource: _Fields) -> str:
    entry = {"fullUrl": f"urn:uuid:{resource['id']}", "resource": resource}
    return json.dumps(entry, ensure_ascii=False, allow_nan=False)


def _device(classifier: Classifier | None) -> _Fields:
    name, use, digest = "clocs measure", "For research; no medical device.", __version__
    versions = {"clocs": __version__}
    if classifier is not None:
        name, use = classifier.card.name, classifier.card.intended_use
        versions["card, sha256"] = digest = own_hash(classifier.card.to_dict())
    return {
        "resourceType": "Device",
        "id": str(uuid5(NAMESPACE_URL, digest)),
        "deviceName": [{"name": name, "type": "model-name"}],
        "version": [{"type": {"text": of}, "value": value} for of, value in versions.items()],
        "note": [{"text": use}],
    }


def observations(
    row: _Row, recording: Recording | None, measured: _Values, classifier: Classifier | None = None
) -> list[_Fields]:
    """The Observations of the ECG, where there is one, and of the prediction.

    Args:
        row: Of the table of `clocs.predict` or `clocs measure`.
        recording: None where it cannot be read; the row says why.
        measured: By the names of `UNITS`; names that LOINC has no code for are text.
        classifier: What predicted; None for measurements alone.
    """
    device = _device(classifier)["id"]
    own = uuid5(UUID(device), json.dumps([row.get(n) for n in ("dataset", "file", "recording")]))
    about: _Fields = {"resourceType": "Observation", "status": "preliminary"}
    about["category"] = [{"coding": [_coding(_HL7 + "observation-category", "procedure")]}]
    if patient := row.get("patient") or (recording and recording.patient):
        about["subject"] = {"identifier": {"value": patient}}
    if recording and (when := _when(recording.recorded_at)):
        about["effectiveDateTime"] = when
    made = []
    if recording or classifier is None:
        made = [about | {"id": str(uuid5(own, "ecg"))} | _ecg(row, recording, measured)]
    if classifier is not None:
        said = about | {"id": str(uuid5(own, "prediction"))} | _prediction(classifier, row)
        if made:
            said["derivedFrom"] = [{"reference": f"urn:uuid:{made[0]['id']}"}]
        made.append(said)
    if notes := row.get("notes"):
        made[-1]["note"] = [{"text": note} for note in notes]
    made[-1]["device"] = {"reference": f"urn:uuid:{device}"}
    return made


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


def _ecg(row: _Row, recording: Recording | None, measured: _Values) -> _Fields:
    code = {"coding": [_coding(_MDC, str(_ECG), "MDC_ECG_ELEC_POTL")], "text": "ECG"}
    if recording is None:
        return {"code": code, "dataAbsentReason": _absent(row["problem"])}
    quality = signal_quality(recording)
    components = [_lead(recording, place) for place in range(len(recording.leads))]
    components += _quantity("signal quality, 0 to 1", Measure(quality.value), "1")
    for lead, reason in quality.reasons.items():
        name = f"signal quality of {lead}, 0 to 1: {reason}"
        components += _quantity(name, Measure(quality.leads[lead]), "1")
    for name, one in measured.items():
        components += _quantity(name, one, UNITS[name])
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


def _quantity(name: str, one: Measure, unit: str) -> list[_Fields]:
    """The value, or why there is none; and its interval."""
    found = _CODES.get(name) or _CODES.get(name.partition("_")[0])
    code: _Fields = {"text": name.replace("_", " ")}
    if found is not None:
        code["coding"] = [_coding(_LOINC, *found)]
    if one.value is None:
        return [{"code": code, "dataAbsentReason": _absent(one.reason or "not measured")}]
    about = {"unit": unit, "system": _UCUM, "code": _UNITS.get(unit, unit)}
    value, low, high = ({"value": each} | about for each in (one.value, one.low, one.high))
    made: list[_Fields] = [{"code": code, "valueQuantity": value}]
    if one.low is not None:
        ends = {"code": {"text": f"{code['text']}, 95 % interval"}}
        made.append(ends | {"valueRange": {"low": low, "high": high}})
    return made


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
    shares = {
        f"probability of {card.meanings[label]} ({label})": row[probability_column(label)]
        for label in card.labels
    } | {"share of the power that looks like an ECG": row["ecg_share"]}
    known = [(name, Measure(share)) for name, share in shares.items() if share is not None]
    if known:
        made["component"] = [part for one in known for part in _quantity(*one, "1")]
    return made
