"""One EDF with disconnected leads: the same vector and prediction on every way to an answer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import edfio
import numpy as np
import polars as pl
import pytest
from numpy.typing import NDArray

import clocs
from clocs import Checkpoint
from clocs.errors import ClocsWarning
from clocs.explorer.predictions import SavedClassifiers, ShownRecording
from clocs.explorer.uploads import embed_upload
from clocs.models.classifier import Classifier
from clocs.models.predict import predict_recordings
from clocs.patients.embed import embed_recordings
from clocs.patients.embeddings import Embeddings
from clocs.service.bodies import example_signal
from edf_files import write
from service.conftest import Served
from upload_files import read_in_process

RATE, SECONDS = 256, 30
MISSING = ["V2"]


def uploaded_files(files: dict[str, bytes]) -> clocs.Recording:
    """The recording in these files, as the process that reads uploads sends it."""
    return read_in_process(files)


def connected(seed: int) -> NDArray[np.float64]:
    noise = np.random.default_rng(seed).normal(0, 20, RATE * SECONDS)
    return 900 * example_signal(SECONDS, RATE) * (1 - 0.3 * seed) + noise


@pytest.fixture(scope="module")
def edf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """V2 is off from the start, at the converter's rail; aVR for the first twelve seconds."""
    one, two = connected(1), connected(0)
    off = -(one + two) / 2
    off[: 12 * RATE] = 0.0
    values = {
        "ECG II": two,
        "ECG V2": np.full(RATE * SECONDS, 5000.0),
        "ECG aVL": one - two / 2,
        "ECG aVR": off,
    }
    signals: list[Any] = [
        edfio.EdfSignal(
            wave, RATE, label=lead, physical_dimension="uV", physical_range=(-5000, 5000)
        )
        for lead, wave in values.items()
    ]
    return write(tmp_path_factory.mktemp("holter"), signals, "holter.edf")


@pytest.mark.filterwarnings("ignore::clocs.errors.ClocsWarning")
def test_one_edf_has_one_vector_and_one_prediction_whichever_way_it_takes(
    edf: Path, checkpoint: Checkpoint, classifier: Classifier, served: Served, tmp_path: Path
) -> None:
    store = clocs.prepare("folder", edf.parent, out=tmp_path / "store")
    recording = clocs.read(edf)
    frame = checkpoint.card.frame.seconds
    with edf.open("rb") as file:
        posted = served.post("/models/plain/embedding", files={"files": file}).json()
    uploaded = uploaded_files({"holter.edf": edf.read_bytes()})
    vectors = {
        "file": clocs.embed(checkpoint, edf, level="recording").vectors[0],
        "store": clocs.embed(checkpoint, store, level="recording", frame=frame).vectors[0],
        "HTTP": posted["embedding"],
        "explorer": embed_upload(checkpoint, uploaded).vector,
        "Python": embed_recordings(checkpoint, [recording], level="recording").vectors[0],
    }
    for way, vector in vectors.items():
        np.testing.assert_allclose(vector, vectors["file"], atol=1e-6, err_msg=way)

    with edf.open("rb") as file:
        answer = served.post("/models/rhythm/prediction", files={"files": file}).json()
    (explored,) = SavedClassifiers([classifier]).predict(ShownRecording(uploaded))
    explained = clocs.explain(classifier, recording)
    tables = {
        "file": clocs.predict(classifier, edf),
        "store": clocs.predict(classifier, store),
        "Python": predict_recordings(classifier, [recording]),
    }
    labels = classifier.card.labels
    made = {way: {k: one[f"p({k})"][0] for k in labels} for way, one in tables.items()}
    made |= {
        "HTTP": answer["probabilities"],
        "explorer": {one["label"]: one["probability"] for one in explored["classes"]},
        "explain": explained.probabilities,
    }
    for way, chances in made.items():
        assert chances == pytest.approx(made["file"], abs=1e-5), way
    for one in tables.values():
        assert one["leads_used"].to_list() == [["II", "aVL", "aVR"]]
        assert one["leads_missing"].to_list() == [MISSING]
        assert one["rate"][0] == RATE and one["unit"][0] == "mV"
        assert one["rows"][0] == tables["file"]["rows"][0] == 6 + 6 + 4
    assert answer["leads_missing"] == posted["leads_missing"] == MISSING
    with pytest.warns(ClocsWarning, match="lack some of the leads"):
        clocs.embed(checkpoint, edf, level="recording")


