from __future__ import annotations

import hashlib
import json
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load, save

from clocs.errors import CheckpointError
from clocs.frames.frames import Frames
from clocs.pretraining.plan import Plan
from clocs.pretraining.pretrain import pretrain_frames
from clocs.training import Settings
from clocs.training.card import read_card
from clocs.training.checkpoint import Checkpoint, load_checkpoint, load_checkpoints
from evaluation_parts import evaluate_frames

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
        assert np.array_equal(a.recordings, b.recordings)
    assert [c.card.seed for c in again] == [0, 1]
    assert again[0].card.frame.samples == 400
    assert again[0].card.labels == ("SR", "SB", "SVT", "AFIB")
    assert again[0].card.leads == ("II", "V2", "aVL", "aVR")


def test_equal_runs_write_equal_files(run: Path, small_frames: Frames) -> None:
    pretrain_frames(small_frames, PLAN, run.parent / "again")
    for name in ("seed-0.safetensors", "seed-1.safetensors", "seed-0.json"):
        assert (run / name).read_bytes() == (run.parent / "again" / name).read_bytes()


def test_weights_of_another_card_are_refused(run: Path) -> None:
    (run / "seed-0.safetensors").write_bytes((run / "seed-1.safetensors").read_bytes())
    with pytest.raises(CheckpointError, match="does not match its card"):
        load_checkpoint(run / "seed-0.safetensors")


def test_a_checkpoint_without_its_card_is_refused(run: Path) -> None:
    (run / "seed-0.json").unlink()
    with pytest.raises(CheckpointError, match="needs its card"):
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
    assert len(seen.recordings) > 0


@pytest.mark.parametrize("seed", range(20))
def test_a_flipped_bit_in_the_weights_is_refused(run: Path, seed: int) -> None:
    file = run / "seed-0.safetensors"
    content = bytearray(file.read_bytes())
    place = random.Random(seed).randrange(8 * len(content))
    content[place // 8] ^= 1 << place % 8
    file.write_bytes(content)
    with pytest.raises(CheckpointError, match="does not match its card"):
        load_checkpoint(file)


def rewritten(file: Path, tensors: dict[str, torch.Tensor], **changes: object) -> None:
    """A checkpoint as a stranger could write it: both files agree, whatever they say."""
    file.write_bytes(save(tensors))
    own = hashlib.sha256(file.read_bytes()).hexdigest()
    card = replace(read_card(file.with_suffix(".json")), weights_sha256=own, **changes)  # type: ignore[arg-type]
    file.with_suffix(".json").write_bytes(card.json())


def tensors_of(file: Path) -> dict[str, torch.Tensor]:
    return dict(load(file.read_bytes()))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["weights.linear.weight", "buffers.norm1.mean"])
def test_weights_that_are_not_finite_are_refused(run: Path, name: str, value: float) -> None:
    file = run / "seed-0.safetensors"
    tensors = tensors_of(file)
    tensors[name].view(-1)[3] = value
    rewritten(file, tensors)
    with pytest.raises(CheckpointError, match="not finite: its training diverged"):
        load_checkpoint(file)


def test_tensors_of_another_type_or_name_are_refused(run: Path) -> None:
    file = run / "seed-0.safetensors"
    tensors = tensors_of(file)
    name = "weights.linear.bias"
    for changed in (
        tensors | {name: tensors[name].double()},
        tensors | {name: tensors[name][:-1].contiguous()},
        tensors | {"weights.more": torch.zeros(3)},
        {k: v for k, v in tensors.items() if k != name} | {"more": torch.zeros(1 << 16)},
    ):
        rewritten(file, changed)
        with pytest.raises(CheckpointError, match="does not hold the weights of the encoder"):
            load_checkpoint(file)
    for recordings in (torch.zeros(3), torch.zeros((2, 2), dtype=torch.uint64)):
        rewritten(file, tensors | {"recordings": recordings})
        with pytest.raises(CheckpointError, match="does not list the recordings"):
            load_checkpoint(file)


