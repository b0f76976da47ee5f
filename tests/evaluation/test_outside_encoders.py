"""Outside encoders, as ONNX files and torch modules, are scored by the rules of this package."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import clocs
from clocs import Frames, Store
from clocs.encoders.make import ENCODERS
from clocs.errors import CheckpointError, ClocsWarning, LeakError, SettingError
from clocs.evaluation.evaluate import evaluate_many
from clocs.frames.make import make_frames
from clocs.recording import FrameSpec
from clocs.training.embed import StoreVectors
from clocs.training.outside import OutsideEncoder, read_outside_encoder
from command_line import as_json
from command_line import clocs as run
from tiny_leads import many_lead_checkpoints, tiny_leads

LEADS = ["II", "V2", "aVL", "aVR"]
ABOUT: dict[str, Any] = {
    "rate": 80,
    "samples": 400,
    "leads": LEADS,
    "leads_at_once": False,
    "unit": "mV",
    "normalization": "min-max",
    "trained_on": "nothing",
}
DESCRIPTION = """
rate = 500
samples = 2500
leads = ["II", "V2", "aVL", "aVR"]
leads_at_once = false
unit = "mV"
normalization = "none"
trained_on = [{ dataset = "chapman", split_seed = 0 }]
"""
QUICK: dict[str, Any] = {"epochs": 3, "resamples": 20}


class Tiny(nn.Module):
    """An encoder of one lead, or of some at once."""

    def __init__(self, leads: int = 1) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv1d(leads, 8, 15, stride=8), nn.BatchNorm1d(8)
        self.drop = nn.Dropout(0.2)

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.drop(self.norm(self.conv(x)).relu()).mean(dim=-1)
        return z


class Token(Tiny):
    """With a weight that nothing can draw anew."""

    def __init__(self, leads: int = 1) -> None:
        super().__init__(leads)
        self.token = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        z = super().forward(x)
        return torch.cat([z, self.token.expand(len(z), 1)], dim=1)


class Seeing(nn.Module):
    """Notes what it is given."""

    seen: ClassVar[list[Tensor]] = []  # of all copies

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(x)
        return x.mean(dim=-1)


@pytest.fixture(scope="module", autouse=True)
def own_rows() -> Iterator[None]:
    """Outside encoders are rows of `ENCODERS`, which other tests go through."""
    before = dict(ENCODERS)
    yield
    ENCODERS.clear()
    ENCODERS.update(before)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A shipped encoder as `clocs export` writes it, and its description."""
    file = tmp_path_factory.mktemp("exported") / "encoder.onnx"
    run("export", "cmsc-chapman", "--to", "onnx", "--level", "frame", "--out", file)
    file.with_suffix(".toml").write_text(DESCRIPTION)
    return file


def test_an_exported_encoder_scores_as_its_checkpoint_to_the_last_digit(
    exported: Path, small_store: Store
) -> None:
    words = (small_store.path, "--resamples", 20, "--epochs", 3, "--lr", 0.01)
    tables = [run("evaluate", one, *words).stdout for one in ("cmsc-chapman", exported)]
    # one word after the other: a long line of the table is broken
    ours, theirs = (re.findall(r"[^\s│]+", one.split("┐")[1]) for one in tables)
    assert "random-bn" in ours and "recording" in ours and len(ours) > 100
    # its weights cannot be drawn anew: the control is the paper's encoder, and the table says so
    assert "(cnn):" in theirs
    assert [word.rstrip(":") for word in ours] == [
        word.rstrip(":") for word in theirs if word != "(cnn):"
    ]


