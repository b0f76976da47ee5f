"""Measurements and predictions as FHIR: valid by fhir.resources, and the ECG is the recording's."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import clocs
from clocs.errors import SettingError
from clocs.measurements.intervals import UNITS, Measure
from clocs.models.classifier import Classifier
from clocs.models.fhir import observations
from clocs.models.measure import measure_table
from clocs.models.predict import predict_recordings
from clocs.recording import Gap, Recording
from clocs.store.store import Store
from clocs.training.checkpoint import Checkpoint
from some_classifier import some_classifier


@pytest.fixture(scope="module")
def classifier(checkpoint: Checkpoint) -> Classifier:
    return some_classifier(checkpoint)


def checked(resource: dict[str, Any]) -> Any:
    """The resource by the library's types, which refuse what FHIR does not know."""
    pytest.importorskip("fhir.resources")
    from fhir.resources.R4B import get_fhir_model_class

    kind = resource["resourceType"]
    return get_fhir_model_class(kind).model_validate_json(json.dumps(resource))


def samples(component: dict[str, Any]) -> NDArray[np.float64]:
    """As a reader of FHIR computes them."""
    held = component["valueSampledData"]
    steps = [np.nan if one == "E" else float(one) for one in held["data"].split(" ")]
    return np.asarray(np.array(steps) * held["factor"] + held["origin"]["value"])


def test_a_bundle_holds_the_ecg_its_quality_and_the_prediction(
    classifier: Classifier, small_store: Store, tmp_path: Path
) -> None:
    out = tmp_path / "found.fhir.json"
    table = clocs.predict(classifier, small_store, out=out, split="test")
    bundle = json.loads(out.read_text("utf-8"))
    checked(bundle)
    resources = [one["resource"] for one in bundle["entry"]]
    for one in resources:
        checked(one)
    device, ecg, said = resources[:3]
    assert device["deviceName"][0]["name"] == classifier.card.name
    assert len(resources) == 1 + 2 * table.height
    row = table.row(0, named=True)
    recording = small_store.recording(row["recording"])
    for place, lead in enumerate(recording.leads):
        component = ecg["component"][place]
        assert component["code"]["text"] == lead
        assert component["valueSampledData"]["period"] == 1000 / recording.rate
        np.testing.assert_allclose(samples(component), recording.signal[place], atol=1e-9)
    known = {one["code"]["text"]: one.get("valueQuantity") for one in ecg["component"]}
    quality = clocs.signal_quality(recording).value
    assert known["signal quality, 0 to 1"]["value"] == pytest.approx(quality)
    assert known["heart rate"]["code"] == "/min" and 20 < known["heart rate"]["value"] < 300
    assert said["valueCodeableConcept"]["text"] == classifier.card.meanings[row["predicted"]]
    chances = [one["valueQuantity"]["value"] for one in said["component"]][:-1]
    assert chances == [row[f"p({label})"] for label in classifier.card.labels]
    assert said["derivedFrom"] == [{"reference": f"urn:uuid:{ecg['id']}"}]
    assert said["device"] == {"reference": f"urn:uuid:{device['id']}"}


def described(
    classifier: Classifier, recording: Recording, measured: dict[str, Measure]
) -> list[dict[str, Any]]:
    row = predict_recordings(classifier, [recording]).row(0, named=True)
    made = observations(row, recording, measured, classifier)
    for one in made:
        checked(one)
    return made


def test_any_measured_quantity_is_a_component_or_says_why_not(
    classifier: Classifier, small_store: Store
) -> None:
    measured = {
        "qtc_fridericia": Measure(412.0, 401.0, 420.5),
        "qrs_axis": Measure(-30.5),
        "pr": Measure(reason="no P waves"),
        "sokolow_lyon": Measure(2.1),
    }
    ecg, _ = described(classifier, small_store.recording(0), measured)
    made = {one["code"]["text"]: one for one in ecg["component"]}
    assert made["qtc fridericia"]["code"]["coding"][0]["code"] == "8636-3"
    ends = made["qtc fridericia, 95 % interval"]["valueRange"]
    assert (ends["low"]["value"], ends["high"]["value"], ends["high"]["code"]) == (401, 420.5, "ms")
    assert made["qrs axis"]["valueQuantity"]["code"] == "deg"
    assert made["pr"]["dataAbsentReason"]["text"] == "no P waves"
    assert "coding" not in made["sokolow lyon"]["code"]


