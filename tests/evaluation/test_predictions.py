from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from clocs.errors import StoreError
from clocs.evaluation import result as module
from clocs.evaluation.result import Predictions
from damage import read_damaged
from evaluation_parts import compare, predictions


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


def test_rows_are_matched_by_the_name_of_their_lead() -> None:
    both = predictions()
    second = both.where(both.lead == 1)
    renumbered = replace(second, leads=("V2",), lead=np.zeros(len(second), np.int64))
    assert [len(one) for one in module.shared_rows([both, renumbered])] == [len(second)] * 2


def test_only_rows_that_both_have_are_compared() -> None:
    whole = predictions()
    part = whole.where(whole.patient >= 10)
    assert compare(part, whole).difference == 0.0
