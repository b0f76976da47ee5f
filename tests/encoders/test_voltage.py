"""`voltage` keeps what `multilead` standardizes away, and gives one answer by every way."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import clocs
from clocs.encoders import residual
from clocs.encoders.make import make_encoder
from clocs.encoders.many_leads import amplitudes
from clocs.kernels import keyed_random
from clocs.patients.embed import embed_recordings
from clocs.recording import Recording
from clocs.training.checkpoint import load_checkpoint

LEADS = ("I", "II", "V1")


def frames(seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(4, 3, 200, generator=generator) * 0.3
    x[2, 1] = torch.nan
    return x


def recording(factor: float = 1.0, unit: str = "mV") -> Recording:
    x = np.random.default_rng(3).normal(0, 300 * factor, (3, 1200)).astype(np.int16)
    gain, baseline = np.full(3, 1000.0), np.zeros(3, np.int32)
    return Recording("r", "p", LEADS, 100.0, x, gain, baseline, unit=unit)


def embedding(checkpoint: Path, one: Recording) -> NDArray[np.float32]:
    made: NDArray[np.float32] = embed_recordings(load_checkpoint(checkpoint), [one]).vectors[0]
    return made


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("voltage")
    store = clocs.from_arrays(
        np.random.default_rng(0).normal(0, 0.3, (24, 3, 1200)).astype(np.float32), np.arange(24),
        out=out / "store", rate=100, leads=LEADS,
    )  # fmt: skip
    clocs.pretrain(
        store,
        method="cmsmlc",
        encoder="voltage",
        leads=LEADS,
        embedding_dim=80,
        out=out / "made",
        epochs=1,
    )
    return out / "made" / "seed-0.safetensors"


def test_amplitudes_are_the_quantiles_of_each_lead() -> None:
    x = frames()
    made = amplitudes(x).unflatten(1, (4, 3))
    high = torch.quantile(x[0] - x[0].mean(dim=1, keepdim=True), 0.995, dim=1)
    assert torch.allclose(made[0, 1], high, atol=1e-6)
    assert not made[2, :, 1].any()
    assert made[2, 3].tolist() == [1, 0, 1]


def test_twice_the_voltage_is_another_embedding() -> None:
    x = frames()
    for name, dim, moves in (("voltage", 80, True), ("multilead", 16, False)):
        encoder = make_encoder(name, embedding_dim=dim, samples=200, leads=LEADS, dropout=0)
        weights, buffers = encoder.parameters(torch.tensor([1])), encoder.buffers(1)
        own = x if encoder.in_mv else (x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True)
        twice = 2 * x if encoder.in_mv else own
        one, two = (encoder.encode(weights, buffers, each[None])[0] for each in (own, twice))
        assert one.isfinite().all()
        assert (not torch.allclose(one, two)) == moves


def test_layers_and_training_see_what_evaluation_sees() -> None:
    encoder = make_encoder("voltage", embedding_dim=80, samples=200, leads=LEADS, dropout=0)
    weights, buffers = encoder.parameters(torch.tensor([1])), encoder.buffers(1)
    module = encoder.to_module(weights, buffers).eval()
    made = encoder.encode(weights, buffers, frames()[None])[0]
    assert torch.allclose(module(frames()), made, rtol=1e-4, atol=1e-4)
    trained, _ = encoder.encode_training(weights, buffers, frames()[None], torch.tensor([1]))
    assert torch.allclose(trained[0, :, -64:], made[:, -64:], atol=1e-6)


def test_a_file_a_module_and_a_step_of_another_size_have_one_embedding(checkpoint: Path) -> None:
    own = recording()
    finer = replace(own, digital=own.digital * np.int16(2), gain=own.gain * 2)
    made = [embedding(checkpoint, one) for one in (own, finer)]
    assert np.allclose(made[0], made[1], atol=1e-5)
    module = load_checkpoint(checkpoint).to_module().eval()
    x = torch.from_numpy(own.digital / own.gain[:, None]).float()
    assert np.allclose(module(x[None])[0].detach().numpy(), made[0], atol=1e-5)
    assert not np.allclose(embedding(checkpoint, recording(3)), made[0], atol=1e-3)


def test_a_recording_in_an_unknown_unit_is_refused(checkpoint: Path) -> None:
    made = embed_recordings(load_checkpoint(checkpoint), [recording(unit="adu")])
    assert "is in adu, and this encoder reads voltages" in made.problems[0][1]


@pytest.mark.parametrize(("name", "expected"), [("voltage", False), ("multilead", True)])
def test_training_is_not_compiled_where_that_made_it_wrong(
    monkeypatch: pytest.MonkeyPatch, name: str, expected: bool
) -> None:
    """As if on a GPU, without compiling anything."""
    asked, forward = [], residual._forward

    def recorded(encoder: residual.Residual, *, compiled: bool, shared: bool) -> residual.Forward:
        asked.append(compiled)
        return forward(encoder, compiled=False, shared=shared)

    monkeypatch.setattr(residual, "_forward", recorded)
    monkeypatch.setattr(residual, "is_compiled_for", lambda x: True)
    encoder = make_encoder(name, embedding_dim=80, samples=200, leads=LEADS, dropout=0)
    keys = keyed_random.member_keys([0])
    x = torch.zeros(1, 4, len(LEADS), 200)
    encoder.encode_training(encoder.parameters(keys), encoder.buffers(1), x, keys)
    assert asked == [expected]
