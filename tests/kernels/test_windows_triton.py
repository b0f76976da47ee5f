"""Views made by one kernel against those made by torch, in Triton's interpreter and on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from clocs.experiments.grid import CHAINS
from clocs.frames.views import Views, perturbed, transformed
from clocs.kernels import keyed_random
from clocs.pretraining import batches
from clocs.pretraining.batches import BatchMaker, DeviceInstances
from clocs.pretraining.methods.baselines import TASKS
from clocs.pretraining.perturbations import PERTURBATIONS, Perturbation, parse
from clocs.training.signals import Signals, StreamedSignals

FIGURE_3 = tuple(chain for chain in CHAINS if "sa_f" not in chain)
SINGLE = (
    "gaussian(sigma=0.05)", "flip_x", "flip_x(always=true)", "flip_y", "flip_y(always=true)",
    "sa_t", "sa_t(w=0.1, r=3)", "scaling(factor=-0.7)", "noise_snr(db=10)",
    "permutation(pieces=1)", "permutation(pieces=7)", "permutation(pieces=64)",
    "time_warp", "time_warp(pieces=1)", "time_warp(pieces=13, factor=1.5)",
)  # fmt: skip
LONG = (
    "gaussian>time_warp>noise_snr", "sa_t>permutation>gaussian", "scaling>flip_x>flip_y>sa_t",
    "noise_snr>gaussian", "gaussian>gaussian",
)  # fmt: skip


@pytest.fixture(autouse=True)
def fused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches are made by the kernel, in the interpreter, too."""
    monkeypatch.setattr(batches, "can_use_triton", lambda *given: True)


