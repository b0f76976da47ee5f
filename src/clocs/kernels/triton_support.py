"""Triton kernels below the encoders: windows gathered, noise drawn. Knows nothing about encoders.

Only `serves` may be imported everywhere; the modules need Triton, so import them where it does.
"""

from __future__ import annotations

from importlib.util import find_spec

import torch
from torch import Tensor


def can_use_triton(x: Tensor, dtype: torch.dtype) -> bool:
    """Whether Triton kernels serve: a choice by device and type alone, so runs stay repeatable."""
    served = dtype in (torch.float32, torch.bfloat16)
    return x.is_cuda and served and find_spec("triton") is not None
