"""Models inside the package, by name."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest

import clocs
from clocs.datasets.download import PUBLICATIONS
from clocs.errors import CheckpointError, ClocsWarning
from clocs.training.card import SHIPPED, SHIPPED_FOLDER, weights_path
from clocs.training.checkpoint import Checkpoint, load_checkpoint, load_checkpoints

MAX_BYTES = 19_000_000


def test_all_weights_are_at_most_19_megabytes_and_each_file_belongs_to_a_model() -> None:
    files = {path for row in SHIPPED.values() for path in row.files}
    others = {SHIPPED_FOLDER / "models.toml", SHIPPED_FOLDER / "delineator.safetensors"}
    assert files | others == set(SHIPPED_FOLDER.iterdir())
    assert sum(path.stat().st_size for path in files) <= MAX_BYTES


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_model_is_loaded_by_its_name(name: str) -> None:
    model, row = clocs.load(name), SHIPPED[name]
    assert isinstance(model, Checkpoint if row.kind == "encoder" else clocs.Classifier)
    for checkpoint in (model,) if isinstance(model, Checkpoint) else model.encoders:
        for one in checkpoint.card.trained_on:  # only data whose license allows it
            assert PUBLICATIONS[one.dataset].license and PUBLICATIONS[one.dataset].citation


@pytest.mark.parametrize("dataset", ["chapman", "physionet2020"])
def test_the_papers_encoders_are_fully_trained(dataset: str) -> None:
    card = load_checkpoint(f"cmsc-{dataset}").card
    assert (card.method, card.dataset, card.leads) == ("cmsc", dataset, ("II", "V2", "aVL", "aVR"))
    assert card.encoder["name"] == "cnn" and card.encoder["embedding_dim"] == 128
    assert card.training["epochs"] == 400 and card.metrics["status"] in (
        "all epochs",
        "stopped early",
    )


def test_whatever_takes_a_checkpoint_takes_a_name() -> None:
    one = load_checkpoint("cmsc-chapman")
    (other,) = load_checkpoints(Path("cmsc-chapman"))
    assert one.fingerprint == other.fingerprint
    assert np.array_equal(one.recordings, other.recordings)


def test_a_path_wins_over_a_name_with_a_notice(
    checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint.save(tmp_path / "cmsc-chapman" / "seed-0.safetensors")
    monkeypatch.chdir(tmp_path)
    with pytest.warns(ClocsWarning, match="the former is used"):
        assert load_checkpoint("cmsc-chapman").fingerprint == checkpoint.fingerprint
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load_checkpoint("cmsc-physionet2020").card.dataset == "physionet2020"


def test_an_unknown_name_gets_a_sentence_with_close_ones() -> None:
    with pytest.raises(CheckpointError, match="did you mean cmsc-chapman"):
        clocs.load("CMSC-Chapmann")
    with pytest.raises(CheckpointError, match="give a path, or one of cmsc-chapman"):
        clocs.embed("zzz", "store")
    assert weights_path("runs/zzz") == Path("runs/zzz")  # a path, which need not be a name
    assert weights_path("zzz.safetensors") == Path("zzz.safetensors")


def test_the_name_of_a_retired_encoder_says_what_to_use() -> None:
    with pytest.raises(CheckpointError, match="no longer; use cmsmlc-many-leads"):
        clocs.load("cmsmlc-one-lead")


def test_a_classifier_is_refused_where_an_encoder_is_needed() -> None:
    with pytest.raises(CheckpointError, match="is a classifier, not an encoder"):
        clocs.embed("rhythm-chapman", "store")
    assert clocs.load(SHIPPED["rhythm-chapman"].file).card == clocs.load("rhythm-chapman").card