def test_an_explanation_colors_no_flat_lead_and_says_that_the_classifier_abstains(
    edf: Path, classifier: Classifier
) -> None:
    strict = replace(classifier, card=replace(classifier.card, limits={"1": {"ecg_share": 1.1}}))
    made = clocs.explain(strict, edf, start=0, seconds=30)
    assert made.leads == ("II", "aVL", "aVR")
    assert np.isnan(made.attribution[2, : 12 * RATE]).all()
    assert np.isfinite(made.attribution[2, 16 * RATE : 20 * RATE]).all()
    assert "too noisy" in (made.abstained or "") and made.to_dict()["abstained"] == made.abstained
    assert clocs.explain(classifier, edf).abstained is None


@pytest.mark.filterwarnings("ignore::clocs.errors.ClocsWarning")
def test_what_was_assumed_on_reading_is_told_on_every_way(
    checkpoint: Checkpoint, classifier: Classifier, served: Served, tmp_path: Path
) -> None:
    """A spreadsheet export: a column per lead, a time in ms, and no word about the unit."""
    path = tmp_path / "files" / "export.csv"
    path.parent.mkdir()
    time = np.arange(RATE * SECONDS) * 1000 / RATE
    pl.DataFrame({"time_ms": time, "MLII": connected(0), "V2": connected(1)}).write_csv(path)
    notes = [
        "time_ms gives a rate of 256 Hz",
        "values are assumed to be in µV, judging by their size",
    ]
    facts = {
        "unit": "mV",
        "leads_used": ["II", "V2"],
        "leads_missing": ["aVL", "aVR"],
        "leads_derived": [],
    }
    table = clocs.predict(classifier, path, out=tmp_path / "p.parquet")
    clocs.predict(classifier, path, out=tmp_path / "p.csv")
    clocs.embed(checkpoint, path).save(tmp_path / "e.parquet")
    store = clocs.prepare("folder", path.parent, out=tmp_path / "store")
    with path.open("rb") as file:
        posted = served.post("/models/plain/embedding", files={"files": file}).json()
    with path.open("rb") as file:
        predicted = served.post("/models/rhythm/prediction", files={"files": file}).json()
    answers = {
        "Python": table,
        "parquet": pl.read_parquet(tmp_path / "p.parquet"),
        "embeddings": Embeddings.load(tmp_path / "e.parquet").rows,
        "frames": clocs.embed(checkpoint, path, level="frame").rows,
        "patients of frames": clocs.embed(checkpoint, path, level="frame").to("patient").rows,
        "store": clocs.predict(classifier, store),
        "embedded store": clocs.embed(checkpoint, store).rows,
    }
    made = {way: one.row(0, named=True) for way, one in answers.items()}
    for way, one in (made | {"embedding": posted, "prediction": predicted}).items():
        assert {name: one[name] for name in facts} == facts, way
        assert one["rate"] == pytest.approx(RATE), way
        assert one["notes"] == notes, way
    (row,) = pl.read_csv(tmp_path / "p.csv").to_dicts()
    assert row["leads_used"] == "II; V2" and row["notes"] == "; ".join(notes)
    uploaded = uploaded_files({"export.csv": path.read_bytes()})
    assert f"V{notes[1][1:]}." in embed_upload(checkpoint, uploaded).notes
    body = {"signal": [connected(0).tolist()], "rate": RATE, "leads": ["II"]}
    without_unit = served.embedding(body | {"signal": [(connected(0) / 1000).tolist()]}).json()
    assert without_unit["notes"] == ["values without a unit are taken as mV"]
