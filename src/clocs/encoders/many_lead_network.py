"""The convolutions of a network of many leads, and what it does with them, apart from weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

THERE = "stem.there.weight"  # the weight per lead and channel that tells which leads are there


@dataclass(frozen=True)
class Conv:
    """A convolution that is followed by batch norm."""

    name: str
    c_in: int
    c_out: int
    kernel: int
    stride: int = 1
    groups: int = 1
    scale: float = 1.0  # of batch norm, at the start

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.c_out, self.c_in // self.groups, self.kernel


Convolved = Callable[[Conv, Tensor], Tensor]  # and normalized
Drop = Callable[[int, Tensor], Tensor]  # with the number of the block


@dataclass(frozen=True)
class Network:
    """The convolutions of a network, and what it does with them."""

    stem: Conv
    convs: tuple[Conv, ...]  # all after the stem
    blocks: int  # that drop out
    body: Callable[[Tensor, Convolved, Drop], Tensor]  # from the stem to the feature map

    @property
    def every(self) -> tuple[Conv, ...]:
        return (self.stem, *self.convs)

    def weights(self) -> list[str]:
        """Their names."""
        kinds = ("conv.weight", "norm.weight", "norm.bias")
        return [f"{conv.name}.{kind}" for conv in self.every for kind in kinds] + [THERE]

    def statistics(self) -> list[str]:
        """The names of batch norm's."""
        return [f"{conv.name}.norm.{kind}" for conv in self.every for kind in ("mean", "variance")]
