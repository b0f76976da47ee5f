"""The paper's convolutional block, by the fastest of its three implementations that can run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from clocs import keyed_random
from clocs.kernels import collectives
from clocs.kernels.block_native import NativeBlock, can_use_native_block, native_block_eval
from clocs.kernels.block_torch import EPSILON, KERNEL, TorchBlock, torch_block_eval
from clocs.kernels.triton_support import can_use_triton

_Block = Callable[..., tuple[Tensor, Tensor, Tensor]]


def conv_block(
    h: Tensor, weight: Tensor, gamma: Tensor, beta: Tensor, keys: Tensor, dropout: float
) -> tuple[Tensor, Tensor, Tensor]:
    """A block in training mode, normalized by the batch's own statistics.

    Where processes share the batch, these are the statistics of all its rows, and torch runs it.

    Args:
        h: (members, n, length, c_in); activations may be of a lower precision than weights.
        weight: (members, 7·c_in, c_out), the kernel's samples before its channels.
        gamma: (members, c_out), batch norm's scale.
        beta: (members, c_out), batch norm's shift.
        keys: (members,) that determine the dropout.
        dropout: Its probability.

    Returns:
        (members, n, out // 2, c_out), and the batch's mean and (biased) variance, (members, c_out).
    """
    shared = collectives.is_shared()
    if can_use_triton(h, h.dtype) and not shared:
        from clocs.kernels.block_triton import TritonBlock

        triton_block: _Block = TritonBlock.apply
        return triton_block(h, weight, gamma, beta, keys, dropout)
    if can_use_native_block(h, weight) and not shared:
        native_block: _Block = NativeBlock.apply
        return native_block(h, weight, gamma, beta, keys, dropout)
    torch_block: _Block = TorchBlock.apply
    # without matrix units for it, lower precision only rounds: arithmetic stays as it is
    out, mean, variance = torch_block(h.to(weight.dtype), weight, gamma, beta)
    out = keyed_random.dropout(out, dropout, keys) if dropout else out
    return out.to(h.dtype), mean, variance


def conv_block_eval(
    h: Tensor, weight: Tensor, gamma: Tensor, beta: Tensor, mean: Tensor, variance: Tensor
) -> Tensor:
    """The same block normalized by given statistics, without dropout."""
    scale = gamma * (variance + EPSILON).rsqrt()
    shift = beta - mean * scale
    if can_use_triton(h, h.dtype) and h.numel():
        from clocs.kernels.block_triton import triton_block_eval

        return triton_block_eval(h, weight, scale, shift)
    learning = torch.is_grad_enabled() and any(x.requires_grad for x in (h, weight, scale, shift))
    if not learning and can_use_native_block(h, weight) and h.numel():
        return native_block_eval(h, weight, scale, shift)
    return torch_block_eval(h, weight, scale, shift)


def block_implementation(
    device: torch.device, dtype: torch.dtype = torch.float32
) -> Literal["triton", "native", "torch"]:
    """Which code runs the paper's blocks there; 'native' is compiled C."""
    h = torch.empty(1, 1, 13, 1, dtype=dtype, device=device)
    if can_use_triton(h, dtype):
        return "triton"
    native = can_use_native_block(h, torch.empty(1, KERNEL, 4, device=device))
    return "native" if native else "torch"
