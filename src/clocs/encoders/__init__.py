"""Encoders: a file each, one row in `ENCODERS`. An encoder is a function, its weights live outside.

All members of a fleet are encoded at once: every weight has a leading members axis.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from torch import Tensor

from clocs.encoders.cnn import CNN
from clocs.encoders.resnet import ResNet
from clocs.errors import SettingError

Weights = dict[str, Tensor]  # name -> (members, …)


class Encoder(Protocol):
    """What training and evaluation ask of an encoder.

    Frames may be less precise than weights (bfloat16): activations are then, too, but embeddings
    and statistics are as precise as the weights.
    """

    @property
    def name(self) -> str: ...
    @property
    def embedding_dim(self) -> int: ...
    @property
    def samples(self) -> int: ...
    def parameters(self, keys: Tensor) -> Weights:
        """Initial weights of the members with these keys, (members, …) each."""
        ...

    def buffers(self, members: int) -> Weights:
        """Initial batch-norm statistics, (members, …) each."""
        ...

    def encode(self, weights: Weights, buffers: Weights, x: Tensor) -> Tensor:
        """x: (members, n, samples) -> (members, n, embedding_dim), in evaluation mode."""
        ...

    def encode_training(
        self, weights: Weights, buffers: Weights, x: Tensor, keys: Tensor, momentum: float = 0.1
    ) -> tuple[Tensor, Weights]:
        """The same in training mode (batch statistics, dropout), and the updated buffers.

        keys: (members,) decide the dropout; momentum: the weight of this batch's statistics.
        """
        ...


ENCODERS: Mapping[str, Callable[..., Encoder]] = {
    "cnn": CNN,  # the paper's
    "resnet": ResNet,
}


def make_encoder(name: str, *, embedding_dim: int, samples: int, dropout: float = 0.1) -> Encoder:
    """An encoder by its name."""
    if name not in ENCODERS:
        raise SettingError(f"there is no encoder {name!r}; choose one of {', '.join(ENCODERS)}")
    if embedding_dim < 1:
        raise SettingError(f"the embedding needs at least 1 dimension, not {embedding_dim}")
    return ENCODERS[name](embedding_dim=embedding_dim, samples=samples, dropout=dropout)
