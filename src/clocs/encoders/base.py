"""What training and evaluation need of an encoder: a function whose weights are kept outside.

All members are encoded at once: every weight has a leading members axis.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import ClassVar

import torch
from torch import Tensor, nn

from clocs.errors import SettingError
from clocs.kernels import keyed_random, ranks

Weights = dict[str, Tensor]  # name -> (members, …); batch-norm statistics have the same form


@dataclass(frozen=True)
class Encoder(ABC):
    """Frames to embeddings: frames of one lead, or of several leads at once.

    An encoder of many leads sees those in `leads`, in this order. A lead that a frame does not have
    is nan in all its samples, and the encoder knows by that to do without it.

    Frames may be less precise than weights (bfloat16): activations are then, too, but embeddings
    and statistics are as precise as the weights.
    """

    embedding_dim: int = 128  # length of an embedding
    samples: int = 2500  # length of a frame
    dropout: float = 0.1  # probability
    name: str = ""  # as in `clocs.encoders.make.ENCODERS`
    leads: tuple[str, ...] = ()  # those that it sees at once; empty: one at a time, whichever it is

    multilead: ClassVar[bool] = False  # whether it sees many leads at once
    in_mv: ClassVar[bool] = False  # whether its frames must be in mV
    # whether several processes can train it on one batch: its statistics are `ranks.moments`
    # and what it draws at random is `keyed_random`'s
    shares_batches: ClassVar[bool] = False
    # whether a step of it can be captured as a CUDA graph: it never waits for the host
    capturable: ClassVar[bool] = True

    @property
    def maxima(self) -> tuple[int, ...]:
        """First and last + 1 of the numbers of an embedding that are maxima over time, or none."""
        return ()

    @abstractmethod
    def parameters(self, keys: Tensor) -> Weights:
        """Initial weights of the members with these keys, (members, …) each."""

    @abstractmethod
    def buffers(self, members: int) -> Weights:
        """Initial batch-norm statistics, (members, …) each."""

    @abstractmethod
    def encode(self, weights: Weights, buffers: Weights, x: Tensor) -> Tensor:
        """x: (members, n, samples) -> (members, n, embedding_dim), in evaluation mode.

        Of many leads, x is (members, n, leads, samples).
        """

    def feature_map(self, weights: Weights, buffers: Weights, x: Tensor) -> Tensor:
        """(members, n, steps, channels) before they are pooled over time, in evaluation mode."""
        raise SettingError(f"the encoder {self.name!r} has no feature map over time")

    def to_module(self, weights: Weights, buffers: Weights) -> nn.Module:
        """The network of one member in torch's own layers: (n, leads, samples) -> (n, dim).

        Dropout uses torch's generator. Frames of an encoder of one lead have one lead.

        Args:
            weights: (1, …) each.
            buffers: (1, …) each.
        """
        raise SettingError(f"the encoder {self.name!r} cannot be made of torch's own layers")

    @abstractmethod
    def encode_training(
        self, weights: Weights, buffers: Weights, x: Tensor, keys: Tensor, momentum: float = 0.1
    ) -> tuple[Tensor, Weights]:
        """The same in training mode (batch statistics, dropout), and the updated buffers.

        keys: (members,) determine the dropout; momentum: the weight of this batch's statistics.
        """


@dataclass(frozen=True)
class EncoderRow:
    """An encoder's row in `ENCODERS`: declared at the top level of its module."""

    name: str  # by which it is chosen, and which checkpoints carry
    # called with `embedding_dim`, `samples` and `dropout` by keyword; makes an `Encoder` or any
    # module that maps (batch, 1, samples) to (batch, embedding_dim). Where it has an attribute
    # `multilead` that is true, it is also called with `leads`, their names, and its module maps
    # (batch, leads, samples) and a mask (batch, leads) of those that are there, zero elsewhere.
    make: Callable[..., Encoder | nn.Module]


def per_view(encoder: Encoder, views: int) -> Encoder:
    """The same encoder, which trains on one of so many views at a time, each with its statistics.

    The paper's authors encode one view after another; by default all views of a batch are encoded,
    and normalized, at once.
    """

    class PerView(type(encoder)):  # type: ignore[misc]
        def encode_training(
            self, weights: Weights, buffers: Weights, x: Tensor, keys: Tensor, momentum: float = 0.1
        ) -> tuple[Tensor, Weights]:
            """x: (members, views·batch, samples); the statistics move once for each view."""
            parts = []
            for number, view in enumerate(x.unflatten(1, (views, -1)).unbind(1)):
                key = keyed_random.fold(keys, keyed_random.stream("view"), number)
                with ranks.sharing_one_view():
                    z, buffers = super().encode_training(
                        weights, buffers, view.contiguous(), key, momentum
                    )
                parts.append(z)
            return torch.cat(parts, dim=1), buffers

    made: Encoder = PerView(**{one.name: getattr(encoder, one.name) for one in fields(encoder)})
    return made


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
