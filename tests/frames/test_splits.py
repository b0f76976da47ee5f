from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clocs.errors import SettingError
from clocs.frames.splits import (
    PARTS,
    assign,
    keys_of,
    labeled_subset,
    one_person,
    row_keys,
    without_copies,
)

names = st.text(min_size=0, max_size=12)
people = st.lists(names, min_size=1, max_size=40)


def reference(patient: str, dataset: str, seed: int) -> str:
    u = int(hashlib.sha256(f"{seed}:{dataset}:{patient}".encode()).hexdigest()[:16], 16) / 2**64
    return "train" if u < 0.6 else "validation" if u < 0.8 else "test"


@given(names, names, st.integers(0, 9))
def test_part_is_the_published_hash_rule(patient: str, dataset: str, seed: int) -> None:
    assert PARTS[assign([patient], dataset, seed)[0]] == reference(patient, dataset, seed)


@pytest.mark.parametrize(
    "key", [0, 1, 2**53 + 1, 2**64 - 1, *(int(0.6 * 2**64) + d for d in (-1024, -1, 0, 1, 1024))]
)
def test_numpy_makes_the_same_float_of_a_hash_as_python(key: int) -> None:
    assert float(np.uint64(key) / 2.0**64) == key / 2**64


@given(people, people)
def test_no_patient_moves_when_others_are_added_or_dropped(
    some: list[str], more: list[str]
) -> None:
    alone = dict(zip(some, assign(some, "d", 0), strict=True))
    together = dict(zip(more + some, assign(more + some, "d", 0), strict=True))
    assert all(together[patient] == part for patient, part in alone.items())


@given(people)
def test_no_patient_is_in_two_parts(patients: list[str]) -> None:
    parts = assign(patients + patients, "d", 0)
    assert len(set(zip(patients + patients, parts, strict=True))) == len(set(patients))


def test_parts_are_about_60_20_20_percent() -> None:
    share = np.bincount(assign([f"p{i}" for i in range(20_000)], "d", 0)) / 20_000
    assert np.allclose(share, [0.6, 0.2, 0.2], atol=0.01)
    assert PARTS == ("train", "validation", "test")


def test_parts_depend_on_the_dataset_and_the_split_seed() -> None:
    patients = [f"p{i}" for i in range(200)]
    first = assign(patients, "d", 0)
    assert (first != assign(patients, "e", 0)).any()
    assert (first != assign(patients, "d", 1)).any()


fractions = st.floats(0.01, 1.0)


@given(st.integers(1, 300), fractions, fractions, st.integers(0, 5))
def test_labeled_frames_are_nested_and_exactly_as_many_as_asked_for(
    n: int, one: float, other: float, seed: int
) -> None:
    keys = keys_of(f"row{i}" for i in range(n))
    low, high = sorted((one, other))
    few, many = (_subset(keys, seed=seed, fraction=fraction) for fraction in (low, high))
    assert few.sum() == max(1, round(low * n))
    assert not (few & ~many).any()


@given(st.integers(1, 60), fractions)
def test_by_patient_all_rows_of_a_chosen_patient_are_labeled(n: int, fraction: float) -> None:
    patients = keys_of(f"p{i}" for i in range(n)).repeat(3)
    mask = _subset(patients, fraction=fraction, by="patient").reshape(n, 3)
    assert (mask.all(axis=1) == mask.any(axis=1)).all()
    assert mask.any(axis=1).sum() == max(1, round(fraction * n))


def test_labeled_rows_do_not_depend_on_the_order_of_rows() -> None:
    keys = keys_of(f"row{i}" for i in range(500))
    order = np.random.default_rng(0).permutation(500)
    assert (_subset(keys)[order] == _subset(keys[order])).all()


def test_labeled_rows_differ_between_seeds_datasets_and_split_seeds() -> None:
    keys = keys_of(f"row{i}" for i in range(500))
    masks = [
        _subset(keys),
        _subset(keys, seed=1),
        _subset(keys, dataset="e"),
        _subset(keys, split_seed=1),
    ]
    assert len({mask.tobytes() for mask in masks}) == 4


@pytest.mark.parametrize("fraction", [0.0, -0.5, 1.5, float("nan")])
def test_a_fraction_outside_0_to_1_is_refused(fraction: float) -> None:
    with pytest.raises(SettingError, match="above 0 and at most 1"):
        _subset(keys_of(["a"]), fraction=fraction)


def test_row_keys_are_distinct_and_depend_on_names_alone() -> None:
    recordings, leads = keys_of(["a", "b", "c"]), keys_of(["II", "V2"])
    keys = row_keys(recordings[:, None, None], np.arange(4)[None, :, None], leads)
    assert np.unique(keys).size == 3 * 4 * 2
    assert keys[1, 2, 1] == row_keys(keys_of(["b"]), [2], keys_of(["V2"]))[0]


def _subset(keys: np.ndarray, **settings: object) -> np.ndarray:
    usual: dict[str, object] = {
        "dataset": "d",
        "split_seed": 0,
        "seed": 0,
        "fraction": 0.3,
        "by": "frame",
    }
    return labeled_subset(keys, **(usual | settings))  # type: ignore[arg-type]


def test_patients_who_share_a_recording_are_one_patient_of_the_first_id() -> None:
    recording = np.array([0, 1, 2, 3, 3, 4])
    digests = np.array([7, 8, 7, 9, 8, 5], np.uint64)  # c's is b's first, d's second is a's
    person = one_person(("b", "a", "c", "d", "e"), recording, digests)
    assert person.tolist() == [0, 1, 0, 1, 4]
    chained = np.array([7, 8, 7, 7, 8, 5], np.uint64)
    assert one_person(("b", "a", "c", "d", "e"), recording, chained).tolist() == [1, 1, 1, 1, 4]


def test_a_recording_is_in_the_last_part_that_has_a_copy_of_it() -> None:
    part = np.array([0, 2, 1, 0, 1, 2, 2, 0], np.int8)
    digests = np.array([1, 1, 2, 2, 3, 3, 3, 4], np.uint64)
    assert without_copies(part, digests).tolist() == [-1, 2, 1, -1, -1, 2, 2, 0]
