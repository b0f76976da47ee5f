"""A store as a dataset of Hugging Face."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import clocs
from clocs import Store

datasets = pytest.importorskip("datasets")


def test_rows_are_the_recordings(small_store: Store, tmp_path: Path) -> None:
    made = clocs.huggingface_dataset(small_store, cache=tmp_path)
    assert made.num_rows == len(small_store)
    row, recording = made[7], small_store.recording(7)
    assert (row["id"], row["patient"], row["rate"]) == (recording.id, recording.patient, 500.0)
    assert tuple(row["leads"]) == recording.leads
    assert np.array_equal(np.array(row["signal"], np.float32), recording.signal.astype(np.float32))
    names = made.features["labels"].feature.names
    assert tuple(names[label] for label in row["labels"]) == recording.labels
    assert (row["age"], row["sex"], row["taken"]) == (
        recording.age,
        recording.sex,
        recording.recorded_at,
    )


def test_parts_and_leads_can_be_chosen_and_gaps_are_nan(tmp_path: Path) -> None:
    X = np.random.default_rng(0).normal(size=(30, 2, 600))
    X[:, 1, 5] = np.nan
    X[3, 1] = np.nan
    store = clocs.from_arrays(X, range(30), rate=100, leads=["I", "II"])
    parts = [
        clocs.huggingface_dataset(store, split=split, cache=tmp_path)
        for split in ("train", "validation", "test")
    ]
    assert sum(part.num_rows for part in parts) == 30
    assert set(parts[2]["split"]) == {"test"}
    second = clocs.huggingface_dataset(store, leads=["II"], cache=tmp_path)
    assert second.num_rows == 29
    assert np.flatnonzero(np.isnan(second[0]["signal"][0])).tolist() == [5]
    both = clocs.huggingface_dataset(store, leads=["II", "I"], cache=tmp_path)
    assert [both[i]["leads"] for i in (2, 3)] == [["II", "I"], ["I"]]
    with pytest.raises(clocs.ClocsError, match="no split"):
        clocs.huggingface_dataset(store, split="dev")


def test_official_folds_are_the_parts(tmp_path: Path) -> None:
    X = np.random.default_rng(0).normal(size=(6, 1, 1000))
    store = clocs.from_arrays(X, "abcdef", rate=100, leads=["II"], folds=[1, 1, 1, 2, 3, 3])
    rows = clocs.huggingface_dataset(store, streaming=True, split="test")
    assert [row["patient"] for row in rows] == ["e", "f"]


def test_a_streamed_view_writes_nothing(small_store: Store, tmp_path: Path) -> None:
    made = clocs.huggingface_dataset(small_store, streaming=True, cache=tmp_path)
    first = next(iter(made))
    assert first["id"] == small_store.table["id"][0]
    assert list(tmp_path.iterdir()) == []


def test_another_store_is_not_taken_from_the_cache(tmp_path: Path) -> None:
    for seed in (0, 1):
        X = np.random.default_rng(seed).normal(size=(4, 1, 300)).round(2)
        store = clocs.from_arrays(X, "abcd", rate=100, leads="II")
        made = clocs.huggingface_dataset(store, cache=tmp_path)
        assert np.allclose(made[2]["signal"], X[2])


def test_without_the_package_a_sentence_says_how_to_install_it(
    small_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(clocs.ClocsError, match=r"pip install '\.\[huggingface\]'"):
        clocs.huggingface_dataset(small_store)
