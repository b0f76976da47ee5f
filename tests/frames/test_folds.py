"""Official folds as the split, and what the leak guard makes of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import clocs
from clocs import Store
from clocs.errors import ClocsWarning, LeakError, SettingError
from clocs.frames.frames import Frames, join
from clocs.frames.make import make_frames
from clocs.frames.splits import Folds, assign, chosen_folds, split_of, usual_folds
from clocs.models.describe import store_facts
from clocs.recording import FrameSpec, Recording
from clocs.store.prepare import prepare
from clocs.training import Settings
from clocs.training.card import parse_card
from clocs.training.checkpoint import check_no_leak, check_parts, seen_by
from fake_dataset import FakeDataset

FRAME = FrameSpec(2.5, 512)
ONE_EPOCH = Settings(epochs=1, patience=1, batch_size=16)
TEN = Folds(("10",), ("9",))


def in_tenths(number: int, recording: Recording) -> Recording:
    """Two recordings of each patient, one fold per patient; two patients have none."""
    patient = number // 2
    fold = None if patient in (4, 15) else str(patient % 10 + 1)
    return replace(recording, fold=fold, episodes=())


def fake(folder: Path, change: object = in_tenths, **options: object) -> Store:
    made = FakeDataset(count=80, frame=FRAME, segment_frame=FRAME, **options)  # type: ignore[arg-type]
    made.change = change  # type: ignore[assignment]
    return prepare(made, out=folder)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return fake(tmp_path_factory.mktemp("folds") / "store")


@pytest.fixture(scope="module")
def trained(store: Store, tmp_path_factory: pytest.TempPathFactory) -> list[clocs.Checkpoint]:
    out = tmp_path_factory.mktemp("trained")
    return clocs.pretrain(store, out=out, settings=ONE_EPOCH, device="cpu", embedding_dim=8)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["train", "val", "test"], Folds(("test",), ("val",))),
        (["Train", "Validation", "TEST"], Folds(("TEST",), ("Validation",))),
        (["training", "test"], Folds(("test",), ())),
        ([str(i) for i in range(1, 11)], TEN),
        (["0", "1"], Folds(("1",), ())),
        (["A", "B"], None),
        (["1"], None),
        (["train", "val"], None),
        ([], None),
    ],
)
def test_names_mean_what_they_say_and_of_numbers_the_highest_is_tested(
    names: list[str], expected: Folds | None
) -> None:
    assert usual_folds(names) == expected


def test_folds_that_do_not_exist_or_cannot_be_told_are_named() -> None:
    with pytest.raises(SettingError, match="has no fold 11; it has 1, 2, 10"):
        chosen_folds(Folds(("11",)), ["10", "1", "2"], store="mine")
    with pytest.raises(SettingError, match=r"is unclear .* \(A, B\) .* `test_folds`"):
        chosen_folds("folds", ["A", "B"], store="mine")
    with pytest.raises(SettingError, match="has no folds"):
        chosen_folds("folds", [], store="mine")
    assert chosen_folds(None, ["A", "B"], store="mine") is None
    assert chosen_folds("hash", ["1", "2", "3"], store="mine") is None
    with pytest.raises(SettingError, match="none for both"):
        Folds(("1",), ("1",))
    with pytest.raises(SettingError, match="leave out `split`"):
        split_of("hash", ["1"], None)
    with pytest.raises(SettingError, match="give `test_folds` with it"):
        split_of(None, None, ["1"])
    assert split_of(None, ["1"], None) == Folds(("1",))


def test_folds_that_cannot_be_told_apart_are_not_the_split_which_is_said(tmp_path: Path) -> None:
    def lettered(number: int, recording: Recording) -> Recording:
        return replace(recording, fold="AB"[number // 2 % 2], episodes=())

    store = fake(tmp_path / "store", lettered)
    with pytest.warns(ClocsWarning, match=r"is unclear .* \(A, B\) .* split by hash"):
        frames = make_frames(store)
    assert not frames.folds


def test_the_folds_of_a_store_are_its_split_by_default(store: Store) -> None:
    frames = make_frames(store)
    fold = np.array(frames.fold)[frames.patient]
    np.testing.assert_array_equal(frames.split == 2, fold == "10")
    np.testing.assert_array_equal(frames.split == 1, fold == "9")
    assert (frames.split[fold == ""] == 0).all() and (fold == "").any()
    assert frames.folds == {"fake": TEN}
    check_parts(frames)
    facts = store_facts(store)
    assert facts["folds"] == {"test": ["10"], "validation": ["9"]}
    assert facts["splits"]["test"]["frames"] == int(frames.present[frames.split == 2].sum())
    chosen = make_frames(store, split=Folds(("3", "4"), ("5",)))
    assert set(np.array(chosen.fold)[chosen.patient[chosen.split == 2]]) == {"3", "4"}
    hashed = make_frames(store, split="hash")
    np.testing.assert_array_equal(hashed.split, assign(hashed.patient_ids, "fake")[hashed.patient])
    assert hashed.folds == {}


def test_without_a_validation_fold_other_patients_are_validated_on(store: Store) -> None:
    frames = make_frames(store, split=Folds(("10",)))
    parts = frames.with_split_seed(0)
    np.testing.assert_array_equal(parts.split, frames.split)
    shares = np.bincount(frames.split) / len(frames)
    assert 0.1 < shares[1] < 0.4
    assert set(np.array(frames.fold)[frames.patient[frames.split == 2]]) == {"10"}
    assert (frames.with_split_seed(1).split != frames.split).any()


def test_without_a_validation_fold_all_patients_of_the_test_fold_are_tested_on() -> None:
    patients = [f"mine:{number}" for number in range(100)]
    assert (Folds(("10",)).parts(patients, ["10"] * 100, split_seed=0) == 2).all()


def test_a_patient_in_folds_of_two_parts_is_never_trained_and_tested_on(tmp_path: Path) -> None:
    def torn(number: int, recording: Recording) -> Recording:
        return replace(recording, fold=str(number % 10 + 1), episodes=())

    store = fake(tmp_path / "torn", torn)
    with pytest.warns(ClocsWarning, match=r"patients .* in folds of two parts, such as p4 in 9"):
        frames = make_frames(store)
    assert frames.folds == {}
    with pytest.raises(SettingError, match="the same person could be trained and tested on"):
        make_frames(store, split="folds")
    make_frames(store, split=Folds(("9", "10"), ("7",)))  # whole patients


def test_saved_and_joined_frames_keep_their_folds(store: Store, tmp_path: Path) -> None:
    frames = make_frames(store)
    frames.save(tmp_path / "frames.safetensors")
    back = Frames.load(tmp_path / "frames.safetensors")
    assert (back.fold, back.folds) == (frames.fold, frames.folds)
    other = make_frames(
        fake(tmp_path / "other", lambda _, one: replace(one, episodes=()), name="x")
    )
    both = join([frames, other])
    assert both.folds == {"fake": TEN}
    alone = np.concatenate([frames.split, other.split])
    assert 0.3 < (both.split == alone).mean() < 1  # the other has the same recordings
    assert set(alone[both.split != alone]) <= {0, 1} and both.split[both.split != alone].max() < 0
    check_parts(both)
    with pytest.raises(SettingError, match="two stores of fake are split in two ways"):
        join([frames, make_frames(store, split="hash")])


def test_the_card_says_which_folds_were_not_trained_on(
    trained: list[clocs.Checkpoint], store: Store
) -> None:
    card = parse_card(trained[0].card.json())
    assert card.trained_on[0].folds == TEN
    assert (
        b'"folds"'
        not in replace(card, trained_on=(replace(card.trained_on[0], folds=None),)).json()
    )


def test_an_encoder_trained_by_folds_is_tested_by_them_and_refused_elsewhere(
    trained: list[clocs.Checkpoint], store: Store, tmp_path: Path
) -> None:
    check_no_leak(trained[0], make_frames(store))
    found = clocs.evaluate(trained, store, settings=ONE_EPOCH, resamples=0, device="cpu")
    assert found.split == "folds: test 10; validation 9"
    for split in ("hash", Folds(("1",), ("10",))):
        with pytest.raises(LeakError, match=r"folds: test 10; validation 9.* the same folds"):
            check_no_leak(trained[0], make_frames(store, split=split))
    by_hash = clocs.pretrain(
        store, split="hash", out=tmp_path, settings=ONE_EPOCH, device="cpu", embedding_dim=8
    )
    with pytest.raises(LeakError, match=r"split seed 0.* 'hash' as `split`"):
        check_no_leak(by_hash[0], make_frames(store))


def test_where_folds_are_unknown_recordings_tell_who_was_trained_on(
    trained: list[clocs.Checkpoint], store: Store, tmp_path: Path
) -> None:
    bare = fake(tmp_path / "bare", lambda _, one: replace(one, episodes=()))
    frames = make_frames(bare)
    with pytest.raises(LeakError, match="belong to the parts"):
        check_no_leak(trained[0], frames)
    fold = dict(zip(store.table["patient"], store.table["fold"], strict=True))
    unseen = np.array([fold[name] == "10" for name in frames.patient_ids])
    check_no_leak(trained[0], replace(frames, split=2 * unseen[frames.patient].astype(np.int8)))
    # without the hashes anybody could have been trained on
    card = replace(trained[0].card, recording_hashes=False)
    hidden = replace(trained[0], card=card, recordings=np.zeros(0, np.uint64))
    with pytest.raises(LeakError, match="belong to the parts"):
        check_no_leak(hidden, replace(frames, split=2 * unseen[frames.patient].astype(np.int8)))


def test_searches_leave_out_patients_of_the_folds_trained_on(
    trained: list[clocs.Checkpoint], store: Store
) -> None:
    table = store.table
    folds = table["fold"].fill_null("").to_list()
    digests = np.zeros(len(store), np.uint64)
    seen = seen_by(trained[0], "fake", table["patient"].to_list(), digests, folds)
    assert seen.tolist() == [fold != "10" for fold in folds]
    assert seen_by(trained[0], "fake", table["patient"].to_list(), digests).all()
    found = clocs.retrieval(trained, store, device="cpu")
    assert found[0].patients_seen == 0
    rows = clocs.embed(trained[0], store, level="recording", device="cpu").rows
    tested = set(rows.filter(rows["split"] == "test")["recording"])
    assert tested == set(table.filter(table["fold"] == "10")["id"])


def test_copies_stay_together_and_no_test_patient_is_lost(tmp_path: Path) -> None:
    """By hash their patients are one; by folds the training copy is left out."""
    first: dict[int, Recording] = {}

    def doubled(number: int, recording: Recording) -> Recording:
        """Recordings 40 to 79 are those of 0 to 39, of other patients and folds."""
        recording = in_tenths(number + number // 40 * 2, recording)
        same = first.setdefault(number % 40, recording)
        return replace(recording, digital=same.digital)

    made = fake(tmp_path / "store", doubled)
    for split in ("hash", "folds"):
        frames = make_frames(made, split=split)
        used = frames.split >= 0
        parts = {frozenset(frames.split[used & (frames.digests[frames.recording] == digest)])
                 for digest in np.unique(frames.digests)}  # fmt: skip
        assert {len(part) for part in parts} == {1}
        check_parts(frames)
    assert not used.all()  # by folds
    tested = {frames.patient_ids[i] for i in np.unique(frames.patient[frames.split == 2])}
    assert tested == {
        name for name, fold in zip(frames.patient_ids, frames.fold, strict=True) if fold == "10"
    }
    by_hash = make_frames(made, split="hash")
    assert (by_hash.split >= 0).all() and len(by_hash.patient_ids) == 20
