from __future__ import annotations

from collections.abc import Callable
from random import Random

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from clocs.kernels import keyed_random

SEEDS = st.lists(st.integers(0, 2**31), min_size=1, max_size=4, unique=True)


@given(SEEDS, st.integers(1, 500))
@settings(max_examples=25)
def test_a_member_draws_the_same_whoever_else_is_in_the_fleet(seeds: list[int], n: int) -> None:
    together = keyed_random.bits(keyed_random.member_keys(seeds), n)
    for row, seed in enumerate(seeds):
        assert torch.equal(keyed_random.bits(keyed_random.member_keys([seed]), n)[0], together[row])


@given(SEEDS, st.integers(1, 300))
@settings(max_examples=25)
def test_a_permutation_holds_every_number_once(seeds: list[int], n: int) -> None:
    for row in keyed_random.permutation(keyed_random.member_keys(seeds), n):
        assert sorted(row.tolist()) == list(range(n))


def test_keys_of_different_coordinates_draw_differently() -> None:
    key = keyed_random.member_keys([0])
    draws = [
        keyed_random.bits(keyed_random.fold(key, *at), 8) for at in ((0, 1), (1, 0), (0, 0), (1, 1))
    ]
    assert len({tuple(d[0].tolist()) for d in draws}) == 4


def test_uniform_draws_look_uniform() -> None:
    draws = keyed_random.uniform(keyed_random.member_keys([1, 2]), 100_000)
    assert draws.min() >= 0
    assert draws.max() < 1
    assert torch.allclose(draws.mean(dim=1), torch.tensor(0.5, dtype=draws.dtype), atol=5e-3)
    assert torch.allclose(draws.var(dim=1), torch.tensor(1 / 12, dtype=draws.dtype), atol=2e-3)
    neighbours = torch.corrcoef(torch.stack([draws[0, :-1], draws[0, 1:]]))[0, 1]
    assert abs(neighbours) < 0.02


def test_dropout_drops_its_share_and_keeps_the_mean() -> None:
    x = torch.ones(3, 7, 33, 41)
    y = keyed_random.dropout(x, 0.1, keyed_random.member_keys([0, 1, 2]))
    dropped = (y == 0).double().mean(dim=(1, 2, 3))
    assert torch.allclose(dropped, torch.tensor(0.1, dtype=torch.double), atol=0.01)
    kept = y[y != 0]
    assert torch.allclose(kept, torch.tensor(1 / 0.9), rtol=1e-4)
    assert not torch.equal(y[0], y[1])


@given(SEEDS, st.integers(1, 9), st.integers(1, 7), st.randoms())
@settings(max_examples=25)
def test_some_rows_draw_what_they_have_in_the_whole_batch(
    seeds: list[int], rows: int, each: int, draw: Random
) -> None:
    keys, count = keyed_random.member_keys(seeds), rows * each
    own = torch.tensor(draw.sample(range(rows), draw.randint(0, rows)), dtype=torch.int64)
    whole = torch.ones(len(seeds), rows, each)
    draws: dict[str, Callable[[int], Tensor]] = {
        "bits": lambda n: keyed_random.bits(keys, n * each),
        "uniform": lambda n: keyed_random.uniform(keys, n * each),
        "lanes": lambda n: keyed_random.lanes(keys, n * each),
        "pairs": lambda n: keyed_random.bits_in_groups(keys, n * each, 2)[0],
        "dropout": lambda n: keyed_random.dropout(whole[:, :n], 0.5, keys).flatten(1),
    }
    for name, made in draws.items():
        expected = made(rows).view(len(seeds), rows, each)[:, own]
        with keyed_random.of_rows(own):
            found = made(len(own))
        assert torch.equal(found.view(len(seeds), len(own), each), expected), (name, count)
