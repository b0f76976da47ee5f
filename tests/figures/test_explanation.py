"""Explanations on ECG paper, in Python and on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

import clocs
from clocs.figures.ecg_paper import ecg_paper
from clocs.figures.explanation import explanation_paper
from clocs.store.store import Store
from clocs.training.checkpoint import Checkpoint
from command_line import as_json
from command_line import clocs as command
from some_classifier import some_classifier


@pytest.fixture(scope="module")
def model(checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("model") / "rhythm.safetensors"
    some_classifier(checkpoint).save(file)
    return file


def test_shading_is_orange_where_positive_and_blue_where_negative(small_store: Store) -> None:
    one = small_store.recording(0).select(["II"])
    values = np.zeros(one.samples)
    values[1000:2000], values[3000:4000], values[4500:] = 1, -1, np.nan
    figure = ecg_paper(one, shading={"II": values})
    (image,) = figure.axes[0].images
    made = np.asarray(image.get_array())[0]
    red, blue, opacity = made[..., 0], made[..., 2], made[..., 3]
    assert (red[1000:2000] > blue[1000:2000]).all() and (red[3000:4000] < blue[3000:4000]).all()
    assert (opacity > 0.5).sum() == 2000 and (opacity == 0).sum() == one.samples - 2000
    left, right, low, high = image.get_extent()
    assert right - left == pytest.approx(25 * one.seconds) and high > low


def test_the_page_names_leads_label_probability_and_that_it_is_no_diagnosis(
    model: Path, small_store: Store
) -> None:
    made = clocs.explain(model, small_store.recording(0))
    words = [text.get_text() for text in explanation_paper(made).axes[0].texts]
    assert {*made.leads} <= {*words}
    assert any(made.label in text and f"{made.probability:.2f}" in text for text in words)
    assert any("Not a diagnosis." in text for text in words)


@pytest.mark.parametrize("suffix", ["png", "svg", "json"])
def test_the_command_writes_a_picture_or_numbers(
    suffix: str, model: Path, small_store: Store, tmp_path: Path
) -> None:
    name, out = small_store.table["id"][0], tmp_path / "new" / f"explanation.{suffix}"
    asked = ("--recording", name, "--label", "AF", "--start", "1", "--seconds", "4")
    facts = as_json("explain", model, small_store.path, *asked, "--out", out)
    assert facts["label"] == "AF" and facts["recording"] == name and facts["file"] == str(out)
    assert facts["logit_without"] < facts["logit"]
    if suffix == "png":
        assert imread(out).shape[1] > 500
    elif suffix == "svg":
        assert out.read_text("utf-8").startswith("<?xml")
    else:
        found = json.loads(out.read_text("utf-8"))
        assert {len(values) for values in found["attribution"].values()} == {
            round(4 * found["rate"])
        }


def test_the_command_refuses_other_files_and_unknown_labels(
    model: Path, small_store: Store, tmp_path: Path
) -> None:
    store = (small_store.path, "--recording", small_store.table["id"][0])
    said = command("explain", model, *store, "--out", tmp_path / "a.gif", code=1).stderr
    assert "--out" in said and ".svg" in said
    unknown = ("--label", "X", "--out", tmp_path / "a.png")
    said = command("explain", model, *store, *unknown, code=1).stderr
    assert "choose a --label from AF, N, O" in said
    assert not list(tmp_path.iterdir())
