"""A network of many leads in the manner of ConvNeXt (Liu et al. 2022), in one dimension.

Four stages of 2, 2, 4 and 2 blocks with 64, 128, 256 and `embedding_dim` / 2 channels; between
stages a convolution 3 at stride 2. A block adds to its input a branch of a convolution 11 of each
channel by itself, one to four times the channels, GELU, dropout and one back. Every convolution is
followed by batch norm; that of a branch's last starts at 0.1, as a layer scale. A last convolution
1 and ReLU make the feature map. The stem, missing leads and the pooling over time are in
`many_lead.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, partial

from torch import Tensor
from torch.nn import functional

from clocs.encoders.base import EncoderRow
from clocs.encoders.many_lead import WIDTHS, ManyLeadEncoder, stem
from clocs.encoders.many_lead_network import Conv, Convolved, Drop, Network

BLOCKS = (2, 2, 4, 2)  # of each stage
KERNEL, WIDER, SCALE = 11, 4, 0.1


@dataclass(frozen=True)
class _Block:
    before: Conv | None  # between stages
    along: Conv  # over time, each channel by itself
    up: Conv
    down: Conv

    @property
    def convs(self) -> tuple[Conv, ...]:
        return tuple(c for c in (self.before, self.along, self.up, self.down) if c is not None)


@dataclass(frozen=True)
class MultiLeadConvNeXt(ManyLeadEncoder):
    """ConvNeXt of 35 convolutions: 4.6 million weights at twelve leads and E = 640."""

    name: str = "multilead-convnext"

    @property
    def network(self) -> Network:
        return _network(len(self.leads), self.samples, self.embedding_dim // 2)


ENCODER = EncoderRow("multilead-convnext", MultiLeadConvNeXt)


@cache
def _network(leads: int, samples: int, width: int) -> Network:
    blocks, c_in = [], WIDTHS[0]
    for stage, (c, count) in enumerate(zip((*WIDTHS, width), BLOCKS, strict=True), start=1):
        for number in range(1, count + 1):
            name = f"stage{stage}.block{number}"
            first = stage > 1 and number == 1
            blocks.append(
                _Block(
                    Conv(f"stage{stage}.before", c_in, c, 3, 2) if first else None,
                    Conv(f"{name}.along", c, c, KERNEL, groups=c),
                    Conv(f"{name}.up", c, WIDER * c, 1),
                    Conv(f"{name}.down", WIDER * c, c, 1, scale=SCALE),
                )
            )
        c_in = c
    last = Conv("last", width, width, 1)
    convs = (*(conv for block in blocks for conv in block.convs), last)
    body = partial(_body, tuple(blocks), last)
    return Network(stem(leads, samples), convs, len(blocks), body)


def _body(
    blocks: tuple[_Block, ...], last: Conv, h: Tensor, convolved: Convolved, drop: Drop
) -> Tensor:
    for number, block in enumerate(blocks):
        if block.before is not None:
            h = convolved(block.before, h)
        inner = convolved(block.up, convolved(block.along, h))
        h = h + convolved(block.down, drop(number, functional.gelu(inner)))
    return convolved(last, h).relu_()
