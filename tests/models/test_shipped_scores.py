"""The scores in a classifier's card are those of its test patients, read from their files."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path

import pytest

import clocs
from clocs.datasets.base import open_dataset
from clocs.frames.splits import assign
from clocs.models.classifier import load_classifier
from clocs.store.prepare import prepare_dataset
from clocs.store.store import Store

DATASET = "physionet2017"
TEST = 2


@pytest.fixture(scope="module")
def test_patients(real_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A store of the test patients alone, whom a hash of their IDs finds."""
    folder = tmp_path_factory.mktemp(DATASET)
    with zipfile.ZipFile(real_data / DATASET / f"{DATASET}.zip") as file:
        names = sorted({Path(name).stem for name in file.namelist() if name.endswith(".hea")})
        parts = assign(names, DATASET)
        for name, part in zip(names, parts, strict=True):
            if part == TEST:
                file.extractall(folder, [f"{name}.hea", f"{name}.dat"])
    shutil.copyfile(real_data / DATASET / "REFERENCE.csv", folder / "REFERENCE.csv")
    return prepare_dataset(open_dataset(DATASET, folder), folder / "store")


def test_a_cards_scores_are_printed_again_on_its_test_patients(test_patients: Store) -> None:
    classifier = load_classifier("rhythm-physionet2017")
    found = clocs.evaluate_classifier(classifier, test_patients, resamples=0)
    card = classifier.card.scores
    assert found["recordings"] == card["recordings"] and found["patients"] == card["patients"]
    assert found["confusion"] == card["confusion"]
    for name in ("auc", "ap", "f1", "accuracy"):
        assert found[name] == pytest.approx(card[name], abs=1e-4), name
    for label, own in card["per_class"].items():
        assert found["per_class"][label] == pytest.approx(own, abs=1e-4), label
