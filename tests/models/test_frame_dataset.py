"""A store's frames in one's own training loop."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, get_worker_info

import clocs
from clocs import Frames, FrameSpec, Store
from clocs.errors import SettingError
from clocs.frames.splits import PARTS


def test_items_are_the_frames_in_mv(small_store: Store, usual_frames: Frames) -> None:
    dataset = clocs.torch_dataset(small_store)
    assert len(dataset) == len(usual_frames)
    item = dataset[5]
    expected = np.stack([usual_frames.windows(np.array([5]), lead)[0] for lead in range(4)])
    assert np.array_equal(item["signal"].numpy(), expected)
    assert item["has_lead"].all()
    assert item["target"].tolist() == usual_frames.target[5].tolist()
    assert dataset.patients[item["patient"]] == small_store.recording(item["recording"]).patient
    assert item["segment"] == usual_frames.segment[5]
    assert (dataset.leads, dataset.unit) == (usual_frames.leads, "mV")


def test_normalized_items_reach_from_0_to_1(small_store: Store) -> None:
    dataset = clocs.torch_dataset(small_store, normalize=True, leads=["II"], frame=2.5)
    signal = dataset[0]["signal"]
    assert signal.shape == (1, 2500)
    assert (signal.min(), signal.max()) == (0, 1)


def test_parts_share_no_patient_and_make_up_the_whole(small_store: Store) -> None:
    parts = [clocs.torch_dataset(small_store, split=split, split_seed=2) for split in PARTS]
    patients = [{part[i]["patient"] for i in range(len(part))} for part in parts]
    assert sum(map(len, patients)) == 40
    assert not patients[0] & patients[2]
    assert sum(map(len, parts)) == len(clocs.torch_dataset(small_store))
    with pytest.raises(SettingError, match="no split 'dev'"):
        clocs.torch_dataset(small_store, split="dev")


def test_folds_of_ones_own_are_the_parts() -> None:
    X = np.random.default_rng(0).normal(size=(6, 1, 1000))
    folds = ["train", "train", "train", "val", "test", "test"]
    store = clocs.from_arrays(X, "abcdef", rate=100, leads=["II"], folds=folds)
    sizes = [len(clocs.torch_dataset(store, split=split)) for split in PARTS]
    assert sizes == [6, 2, 4]


def test_unlabeled_frames_have_zeros_and_may_be_left_out() -> None:
    X = np.random.default_rng(0).normal(size=(6, 1, 1000))
    store = clocs.from_arrays(
        X, "abcdef", rate=100, leads=["II"], labels=["AF", None, "SR", None, "SR", "AF"]
    )
    dataset = clocs.torch_dataset(store)
    assert [int(dataset[i]["target"].sum()) for i in range(4)] == [1, 1, 0, 0]
    assert len(clocs.torch_dataset(store, labeled=True)) == 8


def test_a_missing_lead_is_nan_never_zero() -> None:
    X = np.random.default_rng(0).normal(size=(4, 2, 1000))
    X[1, 0] = np.nan  # a lead without a single value
    X[2, 1, 10:20] = np.nan  # a gap, in the first frame
    store = clocs.from_arrays(X, "abcd", rate=100, leads=["I", "II"], frame=FrameSpec(5.0, 500))
    for normalize in (False, True):
        dataset = clocs.torch_dataset(store, normalize=normalize)
        items = [dataset[i] for i in range(len(dataset))]
        for index, lead in ((2, 0), (3, 0), (4, 1)):
            assert items[index]["signal"][lead].isnan().all()
            assert not items[index]["has_lead"][lead]
            assert items[index]["signal"][1 - lead].isfinite().all()
        assert items[5]["signal"].isfinite().all()


def _worker_shares(batch: list[dict[str, Any]]) -> tuple[bool, int, torch.Tensor]:
    worker: Any = get_worker_info()
    return worker.dataset._signals.is_shared(), worker.id, batch[0]["signal"]


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_workers_share_one_copy_of_the_signals(start: str, small_store: Store) -> None:
    dataset = clocs.torch_dataset(small_store)
    workers = 1 if start == "spawn" else 2  # each imports torch, which takes seconds
    loader: Any = DataLoader(
        dataset,
        batch_size=80,
        num_workers=workers,
        multiprocessing_context=start,
        collate_fn=_worker_shares,
    )
    batches = list(loader)
    assert {worker for _, worker, _ in batches} == set(range(workers))
    assert torch.equal(batches[0][2], dataset[0]["signal"])
    if start == "spawn":  # forked processes share whatever nobody writes to
        assert all(shared for shared, _, _ in batches)


def test_the_usual_collation_makes_batches(small_store: Store) -> None:
    batch = next(iter(DataLoader(clocs.torch_dataset(small_store), batch_size=8)))
    assert batch["signal"].shape == (8, 4, 2500)
    assert batch["target"].shape == (8, 4)
    assert len(batch["recording"]) == 8
