"""What every row of ENCODERS must do: another one is one file, one row and one test of its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from typer.main import get_command

from clocs import keyed_random
from clocs.cli.main import app
from clocs.encoders.base import Encoder, Weights
from clocs.encoders.make import ENCODERS, make_encoder
from clocs.errors import CheckpointError, SettingError
from clocs.evaluation.groups import evaluate_frames
from clocs.frames.frames import Frames
from clocs.frames.make import make_frames
from clocs.pretraining.batches import Choices
from clocs.pretraining.methods import adapt
from clocs.pretraining.objectives import make_task
from clocs.pretraining.plan import Plan
from clocs.pretraining.run import pretrain_frames
from clocs.recording import FrameSpec
from clocs.store.store import Store
from clocs.training.checkpoint import load_checkpoint
from clocs.training.loop import Settings, Trained, fit

CPU = torch.device("cpu")
HERE = Path(__file__).parent

pytestmark = pytest.mark.parametrize("name", ENCODERS)


@pytest.fixture(scope="module")
def frames(small_store: Store) -> Frames:
    """Coarse frames: what is claimed here does not depend on their length."""
    return make_frames(small_store, spec=FrameSpec(5.0, 400))


def start(encoder: Encoder, seeds: list[int]) -> tuple[Weights, Weights]:
    return encoder.parameters(keyed_random.member_keys(seeds)), encoder.buffers(len(seeds))


def test_it_has_a_test_of_its_own_and_a_line_in_the_docs(name: str) -> None:
    assert (HERE / f"test_{name}.py").is_file()
    design = (HERE.parent.parent / "docs" / "design.md").read_text(encoding="utf-8")
    line = next(line for line in design.splitlines() if line.startswith("encoders/"))
    assert name in line
    pretrain = get_command(app).commands["pretrain"]  # type: ignore[attr-defined]
    (option,) = (one for one in pretrain.params if one.name == "encoder")
    assert name in option.help


def test_it_is_made_as_asked(name: str) -> None:
    encoder = make_encoder(name, embedding_dim=5, samples=600, dropout=0.2)
    assert (encoder.name, encoder.embedding_dim, encoder.samples) == (name, 5, 600)
    assert encoder == make_encoder(name, embedding_dim=5, samples=600, dropout=0.2)
    with pytest.raises(SettingError, match="`embedding_dim` must be at least 1, not 0"):
        make_encoder(name, embedding_dim=0, samples=600)


@pytest.mark.parametrize("samples", [400, 601, 2500])
def test_a_frame_becomes_an_embedding_that_is_nowhere_negative(name: str, samples: int) -> None:
    encoder = make_encoder(name, embedding_dim=7, samples=samples)
    weights, buffers = start(encoder, [0, 1])
    x = torch.rand(2, 3, samples)
    z, updated = encoder.encode_training(weights, buffers, x, keyed_random.member_keys([0, 1]))
    for embedding in (z, encoder.encode(weights, buffers, x)):
        assert embedding.shape == (2, 3, 7)
        assert (embedding >= 0).all()
        assert (embedding > 0).any()
    assert updated.keys() == buffers.keys()
    assert all(updated[k].shape == buffers[k].shape for k in buffers)
    assert weights.keys().isdisjoint(buffers)


def test_a_frame_too_short_says_how_long_it_must_be(name: str) -> None:
    with pytest.raises(SettingError, match=rf"4 samples is too short .*'{name}'") as caught:
        make_encoder(name, embedding_dim=8, samples=4)
    shortest = int(str(caught.value).rpartition(" ")[2])
    encoder = make_encoder(name, embedding_dim=8, samples=shortest)
    assert encoder.encode(*start(encoder, [0]), torch.rand(1, 2, shortest)).isfinite().all()
    with pytest.raises(SettingError, match=f"at least {shortest}"):
        make_encoder(name, embedding_dim=8, samples=shortest - 1)


def test_members_are_initialised_by_their_own_seed_alone(name: str) -> None:
    encoder = make_encoder(name, embedding_dim=8, samples=400)
    both, alone = start(encoder, [3, 8])[0], start(encoder, [8])[0]
    for tensor in alone:
        assert torch.equal(both[tensor][1:], alone[tensor])
    assert not torch.equal(both["linear.weight"][0], both["linear.weight"][1])


def test_evaluation_of_a_frame_does_not_depend_on_the_others(name: str) -> None:
    encoder = make_encoder(name, embedding_dim=8, samples=400)
    weights, buffers = ({k: v.double() for k, v in t.items()} for t in start(encoder, [0]))
    x = torch.rand(1, 5, 400, dtype=torch.float64)
    together = encoder.encode(weights, buffers, x)
    alone = encoder.encode(weights, buffers, x[:, 2:3])
    assert torch.allclose(together[:, 2:3], alone, atol=1e-12)


def test_dropout_is_a_function_of_its_keys(name: str) -> None:
    encoder = make_encoder(name, embedding_dim=8, samples=400, dropout=0.4)
    weights, buffers = start(encoder, [0])
    x, keys = torch.rand(1, 4, 400), keyed_random.member_keys([0])
    first, again, other = (
        encoder.encode_training(weights, buffers, x, key)[0] for key in (keys, keys, keys + 1)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_activations_may_be_less_precise_than_weights(name: str) -> None:
    encoder = make_encoder(name, embedding_dim=8, samples=400)
    weights, buffers = start(encoder, [0])
    x, keys = torch.rand(1, 16, 400), keyed_random.member_keys([0])
    z, after = encoder.encode_training(weights, buffers, x, keys)
    rough, rougher = encoder.encode_training(weights, buffers, x.bfloat16(), keys)
    assert rough.dtype == torch.float32
    assert all(tensor.dtype == torch.float32 for tensor in rougher.values())
    assert not torch.equal(rough, z)
    assert torch.allclose(rough, z, atol=0.05)
    evaluated = encoder.encode(weights, after, x.bfloat16())
    assert torch.allclose(evaluated, encoder.encode(weights, after, x), atol=0.05)


def test_statistics_move_by_their_momentum(name: str) -> None:
    encoder = make_encoder(name, embedding_dim=8, samples=400, dropout=0.0)
    weights, buffers = start(encoder, [0])
    x, keys = torch.rand(1, 4, 400), keyed_random.member_keys([0])
    whole, tenth, none = (
        encoder.encode_training(weights, buffers, x, keys, momentum=m)[1] for m in (1.0, 0.1, 0.0)
    )
    for statistic, before in buffers.items():
        assert torch.equal(none[statistic], before)
        expected = 0.9 * before + 0.1 * whole[statistic]
        assert torch.allclose(tenth[statistic], expected, atol=1e-6)


@pytest.mark.parametrize("method", ["cmsc", "byol"])
def test_a_fleet_equals_its_singles_in_float64(name: str, method: str, frames: Frames) -> None:
    def trained(seeds: list[int]) -> Trained:
        task = make_task(
            frames,
            adapt(method, dataset=frames.dataset),
            make_encoder(name, embedding_dim=8, samples=frames.spec.samples),
            members=len(seeds),
            batch_size=32,
            choices=Choices(),
            device=CPU,
            dtype=torch.float64,
        )
        settings = Settings(epochs=1, batch_size=32, lr=1e-3)
        return fit(task, seeds, settings, device=CPU, dtype=torch.float64)

    fleet = trained([4, 9])
    for member, seed in enumerate([4, 9]):
        alone = trained([seed])
        assert alone.status == ["all epochs"]
        for tensor, value in (alone.weights | alone.buffers).items():
            together = (fleet.weights | fleet.buffers)[tensor][member]
            assert torch.allclose(value[0], together, atol=1e-9), tensor


def test_from_pretraining_to_a_score(name: str, frames: Frames, tmp_path: Path) -> None:
    plan = Plan(
        "cmsc", (0, 1), encoder=name, embedding_dim=16,
        settings=Settings(epochs=3, batch_size=32, lr=1e-3),
    )  # fmt: skip
    made = pretrain_frames(frames, plan, tmp_path / "run")
    loaded = load_checkpoint(tmp_path / "run" / "seed-1.safetensors")
    assert loaded.card.encoder["name"] == loaded.encoder.name == name
    for kind in ("weights", "buffers"):
        for tensor, value in getattr(made[1], kind).items():
            assert torch.equal(getattr(loaded, kind)[tensor], value)
    log = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    losses = [line["train_loss"] for line in log if line["seed"] == 0]
    assert losses[-1] < losses[0]
    settings = Settings(epochs=3, batch_size=32, lr=1e-2)
    scores = evaluate_frames(made, frames, settings=settings, resamples=10)
    assert len(scores.auc) == 2
    assert all(0 <= auc <= 1 for auc in scores.auc)


def test_random_bn_differs_from_random_in_its_statistics_alone(
    name: str, frames: Frames, tmp_path: Path
) -> None:
    plans = [Plan(method, encoder=name, embedding_dim=4) for method in ("random", "random-bn")]
    plain, seen = (pretrain_frames(frames, plan, tmp_path / plan.method)[0] for plan in plans)
    assert all(torch.equal(plain.weights[k], seen.weights[k]) for k in plain.weights)
    assert all(not torch.equal(plain.buffers[k], seen.buffers[k]) for k in plain.buffers)


def test_weights_of_another_encoder_are_refused(name: str, frames: Frames, tmp_path: Path) -> None:
    other = next(one for one in ENCODERS if one != name)
    pretrain_frames(frames, Plan("random", encoder=name, embedding_dim=4), tmp_path / "run")
    card = json.loads((tmp_path / "run" / "seed-0.json").read_text())
    card["encoder"]["name"] = other
    (tmp_path / "run" / "seed-0.json").write_text(json.dumps(card))
    with pytest.raises(CheckpointError, match=f"does not hold the weights.*{other}"):
        load_checkpoint(tmp_path / "run")
