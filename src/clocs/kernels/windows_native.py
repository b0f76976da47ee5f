"""Windows gathered and normalised on a CPU, in compiled C."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from clocs.kernels.compiler import compiled_library


def native_windows(flat: Tensor, starts: Tensor, samples: int) -> Tensor | None:
    """flat: (samples,) int16, starts: (…) -> (…, samples) float32 in [0, 1]; None without C."""
    library = compiled_library("gather")
    if library is None or not starts.numel():
        return None
    flat, starts = flat.contiguous(), starts.contiguous()
    least, greatest = map(int, torch.aminmax(starts))
    if least < 0 or greatest > len(flat) - samples:
        raise IndexError(f"windows from {least} to {greatest} are not within {len(flat)} samples")
    out = torch.empty(*starts.shape, samples)
    pointers = (ctypes.c_void_p(x.data_ptr()) for x in (flat, starts, out))
    sizes = map(ctypes.c_int64, (starts.numel(), samples, torch.get_num_threads()))
    library.gather(*pointers, *sizes)
    return out
