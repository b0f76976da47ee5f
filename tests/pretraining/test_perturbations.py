"""Every perturbation equals a slow twin, and is a function of (key, element) alone."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.signal
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from clocs.errors import SettingError
from clocs.experiments.grid import CHAINS
from clocs.kernels import keyed_random
from clocs.pretraining import perturbations
from clocs.pretraining.methods.baselines import TASKS
from clocs.pretraining.perturbations import PERTURBATIONS, parse

NAMES = st.sampled_from(sorted(PERTURBATIONS))
LENGTHS = st.integers(260, 900)
RANDOM = (
    "gaussian",
    "flip_y",
    "flip_x",
    "sa_t",
    "sa_f",
    "permutation",
    "time_warp",
    "stretch",
    "noise_snr",
)


def keys(*seeds: int) -> Tensor:
    return keyed_random.member_keys(list(seeds))


def ecgs(members: int, n: int, samples: int, dtype: torch.dtype = torch.float64) -> Tensor:
    rng = np.random.default_rng(members * 7 + n * 3 + samples)
    smooth = np.cumsum(rng.normal(0, 0.05, (members, n, samples)), axis=-1)
    return torch.from_numpy(smooth + 0.3).to(dtype)


def floats(key: Tensor, count: int) -> NDArray[np.float64]:
    return np.asarray(keyed_random.uniform(key, count)[0])


# Twins: one view at a time, numpy and scipy, from the same draws.


def slow_normals(key: Tensor, count: int) -> NDArray[np.float64]:
    values: list[float] = []
    for draw in np.asarray(keyed_random.bits(key, (count + 1) // 2)[0]).view(np.uint64):
        radius = np.sqrt(-2 * np.log(((int(draw) >> 32) + 1) / 2**32))
        angle = 2 * np.pi * (int(draw) & 0xFFFFFFFF) / 2**32
        values += [radius * np.cos(angle), radius * np.sin(angle)]
    return np.array(values[:count])


def slow_gaussian(x: NDArray[np.float64], key: Tensor) -> NDArray[np.float64]:
    return x + 0.010 * slow_normals(key, x.size).reshape(x.shape)


def slow_noise_snr(x: NDArray[np.float64], key: Tensor) -> NDArray[np.float64]:
    noise = slow_normals(key, x.size).reshape(x.shape)
    return np.stack(
        [row + np.sqrt(row.var() / 10**1.5) * e for row, e in zip(x, noise, strict=True)]
    )


def slow_flip_y(x: NDArray[np.float64], key: Tensor) -> NDArray[np.float64]:
    return np.stack(
        [row[::-1] if u < 0.5 else row for row, u in zip(x, floats(key, len(x)), strict=True)]
    )


def slow_flip_x(x: NDArray[np.float64], key: Tensor) -> NDArray[np.float64]:
    return np.stack([-r if u < 0.5 else r for r, u in zip(x, floats(key, len(x)), strict=True)])


def slow_spec_augment(x: NDArray[np.float64], key: Tensor, axis: int) -> NDArray[np.float64]:
    out = []
    for row, u in zip(x, floats(key, len(x)), strict=True):
        padded = np.pad(row, (128, 128 + -row.size % 128), mode="reflect")
        _, _, spectrum = scipy.signal.stft(padded, nperseg=256, boundary=None, padded=False)
        bins = spectrum.shape[axis]
        width = round(0.2 * bins)
        start = int(u * (bins - width + 1))
        spectrum[(slice(None),) * axis + (slice(start, start + width),)] = 0
        _, y = scipy.signal.istft(spectrum, nperseg=256)
        out.append(y[: row.size])
    return np.stack(out)


def slow_permutation(x: NDArray[np.float64], key: Tensor) -> NDArray[np.float64]:
    draws = np.asarray(keyed_random.bits(key, len(x) * 20)[0]).reshape(len(x), 20)
    bounds = [p * x.shape[1] // 20 for p in range(21)]
    out = []
    for row, draw in zip(x, draws, strict=True):
        pieces = [row[bounds[p] : bounds[p + 1]] for p in range(20)]
        out.append(np.concatenate([pieces[p] for p in np.argsort(draw, kind="stable")]))
    return np.stack(out)


def slow_time_warp(x: NDArray[np.float64], key: Tensor) -> NDArray[np.float64]:
    out, samples = [], x.shape[1]
    for row, coins in zip(x, floats(key, len(x) * 9).reshape(-1, 9), strict=True):
        lengths = [1.05 if coin < 0.5 else 1 / 1.05 for coin in coins]
        knots = np.concatenate(([0.0], np.cumsum(lengths))) * (samples - 1) / sum(lengths)
        source = np.interp(np.arange(samples), knots, np.linspace(0, samples - 1, 10))
        out.append(np.interp(source, np.arange(samples), row))
    return np.stack(out)


def slow_stretch(x: NDArray[np.float64], key: Tensor) -> NDArray[np.float64]:
    out, time = [], np.arange(x.shape[1])
    for row, (how, where) in zip(x, floats(key, 2 * len(x)).reshape(-1, 2), strict=True):
        share = 1.2**-how
        times = where * (1 - share) * time[-1] + time * share
        out.append(np.interp(times, time, row))
    return np.stack(out)


TWINS = {
    "gaussian": slow_gaussian,
    "flip_y": slow_flip_y,
    "flip_x": slow_flip_x,
    "sa_t": lambda x, key: slow_spec_augment(x, key, 1),
    "sa_f": lambda x, key: slow_spec_augment(x, key, 0),
    "scaling": lambda x, key: x * 1.1,
    "permutation": slow_permutation,
    "time_warp": slow_time_warp,
    "stretch": slow_stretch,
    "noise_snr": slow_noise_snr,
}


@pytest.mark.parametrize("chain", ["stretch", "flip_y", "permutation", "time_warp(pieces=3)"])
def test_all_leads_of_a_view_are_moved_in_time_together(chain: str) -> None:
    x, key = ecgs(2, 3, 500), keys(4, 9)
    leads = torch.stack([x, 2 * x, torch.full_like(x, torch.nan)], dim=2)
    made = parse(chain)(leads, key)
    np.testing.assert_allclose(made[:, :, 0], parse(chain)(x, key), atol=1e-4)
    np.testing.assert_allclose(made[:, :, 1], 2 * made[:, :, 0])
    assert made[:, :, 2].isnan().all()


def test_the_leads_of_a_view_have_noise_of_their_own() -> None:
    x = ecgs(1, 2, 500)[:, :, None].expand(-1, -1, 2, -1)
    made = parse("gaussian")(x, keys(4)) - x
    assert not torch.allclose(made[:, :, 0], made[:, :, 1])


def test_every_perturbation_has_a_twin() -> None:
    assert TWINS.keys() == PERTURBATIONS.keys()


@pytest.mark.parametrize("name", PERTURBATIONS)
@pytest.mark.parametrize("samples", [2500, 1280, 1023])
def test_a_perturbation_equals_its_slow_twin(name: str, samples: int) -> None:
    x, key = ecgs(2, 3, samples), keys(4, 9)
    fast = PERTURBATIONS[name].run(x, key)
    for member in range(2):
        slow = TWINS[name](x[member].numpy(), key[member : member + 1])
        np.testing.assert_allclose(fast[member].numpy(), slow, atol=1e-11, rtol=0)


@given(NAMES, st.integers(1, 3), st.integers(1, 4), LENGTHS, st.booleans())
@settings(max_examples=30, deadline=None)
def test_shape_and_precision_are_kept(
    name: str, members: int, n: int, samples: int, single: bool
) -> None:
    x = ecgs(members, n, samples, torch.float32 if single else torch.float64)
    before = x.clone()
    y = parse(name)(x, keys(*range(members)))
    assert (y.shape, y.dtype) == (x.shape, x.dtype)
    assert torch.isfinite(y).all()
    assert torch.equal(x, before)


@given(st.sampled_from((*sorted(PERTURBATIONS), *CHAINS[5:])), st.integers(1, 4), LENGTHS)
@settings(max_examples=30, deadline=None)
def test_a_fleet_equals_its_singles(text: str, n: int, samples: int) -> None:
    x, chain = ecgs(3, n, samples), parse(text)
    together = chain(x, keys(5, 6, 7))
    for row, seed in enumerate((5, 6, 7)):
        alone = chain(x[row : row + 1], keys(seed))[0]
        # torch sums a lone row in another order than many, so equal to rounding
        torch.testing.assert_close(alone, together[row], rtol=0, atol=1e-12)


@given(st.sampled_from(RANDOM), LENGTHS)
@settings(max_examples=20, deadline=None)
def test_a_view_is_perturbed_the_same_however_many_follow_it(name: str, samples: int) -> None:
    x = ecgs(1, 5, samples)
    many, few = parse(name)(x, keys(3)), parse(name)(x[:, :2], keys(3))
    torch.testing.assert_close(many[:, :2], few, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", RANDOM)
def test_members_and_views_are_perturbed_independently(name: str) -> None:
    x = ecgs(1, 1, 600).expand(2, 32, 600)
    y = parse(name)(x, keys(1, 2))
    kinds = [len({tuple(view.tolist()) for view in member}) for member in y]
    at_least = {"flip_y": 2, "flip_x": 2, "sa_t": 4}.get(name, 20)  # sa_t: 6 bins, 1 masked
    assert min(kinds) >= at_least
    assert not torch.equal(y[0], y[1])


def test_the_place_in_a_chain_changes_the_draws() -> None:
    x = torch.zeros(1, 2, 500)
    once, twice = parse("gaussian")(x, keys(0)), parse("gaussian>gaussian")(x, keys(0))
    assert not torch.allclose(twice, 2 * once, atol=1e-3)
    assert torch.equal(parse("scaling>gaussian")(x, keys(0)) + once, twice)


@pytest.mark.parametrize("name", ["flip_y", "flip_x"])
def test_a_flip_undoes_itself_and_happens_to_half_of_the_views(name: str) -> None:
    x = ecgs(1, 1, 40).expand(3, 4000, 40)
    chain, always = parse(name), parse(f"{name}(always=true)")
    once = chain(x, keys(0, 1, 2))
    assert torch.equal(chain(once, keys(0, 1, 2)), x)
    assert torch.equal(always(always(x, keys(0, 1, 2)), keys(0, 1, 2)), x)
    flipped = (once == always(x, keys(0, 1, 2))).all(dim=-1)
    assert torch.equal(flipped, ~(once == x).all(dim=-1))
    assert (flipped.double().mean(dim=1) - 0.5).abs().max() < 0.03


@given(st.integers(1, 25), LENGTHS)
@settings(max_examples=25, deadline=None)
def test_a_permutation_keeps_the_multiset_of_samples(pieces: int, samples: int) -> None:
    x = ecgs(2, 2, samples)
    y = parse(f"permutation(pieces={pieces})")(x, keys(0, 1))
    assert torch.equal(y.sort(dim=-1).values, x.sort(dim=-1).values)


def test_gaussian_noise_has_its_mean_its_spread_and_no_memory() -> None:
    noise = parse("gaussian")(torch.zeros(2, 80, 2500), keys(0, 1)).double().flatten(1)
    assert noise.mean(dim=1).abs().max() < 1e-4
    assert (noise.std(dim=1) - 0.010).abs().max() < 1e-4
    assert (noise.abs() > 0.0196).double().mean().item() == pytest.approx(0.05, abs=2e-3)
    rows = torch.stack([noise[0, :-1], noise[0, 1:], noise[1, 1:], noise[0, :-1] ** 2])
    correlation = torch.corrcoef(torch.cat([rows, noise[None, 0, 1:] ** 2]))
    assert (correlation - torch.eye(5)).abs().max() < 0.015


def test_noise_at_15_db_is_measured_as_15_db_and_leaves_a_flat_frame_alone() -> None:
    x = ecgs(2, 20, 2500) + 5.0
    noise = parse("noise_snr")(x, keys(0, 1)) - x
    ratio = 10 * (x.var(dim=-1) / noise.var(dim=-1)).log10()
    assert (ratio - 15).abs().max() < 0.5
    flat = torch.full((1, 2, 300), 0.7)
    assert torch.equal(parse("noise_snr")(flat, keys(0)), flat)


@given(st.integers(257, 3000))
@settings(max_examples=30, deadline=None)
def test_without_a_mask_the_transform_and_its_inverse_change_nothing(samples: int) -> None:
    x = ecgs(1, 2, samples, torch.float32)
    assert (perturbations.istft(perturbations.stft(x), samples) - x).abs().max() < 1e-5
    for name in ("sa_t", "sa_f"):
        assert (parse(f"{name}(w=0)")(x, keys(0)) - x).abs().max() < 1e-5


def test_the_transform_is_torchs_where_the_hop_divides_the_length() -> None:
    x = ecgs(1, 2, 2560)
    theirs = torch.stft(
        x[0], 256, 128, window=torch.hann_window(256, dtype=x.dtype), return_complex=True
    )
    torch.testing.assert_close(perturbations.stft(x)[0], theirs)
    assert perturbations.stft_shape(2560) == theirs.shape[-2:]
    torch.testing.assert_close(
        perturbations.istft(theirs, 2560),
        torch.istft(theirs, 256, 128, window=torch.hann_window(256, dtype=x.dtype), length=2560),
    )


@given(st.floats(0, 1), st.integers(1, 3), st.integers(1, 130))
@settings(max_examples=40, deadline=None)
def test_masks_are_runs_of_their_width_inside_the_axis(w: float, r: int, bins: int) -> None:
    masks = perturbations.mask(keys(0, 1), 5, bins, w=w, r=r).numpy()
    width = round(w * bins)
    assert masks.shape == (2, 5, bins)
    assert (masks.sum(axis=-1) <= width * r).all()
    assert (masks.sum(axis=-1) >= width).all()


def test_masks_start_everywhere_with_the_same_frequency() -> None:
    draws = keyed_random.uniform(keys(0), 20_000)
    count = torch.bincount(perturbations.mask_starts(draws, bins=21, width=4).flatten())
    assert len(count) == 18
    assert (count / 20_000 - 1 / 18).abs().max() < 0.006


def test_a_mask_in_time_silences_what_lies_within_it_and_nothing_far_from_it() -> None:
    x = torch.ones(1, 8, 2500)
    y = parse("sa_t")(x, keys(0))
    masked = perturbations.mask(parse("sa_t").keys_at(0, keys(0)), 8, 21, w=0.2, r=1)[0]
    for view, hidden in zip(y[0], masked, strict=True):
        inside = hidden[:-1] & hidden[1:]  # stretches of a hop between two masked columns
        outside = ~hidden[:-1] & ~hidden[1:]
        assert not view[inside.repeat_interleave(128)[:2500]].any()
        assert (view[outside.repeat_interleave(128)[:2500]] == 1).all()


def test_a_time_warp_keeps_the_ends_and_moves_the_middle_by_what_its_factor_allows() -> None:
    x = torch.arange(2500, dtype=torch.float64).expand(1, 50, 2500)
    y = parse("time_warp")(x, keys(0))
    assert torch.equal(y[..., 0], x[..., 0])
    torch.testing.assert_close(y[..., -1], x[..., -1])
    assert (y.diff(dim=-1) > 0.9).all()
    assert 10 < (y - x).abs().max() < 0.05 * 2500


@given(st.lists(st.sampled_from(sorted(PERTURBATIONS)), min_size=1, max_size=4), st.data())
@settings(max_examples=40, deadline=None)
def test_a_chain_reads_what_it_writes(names: list[str], data: st.DataObject) -> None:
    values = {
        "sigma": st.floats(0, 1e6),
        "always": st.booleans(),
        "w": st.floats(0, 1),
        "r": st.integers(1, 9),
        "factor": st.floats(1, 10),
        "pieces": st.integers(1, 99),
        "db": st.floats(-200, 200),
    }
    parts = []
    for name in names:
        options = data.draw(st.sets(st.sampled_from(sorted(PERTURBATIONS[name].options))))
        given_ = [f"{o} = {str(data.draw(values[o])).lower()}" for o in sorted(options)]
        parts.append(f" {name}({','.join(given_)}) ")
    chain = parse(">".join(parts))
    assert [step.name for step in chain.steps] == names
    assert parse(str(chain)) == chain
    assert hash(parse(str(chain))) == hash(chain)


def test_a_chain_is_written_without_what_is_the_default() -> None:
    assert str(parse("gaussian(sigma=0.01) > sa_t(w=0.2, r=2)")) == "gaussian>sa_t(r=2)"
    assert parse("gaussian") == parse("gaussian(sigma=0.010)")
    assert [str(parse(text)) for text in CHAINS] == list(CHAINS)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("blur", "no perturbation 'blur'; choose from gaussian"),
        ("", "choose from gaussian"),
        ("gaussian>", "choose from gaussian"),
        ("gaussian(sigma=0.1", "choose from gaussian"),
        ("gaussian(size=1)", "its options are sigma=0.01"),
        ("gaussian(sigma=-1)", "a number from 0 to inf"),
        ("gaussian(sigma=nan)", "a number from 0 to inf"),
        ("flip_y(always=1)", "true or false"),
        ("sa_f(w=1.5)", "a number from 0 to 1"),
        ("sa_f(r=0)", "a whole number from 1 to inf"),
        ("permutation(pieces=2.5)", "a whole number"),
    ],
)
def test_a_senseless_chain_is_refused_in_one_sentence(text: str, words: str) -> None:
    with pytest.raises(SettingError) as error:
        parse(text)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_frames_too_short_for_a_perturbation_are_refused() -> None:
    with pytest.raises(SettingError, match="more than 256"):
        parse("sa_f")(torch.zeros(1, 1, 256), keys(0))
    with pytest.raises(SettingError, match="20 pieces"):
        parse("permutation")(torch.zeros(1, 1, 19), keys(0))


def test_the_tasks_of_mtssl_change_every_view_of_an_ecg() -> None:
    x = ecgs(1, 8, 2500)
    done = {name: parse(chain)(x, keys(0)) for name, chain in TASKS.items()}
    for name, copy in done.items():
        assert (copy != x).any(dim=-1).all(), name
    torch.testing.assert_close(done["scaling"], 1.1 * x)
    assert torch.equal(done["negation"], -x)
    assert torch.equal(done["inversion"], x.flip(-1))
