"""`clocs export`, as a person types it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from clocs import Checkpoint, Store
from clocs.cli.main import Root


@pytest.fixture
def file(checkpoint: Checkpoint, tmp_path: Path) -> Path:
    checkpoint.save(tmp_path / "encoder.safetensors")
    return tmp_path / "encoder.safetensors"


def export(*words: object) -> str:
    done = CliRunner().invoke(Root(), ["export", *map(str, words)])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_the_command_writes_a_model_and_prints_the_greatest_difference(
    file: Path, small_store: Store, tmp_path: Path
) -> None:
    out = tmp_path / "hub"
    words = export(file, "--to", "hub", "--out", out, "--check", small_store.path)
    assert (out / "model.safetensors").is_file()
    assert "hub" in words and "Greatest difference on 80 recordings: 0.0e+00 to the" in words


def test_the_command_prints_json(file: Path, tmp_path: Path) -> None:
    out = tmp_path / "hub"
    found = json.loads(export(file, "--to", "hub", "--out", out, "--json"))
    assert found == {"path": str(out), "difference": None}
