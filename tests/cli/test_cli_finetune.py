"""`clocs finetune`, and `clocs evaluate` of a classifier."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from clocs import Checkpoint, Store
from clocs.cli.main import Root
from clocs.errors import SettingError


def run(*words: object) -> str:
    done = CliRunner().invoke(Root(), [*map(str, words)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.fixture(scope="module")
def encoder(checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("encoder") / "seed-0.safetensors"
    checkpoint.save(file)
    return file


@pytest.fixture(scope="module")
def model(encoder: Path, small_store: Store) -> Path:
    file = encoder.parent / "rhythm.safetensors"
    words = run("finetune", encoder, small_store.path, "--out", file)
    assert "per recording" in words and "sens." in words and "AFIB" in words
    return file


def test_the_card_is_printed_as_json(encoder: Path, small_store: Store, tmp_path: Path) -> None:
    file = tmp_path / "whole.safetensors"
    printed = run(
        *("finetune", encoder, small_store.path, "--out", file, "--head", "whole", "--epochs", 1),
        *("--encoder-lr", 0.1, "--json"),
    )
    card = json.loads(printed)
    assert card["protocol"] == "finetune"
    assert card["training"]["settings"]["encoder_lr"] == 0.1


def test_evaluate_prints_the_scores_of_the_card(model: Path, small_store: Store) -> None:
    found = json.loads(run("evaluate", model, small_store.path, "--json"))
    from clocs.models.classifier import load_classifier

    expected = load_classifier(model).card.scores
    assert found["auc"] == pytest.approx(expected["auc"], abs=1e-9)
    assert found["ci95"] == pytest.approx(expected["ci95"], abs=1e-9)
    assert "calibration" in run("evaluate", model, small_store.path, "--resamples", 0)


def test_options_of_training_are_refused_for_a_classifier(model: Path, small_store: Store) -> None:
    with pytest.raises(SettingError, match="leave out `fraction`, `protocol`"):
        run("evaluate", model, small_store.path, "--protocol", "knn", "--fraction", 0.5)
    with pytest.raises(SettingError, match="alone"):
        run("evaluate", model, model, small_store.path)
