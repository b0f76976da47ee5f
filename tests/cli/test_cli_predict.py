"""`clocs predict`."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest
import torch
from click.testing import CliRunner, Result

from clocs import Checkpoint, Store
from clocs.cli.main import Root
from clocs.models.classifier import Classifier
from clocs.training.card import ClassifierCard


def run(*words: object) -> Result:
    return CliRunner().invoke(Root(), [*map(str, words)], catch_exceptions=False)


@pytest.fixture(scope="module")
def model(checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(5)
    card = ClassifierCard(
        name="rhythm-test",
        dataset="synthetic",
        content="0",
        labels=("AF", "N"),
        multilabel=False,
        protocol="linear",
        encoders=(checkpoint.card,),
        temperature=(1.0, 1.0),
        thresholds=(None, None),
        limits={"1": {"ecg_share": 0.99}},
    )
    dim = checkpoint.encoder.embedding_dim
    head = {"weight": torch.randn(1, dim, 2), "bias": torch.randn(1, 2)}
    file = tmp_path_factory.mktemp("model") / "rhythm.safetensors"
    Classifier(card, (checkpoint,), head, {}).save(file)
    return file


def test_a_table_is_shown_or_written(model: Path, small_store: Store, tmp_path: Path) -> None:
    done = run("predict", model, small_store.path, "--split", "test", "--over-time", 10)
    assert done.exit_code == 0
    assert "0:00:10.0" in done.stdout and "abstained from" in done.stdout
    out = tmp_path / "made.csv"
    done = run("predict", model, small_store.path, "--split", "test", "--out", out)
    assert done.exit_code == 0 and f"Written to {out}" in done.stdout.replace("\n", "")
    assert "p(AF)" in pl.read_csv(out).columns


def test_a_file_that_cannot_be_used_ends_with_1_and_its_reason(model: Path, tmp_path: Path) -> None:
    (tmp_path / "broken.hea").write_text("nonsense\n")
    done = run("predict", model, tmp_path / "broken.hea", "--json")
    assert done.exit_code == 1
    made = json.loads(done.stdout)
    (row,) = made["rows"]
    assert made["labels"].keys() == {"AF", "N"}
    assert row["problem"] and row["predicted"] is None and "broken" in row["file"]


def test_a_reason_names_the_option_that_helps(model: Path, tmp_path: Path) -> None:
    rows = "\n".join(f"{1000 * (i % 200 == 0)}" for i in range(6000))
    (tmp_path / "other.csv").write_text(f"V9\n{rows}\n")
    done = run("predict", model, tmp_path / "other.csv", "--rate", 500)
    assert done.exit_code == 1 and "with --leads" in done.stderr
    assert "0 of 1 recordings predicted" in done.stdout and "│" not in done.stdout