@pytest.mark.parametrize("claim", ["shape", "offsets", "length"])
def test_a_header_that_claims_more_than_the_file_holds_is_refused(run: Path, claim: str) -> None:
    file = run / "seed-0.safetensors"
    content = file.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    if claim == "shape":
        header["weights.linear.bias"]["shape"] = [1 << 40]
    elif claim == "offsets":
        header["weights.linear.bias"]["data_offsets"] = [0, 1 << 62]
    text = json.dumps(header).encode()
    length = 1 << 60 if claim == "length" else len(text)
    file.write_bytes(length.to_bytes(8, "little") + text + content[8 + size :])
    own = hashlib.sha256(file.read_bytes()).hexdigest()
    card = replace(read_card(run / "seed-0.json"), weights_sha256=own)
    (run / "seed-0.json").write_bytes(card.json())
    with pytest.raises(CheckpointError, match="is not a clocs checkpoint"):
        load_checkpoint(file)


def test_a_file_too_small_or_too_large_for_its_encoder_is_not_read(run: Path) -> None:
    file = run / "seed-0.safetensors"
    with file.open("r+b") as opened:
        opened.truncate(1 << 40)  # it takes no space, but would not fit into memory
    with pytest.raises(CheckpointError, match="cannot be the encoder"):
        load_checkpoint(file)
    file.write_bytes(b"")
    with pytest.raises(CheckpointError, match="cannot be the encoder"):
        load_checkpoint(file)


def test_load_is_public(run: Path) -> None:
    assert load_checkpoint(run).card.method == "cmsc"


def test_a_damaged_state_is_a_sentence_when_resuming(small_frames: Frames, tmp_path: Path) -> None:
    pretrain_frames(small_frames, PLAN, tmp_path / "run")
    for file in (tmp_path / "run").glob("seed-*"):
        file.unlink()
    (tmp_path / "run" / "state.safetensors").write_bytes(b"not a state")
    with pytest.raises(CheckpointError, match="delete it and the previous one"):
        pretrain_frames(small_frames, PLAN, tmp_path / "run", resume=True)


def test_half_precision_is_half_the_size_and_loads_as_float32(
    run: Path, small_frames: Frames
) -> None:
    whole = load_checkpoint(run)
    whole.save(run.parent / "half" / "seed-0.safetensors", half=True)
    half = load_checkpoint(run.parent / "half")
    assert half.card.environment["weights stored as"] == "float16"
    assert "weights stored as" not in whole.card.environment
    for name, tensor in whole.weights.items():
        assert half.weights[name].dtype == torch.float32
        assert torch.equal(half.weights[name], tensor.half().float())
    assert all(torch.equal(half.buffers[name], whole.buffers[name]) for name in whole.buffers)
    sizes = [
        (folder / "seed-0.safetensors").stat().st_size for folder in (run.parent / "half", run)
    ]
    assert sizes[0] < 0.75 * sizes[1]
    aucs = [
        evaluate_frames([one], small_frames, protocol="linear-converged", resamples=0).auc_mean
        for one in (whole, half)
    ]
    assert abs(aucs[0] - aucs[1]) < 0.0005
    half.save(run.parent / "again" / "seed-0.safetensors", half=False)  # whole, and says so
    assert "weights stored as" not in load_checkpoint(run.parent / "again").card.environment


def test_a_copy_of_an_encoder_in_half_precision_has_the_same_fingerprint(run: Path) -> None:
    load_checkpoint(run).save(run.parent / "half" / "seed-0.safetensors", half=True)
    half = load_checkpoint(run.parent / "half")
    half.save(run.parent / "copy" / "seed-0.safetensors")
    assert load_checkpoint(run.parent / "copy").fingerprint == half.fingerprint
    again = replace(half, card=replace(half.card, weights_sha256=""))
    assert again.fingerprint == half.fingerprint
    # weights that were trained on are not rounded
    trained = replace(again, weights={k: v + 1e-6 for k, v in half.weights.items()})
    trained.save(run.parent / "trained" / "seed-0.safetensors")
    loaded = load_checkpoint(run.parent / "trained")
    assert all(torch.equal(loaded.weights[k], v) for k, v in trained.weights.items())


def test_weights_too_large_for_half_precision_are_refused(run: Path) -> None:
    one = load_checkpoint(run)
    name = next(iter(one.weights))
    large = replace(one, weights=one.weights | {name: one.weights[name] + 1e5})
    with pytest.raises(CheckpointError, match="too large for float16"):
        large.save(run.parent / "half" / "seed-0.safetensors", half=True)
