"""Normal noise on a GPU, by one Triton kernel."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from clocs.kernels.random_triton import bits


def normal_noise(keys: Tensor, count: int) -> Tensor:
    """keys: (members,) -> (members, count) standard normal numbers."""
    out = torch.empty(len(keys), count, device=keys.device)
    _noise[(triton.cdiv(count, 1024), len(keys))](keys.contiguous(), out, count, 1024)
    return out


@triton.jit
def _noise(keys, o, total, size: tl.constexpr):
    """The numbers of `clocs.pretraining.perturbations.normals`: two per draw (Box–Muller)."""
    member = tl.program_id(1)
    element = tl.program_id(0) * size + tl.arange(0, size)
    x = bits(tl.load(keys + member), element // 2)
    high, low = x >> 32, x & 0xFFFFFFFF
    radius = tl.sqrt(tl.maximum(-2.0 * tl.log((high + 1).to(tl.float32) * 2.0**-32), 0.0))
    angle = low.to(tl.float32) * 1.4629180792671596e-09  # 2π · 2⁻³²
    value = radius * tl.where(element % 2 == 0, tl.cos(angle), tl.sin(angle))
    tl.store(o + member.to(tl.int64) * total + element, value, mask=element < total)