def test_what_is_said_of_an_onnx_file_that_cannot_be_used(
    exported: Path, small_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (
        "an ONNX file cannot be trained"
        in run("evaluate", exported, small_store.path, "--protocol", "finetune", code=1).stderr
    )
    file, beside = tmp_path / "x.onnx", tmp_path / "x.toml"
    file.write_bytes(exported.read_bytes())
    with pytest.raises(CheckpointError, match=r"x\.toml does not exist.*that states rate, samples"):
        read_outside_encoder(file)
    for text, said in (
        ("rate = ", r"x\.toml: Invalid value"),
        (DESCRIPTION.replace("rate", "Rate"), r"x\.toml: missing a required argument: 'rate'"),
        (DESCRIPTION + "gain = 3", r"x\.toml: got an unexpected keyword argument 'gain'"),
        (DESCRIPTION + "[filters]\nlow = 3", r"x\.toml: .*'low'"),
        (DESCRIPTION + "output = 'z'", "`output` is 'z'; give one of embedding"),
        (DESCRIPTION.replace("2500", "2499"), "'x' fails on frames of 2499 samples"),
    ):
        beside.write_text(text)
        with pytest.raises(SettingError, match=said):
            read_outside_encoder(file)
    beside.write_text(DESCRIPTION)
    file.write_bytes(b"no ONNX")
    with pytest.raises(CheckpointError, match=r"x\.onnx cannot be opened"):
        read_outside_encoder(file)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(SettingError, match=r"need onnxruntime; .*pip install '\.\[onnx\]"):
        read_outside_encoder(file)


def test_a_module_scores_as_its_checkpoint_to_the_last_bit(small_store: Store) -> None:
    """So do its untrained encoders: layers draw their weights as when they were made."""
    frames = make_frames(small_store, spec=FrameSpec(5.0, 400))
    with tiny_leads():
        checkpoint = many_lead_checkpoints(frames, seeds=(0,))[0]
        module = checkpoint.encoder.to_module(checkpoint.weights, checkpoint.buffers)
        about = ABOUT | {"leads_at_once": True, "normalization": "standardized"}
        theirs = clocs.outside_encoder(module, missing_leads="nan", **about)
        found = [evaluate_many([one], small_store, **QUICK) for one in (checkpoint, theirs)]
    ours, others = found
    assert [one.evaluation.method for one in others] == ["_WithMask", "random", "random-bn"]
    scores = [one.predictions.probabilities for one in (ours[0], others[0])]
    assert np.array_equal(scores[0], scores[1])
    assert ours[0].evaluation.ci95 == others[0].evaluation.ci95
    fitted = {one.evaluation.method: one.predictions.probabilities for one in ours}
    assert np.array_equal(fitted["random-bn"], others[2].predictions.probabilities)
    assert others[0].evaluation.random_encoder is None


def test_the_control_of_a_module_knows_nothing_of_its_weights(small_store: Store) -> None:
    """Also where the weights were frozen; and one that cannot be drawn anew has the paper's."""
    frozen = Tiny().requires_grad_(False)
    for parameter in frozen.parameters():
        parameter.fill_(0.01)
    given, one, _ = evaluate_many([clocs.outside_encoder(frozen, **ABOUT)], small_store, **QUICK)
    assert given.evaluation.random_encoder is None
    weight = one.classifiers[0].weights["module.module.conv.weight"]
    assert weight.std() > 0.05 and one.classifiers[0].card.normalization.startswith("min-max")
    token = evaluate_many([clocs.outside_encoder(Token(), **ABOUT)], small_store, **QUICK)
    assert token[0].evaluation.random_encoder == "cnn" == token[1].classifiers[0].encoder.name
    many = clocs.outside_encoder(Token(4), **ABOUT | {"leads_at_once": True})
    assert many.card.encoder["embedding_dim"] == 9
    assert clocs.evaluate(many, small_store, **QUICK).random_encoder == "multilead"


def test_frames_are_cut_and_scaled_as_stated(small_store: Store) -> None:
    about = ABOUT | {"normalization": "none", "unit": "µV", "leads": ["V2", "II"]}
    Seeing.seen.clear()
    outside = clocs.outside_encoder(Seeing(), **about | {"leads_at_once": True})
    clocs.evaluate(outside, small_store, baselines=False, **QUICK)
    seen = max(Seeing.seen, key=len)
    assert seen.shape[1:] == (2, 400)
    frames = make_frames(small_store, spec=FrameSpec(5.0, 400), leads=["V2", "II"])
    expected = frames.signals[:400].astype(np.float32) * frames.scale[0, 0] * 1000
    assert np.abs(seen[:, 0].numpy() - expected).max(axis=1).min() < 0.1


def test_a_lead_that_is_missing_is_not_guessed(small_store: Store) -> None:
    about = ABOUT | {"leads": [*LEADS, "V7"], "leads_at_once": True}
    with pytest.warns(ClocsWarning, match="has no lead V7"):
        with pytest.raises(SettingError, match="`missing_leads` as 'zero' or 'nan'"):
            clocs.evaluate(clocs.outside_encoder(Tiny(5), **about), small_store, **QUICK)
        outside = clocs.outside_encoder(Tiny(5), missing_leads="zero", **about)
        assert clocs.evaluate(outside, small_store, baselines=False, **QUICK).leads == LEADS


def outside(trained_on: Any) -> OutsideEncoder:
    return clocs.outside_encoder(Tiny(), **ABOUT | {"trained_on": trained_on})


def test_nobody_is_tested_on_whom_an_encoder_of_others_was_trained_on(
    small_store: Store, small_frames: Frames
) -> None:
    name = small_frames.dataset
    with pytest.raises(LeakError, match=r"belong to the parts .* `split_seed` of 1"):
        clocs.evaluate(outside([{"dataset": name, "split_seed": 1}]), small_store, **QUICK)
    whole = outside([{"dataset": "PTB-XL", "part": "all"}, {"dataset": name, "part": "all"}])
    assert whole.card.dataset == f"ptbxl+{name}"
    for folds in (None, 3):
        with pytest.raises(LeakError, match=f"trained on all patients of {name}"):
            clocs.evaluate(whole, small_store, folds=folds, **QUICK)
    with pytest.raises(LeakError, match="folds: test 10"):
        clocs.evaluate(outside([{"dataset": name, "test_folds": ["10"]}]), small_store, **QUICK)
    with pytest.warns(ClocsWarning, match="not known what Tiny was trained on"):
        found = clocs.evaluate(outside("unknown"), small_store, **QUICK)
    assert found.pretrain == "unknown" and found.name == "Tiny (unknown)"


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"trained_on": "chapman"}, "'chapman' with no part"),
        ({"trained_on": ["chapman"]}, "'chapman' with no part; give one of `split_seed`"),
        ({"trained_on": [{"dataset": "chapman"}]}, "'chapman' with no part"),
        ({"trained_on": [{"dataset": "chapman", "part": "half"}]}, "`part` is 'half'; give 'all'"),
        ({"trained_on": []}, r"`trained_on` is \[\]; give 'nothing', 'unknown' or datasets"),
        ({"normalization": "z"}, "`normalization` is 'z'; give one of none, min-max"),
        ({"unit": "adu"}, "`unit` is 'adu'; give one of mV"),
        ({"rate": 0}, "`rate` is 0"),
        ({"samples": 3}, "'Tiny' fails on frames of 3 samples"),
        ({"leads": "II"}, "`leads` is 'II'; give a list"),
        ({"leads": ["II", "MLII"]}, "distinct names"),
        ({"leads_at_once": True}, "'Tiny' fails on frames of 400 samples"),
        ({"name": "random"}, "`name` is 'random'"),
        ({"seed": -1}, "`seed` is -1"),
        ({"maxima": [4, 9]}, r"`maxima` is \[4, 9\]; give two numbers from 0 to 8"),
        ({"maxima": [4]}, r"`maxima` is \[4\]; give two numbers"),
        ({"maxima": ["2", 4.5]}, "give two numbers from 0 to 8"),
    ],
)
def test_a_statement_that_cannot_be_used_is_refused(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingError, match=said):
        clocs.outside_encoder(Tiny(), **ABOUT | changed)


def test_an_encoder_gives_one_vector_per_frame() -> None:
    with pytest.raises(SettingError, match=r"it gives \(2, 8, 49\), not one vector per frame"):
        clocs.outside_encoder(nn.Conv1d(1, 8, 15, stride=8), **ABOUT)


def test_vectors_are_kept_of_files_alone(exported: Path, small_store: Store) -> None:
    """A module can compute something else with the same weights."""
    frames = make_frames(small_store)
    cache = StoreVectors.of_frames(small_store, frames)
    assert not cache.by(clocs.outside_encoder(Tiny(), **ABOUT), "cpu")._folders
    assert cache.by(read_outside_encoder(exported), "cpu")._folders


def test_encoders_of_others_are_compared_with_ours(exported: Path, small_store: Store) -> None:
    words = ("--resamples", 200, "--no-baselines", "--epochs", 3)
    found = as_json("evaluate", exported, "cmsc-physionet2020", small_store.path, *words)
    assert [one["method"] for one in found] == ["encoder", "cmsc"]
    assert all(isinstance(one["better_than"], list) for one in found)
