"""Networks of many leads at once: `multilead`, on standardized leads, and `voltage`, on mV.

`multilead` has a stem (convolution 15 at stride 2) and four stages with 64, 128, 256 and
`embedding_dim` / 2 channels; a shortcut that changes the shape averages over time before its
convolution (He et al. 2019). Any lead may be missing: it is zero in the stem, where the others are
scaled up by √(leads / leads that are present); a learned weight per lead and channel, added where
the lead is present, tells which ones are. The embedding is the mean over time of the feature map
and its greatest value: what lasts, and what happens once. The stem's stride and kernel grow with
frames of more than 1,000 samples, so that at most 500 steps leave it and the cost stays bounded.

`voltage` is the same network on frames in mV, with a branch for the amplitudes of each lead.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from clocs.encoders.base import EncoderRow, Weights
from clocs.encoders.residual import LEAD_PRESENCE, Conv, Network, Residual, drawn, make_network
from clocs.errors import SettingError

WIDTHS = (64, 128, 256)  # channels of the stages; of the last one, half of `embedding_dim`
LONGEST = 1000  # samples of a frame that the stem sees at its smallest stride
WIDEST = 4096
TYPICAL_MV, GREATEST_MV = 0.2, 5.0  # of a lead of `voltage`: its scale, and where it is cut off


@dataclass(frozen=True)
class MultiLead(Residual):
    """A network of 20 convolutions: 3.6 million weights at twelve leads and E = 640."""

    embedding_dim: int = 640
    samples: int = 500
    dropout: float = 0.0  # where leads are missing at random, it is not needed
    name: str = "multilead"

    multilead: ClassVar[bool] = True
    compiles: ClassVar[bool] = True
    branch: ClassVar[int] = 0  # numbers of an embedding that are not of the feature map

    def __post_init__(self) -> None:
        super().__post_init__()
        least = self.branch + 2
        if not least <= self.embedding_dim <= WIDEST or self.embedding_dim % 2:
            more = f"{self.branch} more than " if self.branch else ""
            raise SettingError(
                f"`embedding_dim` of the encoder {self.name!r} is {more}twice the width of its "
                f"last stage: an even number from {least} to {WIDEST}, not {self.embedding_dim}"
            )
        if not self.leads or len(set(self.leads)) < len(self.leads):
            raise SettingError(
                f"the encoder {self.name!r} needs the names of its leads, each once, not "
                f"{', '.join(self.leads) or 'none'}"
            )

    @property
    def maxima(self) -> tuple[int, ...]:
        width = (self.embedding_dim - self.branch) // 2
        return width, 2 * width

    @property
    def network(self) -> Network:
        width = (self.embedding_dim - self.branch) // 2
        return _multilead(len(self.leads), self.samples, width)

    def parameters(self, keys: Tensor) -> Weights:
        leads = len(self.leads)
        presence = drawn(keys, LEAD_PRESENCE, (WIDTHS[0], leads), leads)
        return super().parameters(keys) | {LEAD_PRESENCE: presence}

    def pooled(self, h: Tensor, weights: Weights, x: Tensor) -> Tensor:
        return torch.cat([h.mean(dim=1), h.amax(dim=1)], dim=-1)


@dataclass(frozen=True)
class Voltage(MultiLead):
    """`multilead` on frames in mV, with a branch for the amplitudes of each lead.

    Frames are centered and cut off at ±5 mV, and all leads have one fixed scale, so that voltages
    stay. The branch reads the spread and the greatest and least voltage of each lead.
    """

    embedding_dim: int = 864
    name: str = "voltage"

    in_mv: ClassVar[bool] = True
    # Compiled by torch 2.11 on an H200, it learned less: its training loss ended at 0.38, not 0.07.
    compiles: ClassVar[bool] = False
    branch: ClassVar[int] = 64

    def parameters(self, keys: Tensor) -> Weights:
        weights, c_in = super().parameters(keys), 4 * len(self.leads)
        for number in (1, 2):
            for kind, shape in (("weight", (self.branch, c_in)), ("bias", (self.branch,))):
                name = f"amplitudes.linear{number}.{kind}"
                weights[name] = drawn(keys, name, shape, c_in)
            c_in = self.branch
        return weights

    def scaled(self, x: Tensor) -> Tensor:
        return _centered(x) / TYPICAL_MV

    def pooled(self, h: Tensor, weights: Weights, x: Tensor) -> Tensor:
        z = amplitudes(x.to(h.dtype))
        for number in (1, 2):
            name = f"amplitudes.linear{number}"
            z = functional.linear(z, weights[f"{name}.weight"], weights[f"{name}.bias"])
            z = z.relu() if number == 1 else z
        return torch.cat([super().pooled(h, weights, x), z], dim=-1)


def amplitudes(x: Tensor) -> Tensor:
    """x: (n, leads, samples) in mV, nan where missing -> (n, 4·leads), 0 where missing.

    The log of the spread, the 99.5 % and the 0.5 % quantile, and whether the lead is present.
    """
    there = ~x[..., 0].isnan()
    x = _centered(x.masked_fill(~there[..., None], 0))
    rank = 0.005 * (x.shape[-1] - 1)
    low = int(rank)
    ends = [one.topk(low + 2, dim=-1).values[..., low:] for one in (x, -x)]
    high, least = (one[..., 0].lerp(one[..., 1], rank - low) for one in ends)
    spread = (x.square().mean(dim=-1) + 1e-6).log() / 2 - math.log(TYPICAL_MV)
    present = there.to(x.dtype)
    return torch.cat([*(one * present for one in (spread, high, -least)), present], dim=1)


def _centered(x: Tensor) -> Tensor:
    return (x - x.mean(dim=-1, keepdim=True)).clamp(-GREATEST_MV, GREATEST_MV)


@cache
def _multilead(leads: int, samples: int, width: int) -> Network:
    times = -(-samples // LONGEST)
    stem = Conv("stem", leads, WIDTHS[0], (15 * times) | 1, 2 * times)
    return make_network(stem, (*WIDTHS, width), 5, averages=True, masked=True)


MULTILEAD = EncoderRow("multilead", MultiLead)
VOLTAGE = EncoderRow("voltage", Voltage)
