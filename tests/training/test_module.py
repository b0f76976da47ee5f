"""`Checkpoint.to_module`: a plain torch module that gives what `clocs.embed` gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import clocs
from clocs import Checkpoint, Frames, Recording, Store
from clocs.encoders.make import ENCODERS, is_multilead
from clocs.errors import ClocsWarning, SettingError
from clocs.frames.make import make_frames
from clocs.frames.views import Views, instances
from clocs.models.explain import module_input
from clocs.patients.embed import embed_recordings
from clocs.pretraining.plan import Plan
from clocs.pretraining.pretrain import untrained
from clocs.recording import Filters, FrameSpec, Gap
from clocs.training.card import CENTERED, IN_MV
from clocs.training.embed import embed_instances
from tiny_leads import tiny_leads

Encoders = Callable[[str], Checkpoint]
NAMES = [*ENCODERS, "tiny-leads"]
every = pytest.mark.parametrize("name", NAMES)
both_kinds = pytest.mark.parametrize("name", ["cnn", "tiny-leads"])  # of one lead, of many


@pytest.fixture(autouse=True)
def a_module_of_a_user() -> Iterator[None]:
    with tiny_leads():
        yield


@pytest.fixture(scope="module")
def frames(small_store: Store) -> Frames:
    return make_frames(small_store, spec=FrameSpec(2.5, 400))


@pytest.fixture(scope="module")
def encoder_of(frames: Frames) -> Iterator[Encoders]:
    yield cache(lambda name: untrained(frames, Plan("random", encoder=name, embedding_dim=72))[0])


def by_product(checkpoint: Checkpoint, *recordings: Recording) -> NDArray[np.float32]:
    return embed_recordings(checkpoint, recordings, level="recording").vectors


def by_module(checkpoint: Checkpoint, *recordings: Recording) -> NDArray[np.float32]:
    x = torch.from_numpy(np.stack([module_input(checkpoint, one) for one in recordings]))
    with torch.no_grad():
        made: NDArray[np.float32] = checkpoint.to_module()(x).numpy()
    return made


@every
def test_the_module_gives_the_embeddings_of_recordings(
    name: str, encoder_of: Encoders, small_store: Store
) -> None:
    checkpoint = encoder_of(name)
    some = [small_store.recording(i) for i in range(5)]
    expected = by_product(checkpoint, *some)
    assert np.abs(by_module(checkpoint, *some) - expected).max() < 1e-5


def test_the_module_gives_what_clocs_embed_gives_of_a_store(
    checkpoint: Checkpoint, small_store: Store
) -> None:
    expected = clocs.embed(checkpoint, small_store, level="recording").vectors
    some = [small_store.recording(i) for i in range(5)]
    assert np.abs(by_module(checkpoint, *some) - expected[:5]).max() < 1e-5


@every
def test_a_flat_lead_a_gap_and_a_missing_lead_are_as_in_the_product(
    name: str, encoder_of: Encoders, small_store: Store
) -> None:
    checkpoint = encoder_of(name)
    whole = small_store.recording(0)
    flat = whole.digital.copy()
    flat[list(whole.leads).index("V2")] = 321
    middle = whole.samples // 2
    kinds = [
        replace(whole, digital=flat),
        replace(whole, gaps=(Gap(middle, middle + 3, "V2"), Gap(0, 9, "II"))),
        whole.select(["V2", "II"]),
    ]
    for one in kinds:
        with pytest.warns(ClocsWarning) if len(one.leads) == 2 else nullcontext():
            expected = by_product(checkpoint, one)
        assert np.abs(by_module(checkpoint, one) - expected).max() < 1e-5


@pytest.mark.parametrize("normalization", [CENTERED, IN_MV])
def test_other_normalizations_of_the_input_are_those_of_evaluation(
    normalization: str, encoder_of: Encoders, frames: Frames
) -> None:
    plain = encoder_of("cnn")
    checkpoint = replace(plain, card=replace(plain.card, normalization=normalization))
    rows = instances(frames, of="lead", views=Views())
    expected = embed_instances([checkpoint], frames, rows)[0][:50]
    starts, scales = (
        torch.from_numpy(a)[:50].flatten() for a in (rows.in_view(), rows.scale_in_view())
    )
    raw = torch.from_numpy(frames.signals).unfold(0, 400, 1)[starts] * scales[:, None]
    module = checkpoint.to_module()
    with torch.no_grad():
        views, there = module.frames(raw[:, None].float())
        found = module.network(views.flatten(0, 1))
    assert bool(there.all())
    assert torch.allclose(found, expected, atol=1e-5)


@both_kinds
def test_samples_after_the_last_whole_frame_are_not_used(name: str, encoder_of: Encoders) -> None:
    module = encoder_of(name).to_module()
    x = torch.randn(2, len(module.leads) or 3, 3 * 400 - 1)
    with torch.no_grad():
        assert torch.equal(module(x), module(x[..., : 2 * 400]))


def test_a_lead_more_changes_the_embedding_of_encoders_of_one_lead(encoder_of: Encoders) -> None:
    module = encoder_of("cnn").to_module()
    x = torch.randn(2, 3, 400)
    with torch.no_grad():
        apart = torch.stack([module(x[:, i : i + 1]) for i in range(3)])
        together = torch.nn.functional.normalize(apart.sum(dim=0), dim=-1)
        assert torch.allclose(module(x), together, atol=1e-6)


@both_kinds
def test_a_recording_without_any_signal_is_nan_and_the_others_are_not(
    name: str, encoder_of: Encoders
) -> None:
    module = encoder_of(name).to_module()
    x = torch.randn(3, len(module.leads) or 2, 800)
    x[1] = torch.nan
    z = module(x)
    assert z[1].isnan().all() and z[[0, 2]].isfinite().all()


@both_kinds
def test_it_learns_in_a_loop_of_ones_own(name: str, encoder_of: Encoders) -> None:
    torch.manual_seed(0)
    module = encoder_of(name).to_module().train()
    leads = len(module.leads) or 2
    x, toward = torch.randn(6, leads, 400), torch.randn(6, 72)
    x[0, 0, 5] = torch.nan  # a missing lead teaches nothing
    x[1] = torch.nan
    known = torch.tensor([0, 2, 3, 4, 5])
    optimiser = torch.optim.Adam(module.parameters(), lr=3e-3)
    losses = []
    for _ in range(8):
        optimiser.zero_grad()
        loss = -(module(x)[known] * toward[known]).sum(dim=-1).mean()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]
    assert all(tensor.isfinite().all() for tensor in module.state_dict().values())


@both_kinds
def test_batch_norm_is_not_moved_by_what_is_missing(name: str, encoder_of: Encoders) -> None:
    first, second = (encoder_of(name).to_module().train() for _ in range(2))
    for module in (first, second):
        for layer in module.modules():
            if isinstance(layer, torch.nn.Dropout):
                layer.p = 0.0
    x = torch.randn(3, len(first.leads) or 1, 400)
    padded = torch.cat([x, torch.full_like(x[:1], torch.nan)])
    assert torch.allclose(first(x), second(padded)[:3], atol=1e-6)
    state = second.state_dict()
    for name_, tensor in first.state_dict().items():
        assert torch.allclose(tensor, state[name_], atol=1e-6), name_


@both_kinds
def test_gradients_reach_the_ecg_itself(name: str, encoder_of: Encoders) -> None:
    module = encoder_of(name).to_module()
    x = torch.randn(2, len(module.leads) or 2, 400)
    x[0, 0] = 0.3  # flat
    x.requires_grad_()
    (module(x) * torch.randn(72)).sum().backward()
    assert x.grad is not None and x.grad.isfinite().all() and x.grad[1].abs().sum() > 0


def test_wrong_shapes_are_refused_with_what_to_give(encoder_of: Encoders) -> None:
    one, many = (encoder_of(name).to_module() for name in ("cnn", "tiny-leads"))
    with pytest.raises(SettingError, match=r"\(batch, leads, samples\), not \(400,\)"):
        one(torch.zeros(400))
    with pytest.raises(SettingError, match=r"399 samples is shorter .* at least 400, at 160 Hz"):
        one(torch.zeros(1, 1, 399))
    with pytest.raises(SettingError, match=r"4 leads \(II, V2, aVL, aVR\), samples\), not \(1, 3"):
        many(torch.zeros(1, 3, 400))


def test_filters_are_left_to_the_user_with_a_warning(encoder_of: Encoders) -> None:
    plain = encoder_of("cnn")
    frame = replace(plain.card.frame, filters=Filters(notch=50))
    checkpoint = replace(plain, card=replace(plain.card, frame=frame))
    with pytest.warns(ClocsWarning, match=r"filtered recordings \(notch 50 Hz\)"):
        checkpoint.to_module()


def test_encoders_of_one_lead_take_a_single_lead(encoder_of: Encoders) -> None:
    singles = [name for name in ENCODERS if not is_multilead(name)]
    assert singles
    for name in singles:
        assert encoder_of(name).to_module()(torch.randn(1, 1, 400)).shape == (1, 72)
