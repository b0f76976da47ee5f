from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import clocs
from clocs.errors import CheckpointError
from clocs.frames.frames import Frames
from clocs.pretraining.plan import Plan
from clocs.pretraining.pretrain_frames import pretrain_frames
from clocs.training.checkpoint import Checkpoint, load_checkpoint, load_checkpoints
from clocs.training.loop import Settings

PLAN = Plan("cmsc", (0, 1), embedding_dim=8, settings=Settings(epochs=2, batch_size=64))


@pytest.fixture
def run(small_frames: Frames, tmp_path: Path) -> Path:
    pretrain_frames(small_frames, PLAN, tmp_path / "run")
    return tmp_path / "run"


def test_a_folder_holds_weights_cards_and_a_log(run: Path) -> None:
    assert sorted(p.name for p in run.iterdir()) == [
        "log.jsonl",
        "seed-0.json",
        "seed-0.safetensors",
        "seed-1.json",
        "seed-1.safetensors",
        "settings.json",
    ]
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    assert [(line["epoch"], line["seed"]) for line in lines] == [(1, 0), (1, 1), (2, 0), (2, 1)]
    assert {"train_loss", "validation_loss", "validation_same_patient_pairs"} <= lines[0].keys()


def test_what_is_loaded_is_what_was_saved(run: Path, small_frames: Frames) -> None:
    again = load_checkpoints(run)
    fresh = pretrain_frames(small_frames, PLAN, run.parent / "again")
    for a, b in zip(again, fresh, strict=True):
        assert all(torch.equal(a.weights[n], b.weights[n]) for n in b.weights)
        assert all(torch.equal(a.buffers[n], b.buffers[n]) for n in b.buffers)
        assert np.array_equal(a.patients, b.patients)
    assert [c.card.seed for c in again] == [0, 1]
    assert again[0].card.frame.samples == 2500
    assert again[0].card.labels == ("SR", "SB", "SVT", "AFIB")
    assert again[0].card.leads == ("II", "V2", "aVL", "aVR")


def test_equal_runs_write_equal_files(run: Path, small_frames: Frames) -> None:
    pretrain_frames(small_frames, PLAN, run.parent / "again")
    for name in ("seed-0.safetensors", "seed-1.safetensors", "seed-0.json"):
        assert (run / name).read_bytes() == (run.parent / "again" / name).read_bytes()


def test_patients_are_hashed_and_only_those_it_saw(run: Path, small_frames: Frames) -> None:
    checkpoint = load_checkpoint(run)
    assert len(checkpoint.patients) == len(small_frames.patients_of(0, 1))
    card = (run / "seed-0.json").read_text()
    assert "P00001" not in card
    assert "identify a person" in card


def test_weights_of_another_card_are_refused(run: Path) -> None:
    (run / "seed-0.safetensors").write_bytes((run / "seed-1.safetensors").read_bytes())
    with pytest.raises(CheckpointError, match="does not match its card"):
        load_checkpoint(run / "seed-0.safetensors")


def test_a_checkpoint_without_its_card_is_refused(run: Path) -> None:
    (run / "seed-0.json").unlink()
    with pytest.raises(CheckpointError, match="needs its card"):
        load_checkpoint(run)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 1}', '{"format": 99}'])
def test_a_card_that_is_none_is_refused(run: Path, text: str) -> None:
    (run / "seed-0.json").write_text(text)
    with pytest.raises(CheckpointError):
        load_checkpoint(run)


def test_a_card_that_describes_another_encoder_is_refused(run: Path) -> None:
    card = json.loads((run / "seed-0.json").read_text())
    card["encoder"]["embedding_dim"] = 9
    (run / "seed-0.json").write_text(json.dumps(card))
    with pytest.raises(CheckpointError, match="does not hold the weights"):
        load_checkpoint(run)


def test_an_empty_folder_says_how_to_fill_it(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="clocs pretrain"):
        load_checkpoints(tmp_path)


def test_nothing_is_overwritten(run: Path, small_frames: Frames) -> None:
    before = (run / "seed-0.safetensors").read_bytes()
    with pytest.raises(CheckpointError, match="add `resume`"):
        pretrain_frames(small_frames, PLAN, run)
    other = Plan("cmsc", (0, 1), embedding_dim=16, settings=PLAN.settings)
    with pytest.raises(CheckpointError, match="other settings \\(embedding_dim\\)"):
        pretrain_frames(small_frames, other, run, resume=True)
    again: list[Checkpoint] = pretrain_frames(small_frames, PLAN, run, resume=True)
    assert len(again) == 2
    assert (run / "seed-0.safetensors").read_bytes() == before
    (run.parent / "mine").mkdir()
    (run.parent / "mine" / "thesis.txt").write_text("precious")
    with pytest.raises(CheckpointError, match="other files"):
        pretrain_frames(small_frames, PLAN, run.parent / "mine")


def test_random_bn_has_seen_the_training_frames(small_frames: Frames, tmp_path: Path) -> None:
    plain = pretrain_frames(small_frames, Plan("random"), tmp_path / "a")[0]
    seen = pretrain_frames(small_frames, Plan("random-bn"), tmp_path / "b")[0]
    for name, tensor in plain.weights.items():
        assert torch.equal(tensor, seen.weights[name])
    assert (plain.buffers["norm1.mean"] == 0).all()
    assert (seen.buffers["norm1.mean"] != 0).any()
    assert len(seen.patients) > 0


def test_load_is_public(run: Path) -> None:
    assert clocs.load(run).card.method == "cmsc"


def test_a_damaged_state_is_a_sentence_when_resuming(small_frames: Frames, tmp_path: Path) -> None:
    pretrain_frames(small_frames, PLAN, tmp_path / "run")
    for file in (tmp_path / "run").glob("seed-*"):
        file.unlink()
    (tmp_path / "run" / "state.safetensors").write_bytes(b"not a state")
    with pytest.raises(CheckpointError, match="delete it to start again"):
        pretrain_frames(small_frames, PLAN, tmp_path / "run", resume=True)
