"""Faults of electrodes and units reach every answer: noted, abstained from, corrected if asked."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import clocs
from clocs.explorer.predictions import SavedClassifiers, ShownRecording
from clocs.explorer.uploads import embed_upload
from clocs.measurements.check import check, examine
from clocs.models.classifier import Classifier, load_classifier
from clocs.models.predict import predict_recordings
from clocs.patients.encode import InputSpec, cut_each
from clocs.recording import STANDARD_LEADS, Recording, notes_of, quantize
from clocs.service.service import Computation, ServedModel
from clocs.store.store import Store
from clocs.training.checkpoint import Checkpoint
from some_classifier import some_classifier

FAULTS = import_module("benchmarks.electrodes")
with_fault = FAULTS.with_fault
ARMS = "left and right arm may be swapped"
INVERTED = "II may be inverted"


@pytest.fixture(scope="module")
def classifier(checkpoint: Checkpoint) -> Classifier:
    made = some_classifier(checkpoint)
    return replace(made, card=replace(made.card, limits={}))


def with_signal(recording: Recording, signal: np.ndarray) -> Recording:
    digital, gain = quantize(signal)
    zero = np.zeros(len(signal), np.int32)
    return replace(recording, digital=digital, gain=gain, baseline=zero)


@pytest.fixture(scope="module")
def right(small_store: Store) -> Recording:
    found = small_store.recording(0)
    assert found.leads == STANDARD_LEADS and not check(found)
    return found


@pytest.fixture(scope="module")
def inverted(right: Recording) -> Recording:
    signs = np.where(np.array(STANDARD_LEADS) == "II", -1.0, 1.0)[:, None]
    return with_signal(right, right.signal * signs)


def write_csv(recording: Recording, file: Path) -> None:
    columns = dict(zip(recording.leads, recording.signal, strict=True))
    pl.DataFrame(columns).write_csv(file)


def test_every_way_says_that_a_lead_is_inverted(
    classifier: Classifier, checkpoint: Checkpoint, inverted: Recording, tmp_path: Path
) -> None:
    file = tmp_path / "files" / "a.csv"
    file.parent.mkdir()
    write_csv(inverted, file)
    rate = inverted.rate
    tables = {
        "file": clocs.predict(classifier, file, rate=rate, unit="mV"),
        "Python": predict_recordings(classifier, [inverted]),
    }
    store = clocs.prepare("folder", file.parent, out=tmp_path / "store", rate=rate, unit="mV")
    tables["store"] = clocs.predict(classifier, store)
    for way, table in tables.items():
        row = table.row(0, named=True)
        assert INVERTED in row["notes"], way
        assert row["predicted"] is None and INVERTED in row["abstained"], way
    embedded = clocs.embed(checkpoint, file, level="recording", rate=rate, unit="mV")
    assert INVERTED in embedded.rows["notes"][0]
    assert f"{INVERTED}." in embed_upload(checkpoint, inverted).notes
    facts = clocs.preview("folder", file.parent, rate=rate, unit="mV")
    assert f"{INVERTED} (1 of those read)" in facts["notices"]
    (shown,) = SavedClassifiers([classifier]).predict(ShownRecording(inverted))
    assert INVERTED in shown["abstained"] and INVERTED in shown["notes"]
    (answer,) = ServedModel("m", classifier).compute(Computation("prediction", "m"), [inverted])
    assert isinstance(answer, dict) and INVERTED in answer["abstained"]
    assert INVERTED in answer["notes"] and answer["predicted"] is None


def test_a_corrected_recording_is_predicted_as_the_right_one_and_says_so(
    classifier: Classifier, right: Recording, inverted: Recording, tmp_path: Path
) -> None:
    expected = predict_recordings(classifier, [right])
    write_csv(inverted, tmp_path / "a.csv")
    fixed = {
        "Python": predict_recordings(classifier, [inverted], correct=True),
        "file": clocs.predict(
            classifier, tmp_path / "a.csv", rate=inverted.rate, unit="mV", correct=True
        ),
    }
    for way, table in fixed.items():
        assert table["predicted"].to_list() == expected["predicted"].to_list(), way
        assert "corrected: II was turned over" in table["notes"][0], way
        assert table["p(AF)"][0] == pytest.approx(expected["p(AF)"][0], abs=1e-4), way


def test_a_store_is_corrected_where_it_is_read_and_stays_as_it_was(
    classifier: Classifier, right: Recording, inverted: Recording, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    write_csv(inverted, tmp_path / "in" / "a.csv")
    store = clocs.prepare(
        "folder", tmp_path / "in", out=tmp_path / "store", rate=inverted.rate, unit="mV"
    )
    table = clocs.predict(classifier, store, correct=True)
    expected = predict_recordings(classifier, [right])
    assert "corrected: II was turned over" in table["notes"][0]
    assert table["p(AF)"][0] == pytest.approx(expected["p(AF)"][0], abs=1e-4)
    assert np.allclose(store.recording(0).signal, inverted.signal, atol=1e-3)


@pytest.mark.parametrize("factor", [10.0, 0.1, 0.001])
def test_a_wrong_unit_is_a_note_since_frames_have_none_and_is_corrected_on_request(
    classifier: Classifier, right: Recording, factor: float
) -> None:
    wrong = replace(right, gain=right.gain / factor)
    (row,) = predict_recordings(classifier, [wrong]).iter_rows(named=True)
    assert row["abstained"] is None and any("too " in note for note in row["notes"])
    fixed, left = examine(wrong, correct=True)
    assert left == [] and np.allclose(fixed.signal, right.signal)
    assert any(note.startswith("corrected: amplitudes were") for note in notes_of(fixed.extra))


def test_a_fault_in_leads_that_a_model_does_not_read_is_a_note_alone(
    classifier: Classifier, right: Recording
) -> None:
    twice = with_signal(right, right.signal[[*range(11), 10]])
    spec = InputSpec.from_checkpoint(classifier.encoders[0])
    assert "V6" not in spec.leads
    (cut,) = cut_each([twice], spec)
    assert not isinstance(cut, Exception) and "V5 and V6 are the same lead" in cut.reading["notes"]
    assert predict_recordings(classifier, [twice])["abstained"][0] is None


def test_a_flat_lead_is_named_and_nothing_else_is_said_of_it(right: Recording) -> None:
    flat = with_signal(right, np.where(np.arange(12)[:, None] == 8, 0, right.signal))
    assert [one.sentence for one in check(flat)] == ["V3 is flat"]


def test_swapped_arms_are_swapped_back(real_data: Path) -> None:
    files = sorted((real_data / "samples/physionet2020/Training_WFDB").glob("*.hea"))[:12]
    found = [clocs.read(file).between(0, 5000) for file in files]
    fixed = 0
    for one in found:
        given = with_fault(one.signal, "", "")  # limb leads as they follow from I and II
        wrong = with_signal(one, with_fault(one.signal, ARMS, ""))
        again, left = examine(wrong, correct=True)
        if "corrected: left and right arm were swapped back" in notes_of(again.extra):
            fixed += 1
            assert ARMS not in [finding.sentence for finding in left]
            np.testing.assert_allclose(again.signal, given, atol=0.002)
    assert fixed >= 9


def test_a_recording_of_the_eight_leads_is_corrected_too(real_data: Path) -> None:
    file = sorted((real_data / "samples/physionet2020/Training_WFDB").glob("*.hea"))[0]
    one = clocs.read(file).between(0, 5000)
    eight = ["I", "II", "V1", "V2", "V3", "V4", "V5", "V6"]
    wrong = with_signal(one, with_fault(one.signal, ARMS, "")).select(eight)
    again, _ = examine(wrong, correct=True)
    assert again.leads == tuple(eight) and notes_of(again.extra)
    np.testing.assert_allclose(again.signal, one.select(eight).signal, atol=0.002)


def test_a_classifier_of_an_earlier_version_keeps_its_limit(
    classifier: Classifier, tmp_path: Path
) -> None:
    """It was called quality, a word that now stands for `clocs.signal_quality` alone."""
    facts = replace(classifier.card, limits={}).to_dict()
    facts["limits"] = {"quality": 0.2, "distance": 2.0}
    card = type(classifier.card).from_dict(json.loads(json.dumps(facts)))
    assert card.limits == {"1": {"ecg_share": 0.2, "distance": 2.0}}
    assert card.limits_of(12)["distance"] == 2.0
    for own in load_classifier("rhythm-chapman").card.limits.values():
        assert {"ecg_share", "distance"} <= own.keys()
