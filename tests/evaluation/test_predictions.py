from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from clocs.errors import StoreError
from clocs.evaluation import result as module
from clocs.evaluation.result import Predictions
from damage import read_damaged
from evaluation_parts import predictions


def test_predictions_survive_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = predictions()
    made.save(tmp_path / "p.safetensors")
    again = Predictions.load(tmp_path / "p.safetensors")
    for name, value in made.__dict__.items():
        assert np.array_equal(getattr(again, name), value), name
    monkeypatch.setattr(module, "FILE", replace(module.FILE, format=2))
    made.save(tmp_path / "old.safetensors")
    monkeypatch.undo()
    with pytest.raises(StoreError, match="format 2, but this version of clocs reads format 3"):
        Predictions.load(tmp_path / "old.safetensors")
    (tmp_path / "p.safetensors").write_bytes(b"nothing")
    with pytest.raises(StoreError, match=r"not a file of predictions.*evaluate again"):
        Predictions.load(tmp_path / "p.safetensors")


def test_no_flipped_bit_of_predictions_changes_what_is_read(tmp_path: Path) -> None:
    path = tmp_path / "p.safetensors"
    predictions().save(path)

    def read() -> object:
        found = vars(Predictions.load(path))
        return {k: v.tobytes() if isinstance(v, np.ndarray) else v for k, v in found.items()}

    assert read_damaged(path, read) > 150
