"""Windows gathered and normalised on a GPU, by one Triton kernel."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


def normalised_windows(
    flat: Tensor, starts: Tensor, samples: int, dtype: torch.dtype = torch.float32
) -> Tensor:
    """flat: (samples,) int16, starts: (…) -> (…, samples) in [0, 1] each."""
    out = torch.empty(*starts.shape, samples, device=flat.device, dtype=dtype)
    _gather[(starts.numel(),)](
        flat, starts.contiguous(), out, samples, triton.next_power_of_2(samples), num_warps=8
    )
    return out


@triton.jit
def _gather(flat, starts, o, samples, width: tl.constexpr):
    """One window per program: int16 samples, scaled from the least (0) to the greatest (1)."""
    window = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, width)
    ok = i < samples
    start = tl.load(starts + window)
    x = tl.load(flat + start + i, mask=ok, other=0).to(tl.float32)
    low = tl.min(tl.where(ok, x, float("inf")), axis=0)
    high = tl.max(tl.where(ok, x, float("-inf")), axis=0)
    span = tl.maximum(high - low, 1e-6)
    tl.store(o + window * samples + i, (x - low) / span, mask=ok)
