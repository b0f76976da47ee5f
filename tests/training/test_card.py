"""A card is covered by its own hash, and a stranger's card is compared with limits."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clocs import Checkpoint, Frames
from clocs.errors import CheckpointError, ClocsError, SettingError
from clocs.pretraining.plan import Plan
from clocs.pretraining.pretrain import pretrain_frames
from clocs.recording import FrameSpec
from clocs.sealed import own_hash
from clocs.training.card import MAX_BYTES, NOT_FINITE, Card, check_text, parse_card, read_card
from clocs.training.checkpoint import load_checkpoint


@pytest.fixture
def saved(checkpoint: Checkpoint, tmp_path: Path) -> Path:
    checkpoint.save(tmp_path / "seed-0.safetensors")
    return tmp_path / "seed-0.json"


def changed(path: Path, *, seal: bool, **changes: Any) -> None:
    """Change fields ("a.b" inside `a`), where wanted with a hash that fits."""
    facts = json.loads(path.read_text())
    facts.pop("sha256")
    for name, value in changes.items():
        *outer, last = name.split("__")
        target = facts
        for step in outer:
            target = target[step]
        target[last] = value
    facts["sha256"] = own_hash(facts) if seal else json.loads(path.read_text())["sha256"]
    path.write_text(json.dumps(facts))


def parsed(content: bytes) -> Card | None:
    """None where the card is refused in the way that `read_card` turns into a sentence."""
    try:
        return parse_card(content)
    except (ClocsError, ValueError, KeyError, TypeError):
        return None


def test_what_is_read_is_what_was_written(saved: Path, checkpoint: Checkpoint) -> None:
    card = read_card(saved)
    assert card.trained_on == checkpoint.card.trained_on
    assert card == load_checkpoint(saved.with_suffix(".safetensors")).card
    assert parse_card(card.json()) == card
    assert b"maxima" not in card.json()  # as versions wrote it that did not know it
    maxima = replace(card, maxima=(2, 4))
    assert parse_card(maxima.json()) == maxima


def test_every_flipped_bit_of_a_card_is_refused_or_changes_nothing(saved: Path) -> None:
    content, card = saved.read_bytes(), read_card(saved)
    refused = 0
    for place in range(8 * len(content)):
        damaged = bytearray(content)
        damaged[place // 8] ^= 1 << place % 8
        found = parsed(bytes(damaged))
        assert found in (None, card), place
        refused += found is None
    assert refused > 0.8 * 8 * len(content)  # the rest is space between values


@pytest.mark.parametrize(
    "change",
    [
        {"trained_on": []},
        {"split_seed": 1},
        {"salt": "00"},
        {"encoder__dropout": 0.5},
        {"metrics__best_epoch": 3},
        {"weights_sha256": "0" * 64},
        {"recording_hashes": False},
        {"more": 1},
    ],
    ids=str,
)
def test_a_changed_card_is_refused(saved: Path, change: dict[str, Any]) -> None:
    changed(saved, seal=False, **change)
    with pytest.raises(CheckpointError, match=r"seed-0\.json cannot be used: it differs from its"):
        load_checkpoint(saved.parent)


@pytest.mark.parametrize("text", [b"", b"[]", b"{}", b"\xff", b"[" * 100_000, b"1" * 5000])
def test_a_card_that_is_none_is_refused(saved: Path, text: bytes) -> None:
    saved.write_bytes(text)
    with pytest.raises(CheckpointError, match="is not the card of a clocs checkpoint"):
        load_checkpoint(saved.parent)


@pytest.mark.parametrize("version", [1, 3, "2", None])
def test_a_card_of_another_format_says_what_to_do(saved: Path, version: object) -> None:
    changed(saved, seal=True, format=version)
    with pytest.raises(CheckpointError, match=r"reads format 2; train again, or use the version"):
        load_checkpoint(saved.parent)


STRANGE: list[dict[str, Any]] = [
    {"encoder__embedding_dim": 1_000_000_000},
    {"encoder__embedding_dim": 0},
    {"encoder__embedding_dim": -5},
    {"encoder__embedding_dim": 128.0},
    {"encoder__embedding_dim": True},
    {"encoder__embedding_dim": "128"},
    {"encoder__samples": 10**12},
    {"encoder__samples": None},
    {"encoder__dropout": math.nan},
    {"encoder__dropout": 1},
    {"encoder__more": 1},
    {"encoder__name": ["cnn"]},
    {"encoder__name": "vgg"},
    {"encoder": []},
    {"encoder": {}},
    {"frame__seconds": math.nan},
    {"frame__seconds": 10**400},
    {"metrics__validation_loss": 10**400},
    {"frame__seconds": math.inf},
    {"frame__seconds": -1.0},
    {"frame__seconds": 0},
    {"frame__seconds": 1e-300},
    {"frame__seconds": "5"},
    {"frame_trained__seconds": 1e300},
    {"frame__samples": 10**12},
    {"frame__samples": 2499},
    {"frame__more": 1},
    {"frame": 5},
    {"leads": [f"lead {i}" for i in range(20_000)]},
    {"leads": [1, 2]},
    {"leads": "II"},
    {"leads": ["II" * 1000]},
    {"labels": ["x"] * 20_000},
    {"labels": None},
    {"method": 5},
    {"method": "cmsc\x1b[2J"},
    {"training__note": ["\x1b]0;title\x07"]},
    {"training__lr": "fast"},
    {"training": []},
    {"metrics": {}},
    {"metrics__validation_loss": "low"},
    {"metrics__epochs": -1},
    {"seed": 2**64},
    {"seed": 0.5},
    {"trained_on": [{"dataset": "synthetic"}]},
    {"trained_on": [["synthetic", 0, ""]]},
    {"trained_on": None},
    {"salt": None},
    {"recording_hashes": "no"},
    {"normalization": "none"},
]


@pytest.mark.parametrize("change", STRANGE, ids=lambda change: f"{change!s:.40}")
def test_a_strangers_card_beyond_the_limits_is_one_sentence(
    saved: Path, change: dict[str, Any]
) -> None:
    changed(saved, seal=True, **change)
    with pytest.raises(CheckpointError) as refused:
        load_checkpoint(saved.parent)
    assert len(str(refused.value).splitlines()) == 1
    assert len(str(refused.value)) < 600
    assert str(refused.value).isprintable()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)


@settings(max_examples=300, suppress_health_check=list(HealthCheck))
@given(draw=st.data())
def test_whatever_a_strangers_card_holds_it_is_a_sentence_or_an_encoder(
    saved: Path, draw: st.DataObject
) -> None:
    content = saved.read_bytes()
    facts = json.loads(content)
    inside = ("encoder", "frame", "frame_trained", "metrics", "training")
    names = [*facts, *(f"{outer}__{name}" for outer in inside for name in facts[outer])]
    changed(saved, seal=True, **{draw.draw(st.sampled_from(names)): draw.draw(JSON)})
    try:
        loaded = load_checkpoint(saved.parent)
        assert loaded.encoder.embedding_dim == 128
    except CheckpointError as error:
        assert len(str(error).splitlines()) == 1
    finally:
        saved.write_bytes(content)


def test_a_card_larger_than_any_real_one_is_not_parsed(saved: Path) -> None:
    saved.write_bytes(saved.read_bytes() + b" " * MAX_BYTES)
    with pytest.raises(CheckpointError, match="larger than 1,048,576 bytes"):
        load_checkpoint(saved.parent)


def test_a_checkpoint_that_says_it_diverged_is_refused(saved: Path) -> None:
    changed(saved, seal=True, metrics__status=NOT_FINITE)
    with pytest.raises(CheckpointError, match="its training diverged; train again"):
        load_checkpoint(saved.parent)


@pytest.mark.parametrize("value", ["\x1b[31m", ["\x07"], {"\x1b": 1}, {"notes": [{"a": "\x9b"}]}])
def test_no_text_of_a_card_steers_a_terminal(value: Any) -> None:
    with pytest.raises(ValueError, match="it holds control characters"):
        check_text(value)


def test_what_could_not_be_read_again_is_not_trained(small_frames: Frames, tmp_path: Path) -> None:
    odd = {
        "it holds control characters": replace(small_frames, labels=("AFIB\n", "SR")),
        "`leads` is": replace(small_frames, leads=("II" * 1000, "V2", "aVL", "aVR")),
    }
    for expected, frames in odd.items():
        with pytest.raises(SettingError, match=f"could not be read again \\({expected}"):
            pretrain_frames(frames, Plan("random"), tmp_path / "run")
        assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("seconds", [0, -1.0, math.nan, math.inf, 1e300, 10**400, "5", None, True])
def test_a_frame_of_no_duration_is_refused(seconds: Any) -> None:
    with pytest.raises(SettingError, match="seconds of a frame must be a number above 0"):
        FrameSpec(seconds)


@pytest.mark.parametrize("samples", [0, -1, 10**12, 2500.0, "2500", None, True])
def test_a_frame_of_no_samples_is_refused(samples: Any) -> None:
    with pytest.raises(SettingError, match="samples of a frame must be a whole number from 1"):
        FrameSpec(5.0, samples)


def test_names_are_spelled_in_files_as_earlier_versions_spelled_them(
    checkpoint: Checkpoint,
) -> None:
    trained = replace(checkpoint.card, training={"lr": 1e-4, "optimizer": "adamw"})
    stored = json.loads(trained.json())
    assert "normalisation" in stored and stored["training"]["optimiser"] == "adamw"
    assert parse_card(trained.json()) == trained
