"""A shipped classifier scores as its card says, on a few of its test patients' files."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path

import pytest

import clocs
from clocs.datasets.base import open_dataset
from clocs.frames.splits import assign
from clocs.models.classifier import load_classifier
from clocs.store.prepare import prepare
from clocs.store.store import Store

DATASET = "physionet2017"
TEST = 2


@pytest.fixture(scope="module")
def test_patients(real_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A store of every 32nd test patient; a hash of their IDs finds them."""
    folder = tmp_path_factory.mktemp(DATASET)
    with zipfile.ZipFile(real_data / DATASET / f"{DATASET}.zip") as file:
        names = sorted({Path(name).stem for name in file.namelist() if name.endswith(".hea")})
        parts = assign(names, DATASET)
        chosen = [name for name, part in zip(names, parts, strict=True) if part == TEST]
        for name in chosen[::32]:
            file.extractall(folder, [f"{name}.hea", f"{name}.dat"])
    shutil.copyfile(real_data / DATASET / "REFERENCE.csv", folder / "REFERENCE.csv")
    return prepare(open_dataset(DATASET, folder), out=folder / "store")


# Of every 32nd test patient, recorded when all of them gave the card's scores to the last digit.
CONFUSION = [[29, 0, 0, 0], [0, 2, 2, 0], [7, 0, 11, 0], [1, 0, 0, 3]]
SCORES = {"auc": 0.92964, "ap": 0.84061, "f1": 0.77807, "accuracy": 0.81818}


def test_a_shipped_classifier_scores_as_when_its_card_was_made(test_patients: Store) -> None:
    classifier = load_classifier("rhythm-physionet2017")
    found = clocs.evaluate_classifier(classifier, test_patients, resamples=0)
    assert found["recordings"] == found["patients"] == 55
    assert found["confusion"] == CONFUSION
    for name, value in SCORES.items():
        assert found[name] == pytest.approx(value, abs=1e-4), name
    assert found["auc"] == pytest.approx(classifier.card.scores["auc"], abs=0.03)
