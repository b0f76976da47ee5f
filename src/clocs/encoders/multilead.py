"""A residual network that sees many leads at once, any of which may be missing.

A stem (convolution 15 at stride 2) and four stages of two residual blocks with 64, 128, 256 and
`embedding_dim` / 2 channels, each stage but the first halving the length. Every convolution is
followed by batch norm and has no bias; a shortcut that changes the shape averages over time before
its convolution (He et al. 2019); dropout is between the two convolutions of a block. The stem,
missing leads and the pooling over time are in `many_lead.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial

import torch
from torch import Tensor
from torch.nn import functional

from clocs.encoders.base import EncoderRow
from clocs.encoders.many_lead import WIDTHS, ManyLeadEncoder, stem
from clocs.encoders.many_lead_network import Conv, Convolved, Drop, Network

BLOCKS = 2  # per stage
KERNEL = 5


@dataclass(frozen=True)
class _Block:
    first: Conv
    second: Conv
    shortcut: Conv | None  # where the shape changes; else the input itself is added

    @property
    def convs(self) -> tuple[Conv, ...]:
        return tuple(c for c in (self.first, self.second, self.shortcut) if c is not None)


@dataclass(frozen=True)
class MultiLead(ManyLeadEncoder):
    """A residual network of 20 convolutions: 3.6 million weights at twelve leads and E = 640."""

    name: str = "multilead"

    @property
    def network(self) -> Network:
        return _network(len(self.leads), self.samples, self.embedding_dim // 2)


ENCODER = EncoderRow("multilead", MultiLead)


@cache
def _network(leads: int, samples: int, width: int) -> Network:
    blocks, c_in = [], WIDTHS[0]
    for stage, channels in enumerate((*WIDTHS, width), start=1):
        for number in range(1, BLOCKS + 1):
            name = f"stage{stage}.block{number}"
            stride = 2 if stage > 1 and number == 1 else 1
            changed = stride > 1 or c_in != channels
            blocks.append(
                _Block(
                    Conv(f"{name}.first", c_in, channels, KERNEL, stride),
                    Conv(f"{name}.second", channels, channels, KERNEL),
                    Conv(f"{name}.shortcut", c_in, channels, 1) if changed else None,
                )
            )
            c_in = channels
    convs = tuple(conv for block in blocks for conv in block.convs)
    return Network(stem(leads, samples), convs, len(blocks), partial(_body, tuple(blocks)))


def _body(blocks: tuple[_Block, ...], h: Tensor, convolved: Convolved, drop: Drop) -> Tensor:
    for number, block in enumerate(blocks):
        around = h
        if block.shortcut is not None:
            if block.first.stride > 1:
                around = _pairs_averaged(h)
            around = convolved(block.shortcut, around)
        inner = drop(number, convolved(block.first, h).relu_())
        h = convolved(block.second, inner).add_(around).relu_()
    return h


def _pairs_averaged(h: Tensor) -> Tensor:
    """Means of two steps each; of an odd number of steps, the last one stays as it is.

    Not `ceil_mode`: compiled by torch 2.11 or 2.13, its gradient halves that of the last step.
    """
    if h.shape[-1] % 2:
        h = torch.cat((h, h[..., -1:]), dim=-1)
    return functional.avg_pool2d(h, (1, 2))
