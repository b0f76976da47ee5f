"""Whether Triton kernels can be used. The modules `…_triton` import Triton, so check first."""

from __future__ import annotations

from importlib.util import find_spec

import torch
from torch import Tensor


def can_use_triton(x: Tensor, dtype: torch.dtype) -> bool:
    """Whether Triton kernels can be used: by device and type alone, so that runs are repeatable."""
    supported = dtype in (torch.float32, torch.bfloat16)
    return x.is_cuda and supported and find_spec("triton") is not None
