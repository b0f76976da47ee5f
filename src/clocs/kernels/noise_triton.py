"""Normal noise on a GPU, by one Triton kernel."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from clocs.kernels.random_triton import normal


def normal_noise(keys: Tensor, count: int) -> Tensor:
    """keys: (members,) -> (members, count) standard normal numbers."""
    out = torch.empty(len(keys), count, device=keys.device)
    _noise[(triton.cdiv(count, 1024), len(keys))](keys.contiguous(), out, count, 1024)
    return out


@triton.jit
def _noise(keys, o, total, size: tl.constexpr):
    member = tl.program_id(1)
    element = tl.program_id(0) * size + tl.arange(0, size)
    value = normal(tl.load(keys + member), element)
    tl.store(o + member.to(tl.int64) * total + element, value, mask=element < total)
