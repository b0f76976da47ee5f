"""Further columns: what stores say, and what a classifier predicts for every patient."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import clocs
from clocs import Store
from clocs.datasets.label_names import label_name
from clocs.explorer.columns import Columns, unpredicted
from clocs.explorer.open import open_session
from clocs.explorer.predictions import SavedClassifiers
from clocs.explorer.session import Session, color_slots


@pytest.fixture(scope="module")
def file(encoder: Path, small_store: Store, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier."""
    path = tmp_path_factory.mktemp("classifier") / "c.safetensors"
    clocs.finetune(encoder, small_store, out=path, epochs=2)
    return path


def test_every_patient_has_a_prediction_a_confidence_and_an_outcome(
    session: Session, file: Path, small_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Columns(replace(session, models=SavedClassifiers([file])))
    assert made.packed()[0]["state"] == "working"
    until = time.monotonic() + 300
    while made.state == "working" and time.monotonic() < until:
        time.sleep(0.05)
    facts, arrays = made.packed()
    assert facts["state"] == "ready"
    columns = {one["name"]: one for one in facts["columns"]}
    assert {"prediction", "confidence", "outcome", "abstention"} <= columns.keys()
    assert 0 < arrays["confidence"].min() <= arrays["confidence"].max() <= 100
    for name, one in columns.items():
        assert len(arrays[name]) == len(session.codes)
        if "values" not in one:  # numbers
            assert one["step"] and arrays[name].dtype == np.float32
            continue
        assert arrays[name].max() < len(one["values"]) == len(set(one["values"]))
    table = clocs.predict(file, small_store).unique("patient", keep="first")
    counted = dict(table["predicted"].drop_nulls().value_counts().iter_rows())
    values = np.array(columns["prediction"]["values"])[arrays["prediction"]]
    assert {label: int((values == label).sum()) for label in counted} == counted
    monkeypatch.setattr("clocs.models.predict.predict", None)  # the next start reads them
    again = Columns(replace(session, models=SavedClassifiers([file])))
    again.packed()
    while again.state == "working" and time.monotonic() < until:
        time.sleep(0.05)
    assert (again.packed()[1]["prediction"] == arrays["prediction"]).all()


def test_one_of_several_labels_is_partly_right(session: Session, file: Path) -> None:
    models, rows = SavedClassifiers([file]), session.embeddings.rows
    several = pl.Series("labels", [list(models.first.card.labels)] * len(rows))
    embeddings = replace(session.embeddings, rows=rows.with_columns(several))
    made = Columns(replace(session, models=models, embeddings=embeddings))
    assert "outcome" in _finished(made)
    (outcome,) = (one for one in made.packed()[0]["columns"] if one["name"] == "outcome")
    assert {*outcome["values"]} - {"unknown"} == {"partly right"}


def test_a_store_that_is_too_large_says_so_until_its_predictions_are_kept(
    session: Session, file: Path, small_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clocs.models.predict.__version__", "another")  # nothing is kept yet
    monkeypatch.setattr("clocs.explorer.columns._MOST_PREDICTED", 5)
    models = SavedClassifiers([file])
    assert "more than 5 recordings" in unpredicted(session.stores, models)
    assert "prediction" not in _finished(Columns(replace(session, models=models)))
    clocs.predict(file, small_store)
    assert unpredicted(session.stores, models) == ""
    assert "prediction" in _finished(Columns(replace(session, models=models)))


def _finished(columns: Columns) -> set[str]:
    """Names of the columns in which anything is known."""
    until = time.monotonic() + 300
    while columns.packed()[0]["state"] == "working" and time.monotonic() < until:
        time.sleep(0.05)
    facts, arrays = columns.packed()
    names = {one["name"]: one.get("values") for one in facts["columns"]}
    return {name for name, values in names.items() if values != ["unknown"] and len(arrays[name])}


def test_columns_of_a_store_tell_nothing_that_is_computed_from_ids(session: Session) -> None:
    facts, _ = Columns(session).packed()
    assert not {"fold", "taken"} & {one["name"] for one in facts["columns"]}


def test_a_label_has_the_same_color_in_every_store() -> None:
    chapman = [label_name(label, "chapman") for label in ("AFIB", "GSVT", "SB", "SR")]
    challenge = [label_name(label, "physionet2017") for label in ("N", "A", "O", "~")]
    first, second = color_slots(chapman), color_slots(challenge)
    assert first[3] == second[0] and first[0] == second[1]  # sinus rhythm, atrial fibrillation
    assert len(set(first)) == len(set(second)) == 4
    demo = [label_name(label, "synthetic") for label in ("SR", "SB", "SVT", "AFIB")]
    assert color_slots(demo)[1] == first[2]
    both = color_slots(chapman + [label_name(label, "physionet2020") for label in ("AF", "Normal")])
    assert both[:4] == first and both[4:] == [first[0], first[3]]  # one meaning, one color
    many = [label_name(f"label {i}") for i in range(50)]
    assert len(set(color_slots(many))) == 50


@pytest.mark.filterwarnings("ignore::clocs.errors.ClocsWarning")
@pytest.mark.parametrize("name", ["cmsmlc-many-leads", "cmsc-chapman"])
def test_a_store_of_one_lead_without_a_name_is_explored_with_shipped_encoders(
    name: str, tmp_path: Path
) -> None:
    signal = np.random.default_rng(0).normal(size=(6, 1, 3600)).astype(np.float32)
    patients = [f"p{i}" for i in range(6)]
    clocs.from_arrays(signal, patients, rate=300, leads=["ECG"], out=tmp_path / "store")
    made = open_session(
        stores=[tmp_path / "store"], checkpoint=Path(name), cache=tmp_path / "cache"
    )
    assert len(made.codes) == 6
