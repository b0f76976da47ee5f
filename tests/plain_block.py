"""The paper's block in ordinary torch: the slow twin of `clocs.kernels`."""

from __future__ import annotations

import torch
from torch import Tensor

from clocs.kernels.native import EPSILON, KERNEL, POOL, STRIDE


def plain_block(
    h: Tensor, weight: Tensor, gamma: Tensor, beta: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The layers one after another, by autograd: output, batch mean, batch variance."""
    windows = h.unfold(2, KERNEL, STRIDE).transpose(3, 4).flatten(3)  # (members, n, out, 7·c)
    y = torch.einsum("mnok,mkc->mnoc", windows, weight)
    variance, mean = torch.var_mean(y, dim=(1, 2), correction=0)
    normal = (y - mean[:, None, None]) * (variance + EPSILON).rsqrt()[:, None, None]
    rectified = torch.relu(normal * gamma[:, None, None] + beta[:, None, None])
    half = rectified.shape[2] // POOL
    pooled = rectified[:, :, : half * POOL].unflatten(2, (half, POOL)).amax(dim=3)
    return pooled, mean, variance