def made(
    views: Views,
    device: torch.device,
    *,
    members: int = 2,
    samples: int = 300,
    batch: int = 2,
    dtype: torch.dtype = torch.float32,
    stream: bool = False,
    in_mv: bool = False,
) -> Tensor:
    """The views of a batch: (members, copies·windows·batch, samples)."""
    draw = np.random.default_rng(samples)
    instances, windows = 11, views.segments
    leads = 3 if views.most_leads else 1
    size = instances * windows * leads * samples
    walk = torch.from_numpy(draw.integers(-20, 21, size).cumsum().astype(np.int16))
    starts = torch.arange(size // samples).view(instances, windows, leads) * samples
    starts = starts if views.most_leads else starts[..., 0]
    none = torch.zeros(instances, device=device)
    # with random crops, all windows of an instance may begin anywhere in its samples
    room = torch.full((instances,), (windows - 1) * samples) if views.random_crops else None
    starts = starts[:, :1].expand(-1, windows) if views.random_crops else starts
    part = DeviceInstances(
        windows=starts.to(device),
        scale=torch.linspace(0.001, 0.005, starts.numel(), device=device).view(starts.shape),
        patients=none, targets=none[:, None],
        room=None if room is None else room.to(device), on_host=(starts, room),
    )  # fmt: skip
    rows = torch.from_numpy(draw.integers(0, instances, (members, batch)))
    keys = keyed_random.member_keys(list(range(members)), device)
    signals = Signals(walk.to(device), samples, dtype)
    if stream:
        signals = StreamedSignals(walk, samples, dtype, device, members * windows * leads * batch)
        next(staged := iter(signals.staged([part.starts(rows, keys.cpu())])))
    maker = BatchMaker(signals, views, multilabel=False, in_mv=in_mv)
    x = maker.batch(part, rows.to(device), keys).x
    if stream:
        assert not list(staged)
    return x.cpu()


def both(device: torch.device, views: Views, **given: object) -> Iterator[Tensor]:
    yield made(views, device, **given)  # type: ignore[arg-type]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batches, "can_use_triton", lambda *given: False)
        yield made(views, torch.device("cpu"), **given)  # type: ignore[arg-type]


def assert_same(
    device: torch.device, views: Views, *, exact: bool = False, **given: object
) -> None:
    fused, plain = both(device, views, **given)
    assert fused.shape == plain.shape and fused.dtype == plain.dtype
    if exact:
        assert torch.equal(fused, plain)
    else:
        assert (fused - plain).abs().max() < 1e-5


def is_exact(chain: str) -> bool:
    return not any(name in chain for name in ("gaussian", "noise", "sa_t", "warp"))


@pytest.mark.parametrize("chain", dict.fromkeys((*SINGLE, *FIGURE_3, *LONG)))
def test_fused_views_equal_those_of_torch(device: torch.device, chain: str) -> None:
    assert batches.program(parse(chain), 331) is not None
    members = 1 if "pieces=64" in chain else 2  # the interpreter takes a second for each
    assert_same(
        device, perturbed(chain), samples=331, exact=is_exact(chain), members=members, batch=1
    )


def test_a_frame_of_2500_samples_is_made_alike(device: torch.device) -> None:
    for chain in ("gaussian", "permutation(pieces=20)", "time_warp"):
        assert_same(
            device, perturbed(chain), samples=2500, exact=is_exact(chain), members=1, batch=1
        )


def test_all_transforms_of_mt_ssl_equal_those_of_torch(device: torch.device) -> None:
    assert_same(device, transformed(*TASKS.values()), samples=331, batch=1, stream=True)
    # those without noise and interpolation
    kept = [TASKS[name] for name in ("scaling", "negation", "inversion", "permutation")]
    assert_same(device, transformed(*kept), exact=True)


@pytest.mark.parametrize("stream", [False, True])
def test_windows_without_perturbation_are_exact(device: torch.device, stream: bool) -> None:
    assert_same(device, Views(segments=2), exact=True, batch=5, stream=stream)
    assert_same(device, Views(segments=3, copies=("flip_y",) * 2), exact=True, stream=stream)


@pytest.mark.parametrize("stream", [False, True])
def test_random_crops_are_the_same_in_kernels(device: torch.device, stream: bool) -> None:
    crops = replace(Views(segments=2), random_crops=True)
    assert_same(device, crops, exact=True, stream=stream)
    noisy = replace(perturbed("gaussian>flip_y"), segments=2, random_crops=True)
    assert_same(device, noisy, stream=stream)


@pytest.mark.parametrize("stream", [False, True])
def test_views_of_random_leads_are_the_same_in_kernels(device: torch.device, stream: bool) -> None:
    assert_same(device, replace(Views(segments=2), most_leads=1), exact=True, stream=stream)
    assert_same(device, replace(perturbed("gaussian>flip_y"), most_leads=1), stream=stream)


def test_views_left_in_millivolts_are_made_alike(device: torch.device) -> None:
    assert_same(device, Views(segments=2), exact=True, in_mv=True)
    assert_same(device, perturbed("gaussian>flip_y"), in_mv=True)
    assert_same(device, transformed("scaling", "permutation"), exact=True, in_mv=True)


def test_views_in_bfloat16_are_those_in_float32_rounded(device: torch.device) -> None:
    views = transformed(*TASKS.values())
    half = made(views, device, members=1, batch=1, dtype=torch.bfloat16)
    assert half.dtype == torch.bfloat16
    whole = made(views, device, members=1, batch=1)
    assert torch.allclose(half.float(), whole, rtol=2**-7, atol=1e-6)


def test_chains_that_a_single_pass_cannot_make_are_left_to_torch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = Perturbation(lambda x, keys: x, {})
    monkeypatch.setitem(PERTURBATIONS, "own", own)
    for chain in (
        "sa_f", "gaussian>sa_f", "flip_y>permutation", "noise_snr>flip_y", "own",
        "permutation(pieces=65)",
    ):  # fmt: skip
        assert batches.program(parse(chain), 2500) is None, chain
    assert batches.program(parse("permutation(pieces=50)"), 40) is None
    assert batches.program(parse("flip_y>noise_snr"), 2500) is not None


def test_every_fused_perturbation_is_tested() -> None:
    fused = {name for name, row in PERTURBATIONS.items() if row.fused}
    assert fused == {step.name for chain in SINGLE for step in parse(chain).steps}
