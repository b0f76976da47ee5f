"""Who was trained on is known without a list of patients; copies are found by their contents."""

from __future__ import annotations

import hashlib
import json
import re
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from clocs import Checkpoint, Frames, Store
from clocs.cli.main import Root
from clocs.errors import ClocsWarning, LeakError, SettingError
from clocs.pretraining.plan import Plan
from clocs.pretraining.pretrain import pretrain_frames
from clocs.training.checkpoint import check_no_leak, copies_of_seen, load_checkpoint, seen_by

PLAN = Plan("random-bn", embedding_dim=8)


def test_no_patient_can_be_guessed_from_a_checkpoint(
    checkpoint: Checkpoint, small_frames: Frames, tmp_path: Path
) -> None:
    """Neither an ID nor its hash, salted as the recordings' are, is in the files."""
    checkpoint.save(tmp_path / "seed-0.safetensors")
    content = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    salt = checkpoint.card.salt
    for patient in small_frames.keyed(small_frames.patient_ids):
        short = patient.split(":")[1]
        assert short.encode() not in content
        for text in (f"{salt}:{patient}", f"{salt}:{short}", patient, short):
            for kind in ("sha256", "sha1", "md5", "blake2b"):
                first = hashlib.new(kind, text.encode()).digest()[:8]
                assert first not in content and first[::-1] not in content


def test_every_training_and_validation_patient_is_recognized(
    checkpoint: Checkpoint, small_frames: Frames
) -> None:
    patients = list(small_frames.patient_ids)
    nothing = np.zeros(len(patients), np.uint64)
    seen = seen_by(checkpoint, small_frames.dataset, patients, nothing)
    assert {p for p, known in zip(patients, seen, strict=True) if known} == set(
        small_frames.patients_of(0, 1)
    )
    assert not seen_by(checkpoint, "elsewhere", patients, nothing).any()


def test_frames_that_are_not_split_by_their_seed_are_not_trained_on(
    small_frames: Frames, tmp_path: Path
) -> None:
    own = replace(small_frames, split=np.roll(small_frames.split, len(small_frames) // 2))
    with pytest.raises(SettingError, match="not split by their `split_seed`"):
        pretrain_frames(own, PLAN, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_of_two_copies_in_the_test_part_the_second_is_left_out(small_frames: Frames) -> None:
    first, second = np.unique(small_frames.recording[small_frames.split == 2])[:2]
    digests = small_frames.digests.copy()
    digests[second] = digests[first]
    assert not copies_of_seen([], small_frames).any()
    assert np.flatnonzero(copies_of_seen([], replace(small_frames, digests=digests))) == [second]


def test_hashes_of_recordings_can_be_left_out_and_the_guard_says_what_it_cannot_check(
    small_frames: Frames, tmp_path: Path
) -> None:
    pretrain_frames(small_frames, PLAN, tmp_path, recording_hashes=False)
    checkpoint = load_checkpoint(tmp_path)
    assert not checkpoint.card.recording_hashes
    assert len(checkpoint.recordings) == 0 and checkpoint.card.salt == ""
    with pytest.raises(LeakError, match="belong to the parts"):
        check_no_leak(checkpoint, small_frames.with_split_seed(1))
    elsewhere = replace(small_frames, dataset="elsewhere", content="other")
    with pytest.warns(ClocsWarning, match=r"no hashes of its recordings.*could not be found"):
        check_no_leak(checkpoint, elsewhere)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the same store: copies in it are found without hashes
        check_no_leak(checkpoint, small_frames)


def test_the_command_leaves_hashes_out_and_info_says_so(small_store: Store, tmp_path: Path) -> None:
    words = ["pretrain", str(small_store.path), "--method", "random-bn", "--no-recording-hashes"]
    made = CliRunner().invoke(Root(), [*words, "--out", str(tmp_path / "run"), "--json"])
    assert made.exit_code == 0, made.output
    (card,) = json.loads(made.stdout)
    assert (card["recording_hashes"], card["hashed_recordings"]) == (False, 0)
    shown = CliRunner().invoke(Root(), ["info", str(tmp_path / "run")])
    assert re.search(r"recording hashes +│? *no\b", shown.stdout)


def test_an_encoder_that_starts_from_one_without_hashes_claims_none(
    small_frames: Frames, tmp_path: Path
) -> None:
    first = pretrain_frames(small_frames, PLAN, tmp_path / "a", recording_hashes=False)
    plan = Plan("cmsc", embedding_dim=8, settings=replace(PLAN.settings, epochs=1, batch_size=32))
    (second,) = pretrain_frames(small_frames, plan, tmp_path / "b", init=first)
    assert not second.card.recording_hashes and len(second.recordings) == 0
    assert second.card.trained_on == first[0].card.trained_on
