"""Torch's own layers with given weights: what encoders are made of outside a fleet."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from clocs.encoders.base import Weights


@torch.no_grad()
def put(layer: nn.Module, **tensors: Tensor) -> None:
    """Copies of these tensors in the place of the layer's own."""
    for name, tensor in tensors.items():
        own = tensor.detach().clone(memory_format=torch.contiguous_format)
        if name in layer._parameters:
            layer._parameters[name] = nn.Parameter(own)
        else:
            layer._buffers[name] = own


def batch_norm(scale: Tensor, shift: Tensor, mean: Tensor, variance: Tensor) -> nn.BatchNorm1d:
    """All (channels,)."""
    norm = nn.BatchNorm1d(len(scale))
    put(norm, weight=scale, bias=shift, running_mean=mean, running_var=variance)
    return norm


class NormedConv(nn.Module):
    """A convolution with zeros around its input and without a bias, then batch norm."""

    def __init__(self, conv: nn.Conv1d, norm: nn.BatchNorm1d) -> None:
        super().__init__()
        self.conv, self.norm = conv, norm

    @classmethod
    def of(
        cls,
        name: str,
        weights: Weights,
        buffers: Weights,
        kernel: Tensor,
        stride: int,
        groups: int = 1,
    ) -> NormedConv:
        """That of this name among an encoder's tensors, (1, …) each; kernel: as torch has it."""
        c_out, c_in, width = kernel.shape
        reach = width // 2
        conv = nn.Conv1d(c_in * groups, c_out, width, stride, reach, groups=groups, bias=False)
        put(conv, weight=kernel)
        norm = batch_norm(
            *(weights[f"{name}.norm.{kind}"][0] for kind in ("weight", "bias")),
            *(buffers[f"{name}.norm.{kind}"][0] for kind in ("mean", "variance")),
        )
        return cls(conv, norm)

    def forward(self, h: Tensor) -> Tensor:
        made: Tensor = self.norm(self.conv(h))
        return made