def test_gaps_unknown_units_and_abstention_are_said(
    classifier: Classifier, small_store: Store
) -> None:
    one = small_store.recording(0)
    gap = Gap(10, 20, one.leads[0])
    one = replace(one, unit="adu", gaps=(gap,), recorded_at="2020-01-02T03:04:05")
    strict = replace(classifier, card=replace(classifier.card, limits={"1": {"ecg_share": 1.1}}))
    ecg, said = described(strict, one, {})
    assert np.isnan(samples(ecg["component"][0])[10:20]).all()
    assert "system" not in ecg["component"][0]["valueSampledData"]["origin"]
    assert ecg["effectiveDateTime"] == "2020-01-02"
    assert "valueCodeableConcept" not in said
    assert "too noisy" in said["dataAbsentReason"]["text"]


def test_a_file_that_cannot_be_read_is_an_observation_without_an_ecg(
    classifier: Classifier, tmp_path: Path
) -> None:
    (tmp_path / "broken.edf").write_bytes(b"0       broken")
    out = tmp_path / "found.fhir.json"
    clocs.predict(classifier, tmp_path / "broken.edf", out=out)
    device, said = (one["resource"] for one in json.loads(out.read_text("utf-8"))["entry"])
    checked(said)
    assert device["resourceType"] == "Device" and "derivedFrom" not in said
    assert "broken" in said["dataAbsentReason"]["text"]


def test_measurements_of_stores_and_files_are_a_bundle_without_a_classifier(
    few_store: Store, tmp_path: Path
) -> None:
    (tmp_path / "broken.edf").write_bytes(b"0       broken")
    out = tmp_path / "found.fhir.json"
    table = measure_table(few_store, "sample", tmp_path / "broken.edf", out=out)
    assert table.height == len(few_store) + 2
    bundle = json.loads(out.read_text("utf-8"))
    checked(bundle)
    device, *ecgs = (one["resource"] for one in bundle["entry"])
    for one in (device, *ecgs):
        checked(one)
    assert device["deviceName"][0]["name"] == "clocs measure"
    assert {one["device"]["reference"] for one in ecgs} == {f"urn:uuid:{device['id']}"}
    assert len({one["id"] for one in ecgs}) == table.height
    for row, ecg in zip(table.head(-1).to_dicts(), ecgs, strict=False):
        known = {one["code"]["text"]: one for one in ecg["component"]}
        assert known["II"]["valueSampledData"]["dimensions"] == 1
        quality = known["signal quality, 0 to 1"]["valueQuantity"]["value"]
        assert quality == pytest.approx(row["quality"])
        for name in UNITS:
            one = known[name.replace("_", " ")]
            if row[name] is None:
                assert one["dataAbsentReason"]["text"] == row[f"{name}_reason"]
                continue
            ends = known[f"{name.replace('_', ' ')}, 95 % interval"]["valueRange"]
            found = ends["low"]["value"], one["valueQuantity"]["value"], ends["high"]["value"]
            assert found == (row[f"{name}_low"], row[name], row[f"{name}_high"])
    assert "component" not in ecgs[-1]
    assert "broken" in ecgs[-1]["dataAbsentReason"]["text"]


def test_stretches_waves_and_other_json_are_refused(classifier: Classifier, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="whole recordings"):
        clocs.predict(classifier, tmp_path, out=tmp_path / "a.fhir.json", over_time=10)
    with pytest.raises(SettingError, match="leave out `waves`"):
        measure_table(tmp_path, out=tmp_path / "a.fhir.json", waves=True)
    with pytest.raises(SettingError, match=r"\.fhir\.json"):
        clocs.predict(classifier, tmp_path, out=tmp_path / "a.json")
