"""Keyed random numbers by Triton kernels: the same bits as in torch."""

from __future__ import annotations

import torch

from clocs.kernels import keyed_random


def test_folded_keys_are_the_same_bits(device: torch.device) -> None:
    from clocs.kernels.keyed_random_triton import folded

    keys = keyed_random.member_keys([3, 4, 1 << 40])
    layers = torch.arange(1, 4)[:, None]
    epoch = torch.tensor(7)
    many: list[tuple[int | torch.Tensor, ...]] = [
        (keyed_random.stream("order"),),
        (keyed_random.stream("order"), epoch),
        (layers,),
        (keyed_random.stream("step"), epoch, torch.arange(300)[:, None]),
        (1, -5, epoch, layers, 2**62, keys),
        (),
    ]
    for parts in many:
        there = tuple(p.to(device) if isinstance(p, torch.Tensor) else p for p in parts)
        found = folded(keys.to(device), there).cpu()
        assert torch.equal(found, keyed_random.fold(keys, *parts)), parts


def test_draws_are_the_same_bits(device: torch.device) -> None:
    from clocs.kernels.keyed_random_triton import drawn

    keys = keyed_random.member_keys([3, 4])
    for count in (1, 255, 3001):
        bits = drawn(keys.to(device), count, torch.int64).cpu()
        assert torch.equal(bits, keyed_random.bits(keys, count))
        for dtype in (torch.float64, torch.float32):
            draws = drawn(keys.to(device), count, dtype).cpu()
            assert torch.equal(draws, keyed_random.uniform(keys, count, dtype))
