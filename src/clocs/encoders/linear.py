"""A linear layer with ReLU, for a fleet."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from clocs.kernels.triton_support import can_use_triton


def linear_relu(h: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """max(0, h·weight + bias), as precise as the weights.

    Args:
        h: (members, n, c_in); may be of a lower precision than weights.
        weight: (members, c_in, c_out).
        bias: (members, c_out).
    """
    if can_use_triton(h, h.dtype) and weight.dtype == torch.float32 and h.numel():
        from clocs.kernels.linear_triton import LinearReLU

        layer: Callable[..., Tensor] = LinearReLU.apply
        return layer(h, weight, bias)
    if h.is_cuda:  # matrix units take the lower precision
        z = torch.baddbmm(bias[:, None].to(h.dtype), h, weight.to(h.dtype)).to(weight.dtype)
    else:
        z = torch.baddbmm(bias[:, None], h.to(weight.dtype), weight)
    return torch.relu(z)
