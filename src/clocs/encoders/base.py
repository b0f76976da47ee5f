"""What training and evaluation need of an encoder: a function whose weights are kept outside.

All members of a fleet are encoded at once: every weight has a leading members axis.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

Weights = dict[str, Tensor]  # name -> (members, …); batch-norm statistics have the same form


@dataclass(frozen=True)
class Encoder(ABC):
    """Frames of one lead to embeddings.

    Frames may be less precise than weights (bfloat16): activations are then, too, but embeddings
    and statistics are as precise as the weights.
    """

    embedding_dim: int = 128  # length of an embedding
    samples: int = 2500  # length of a frame
    dropout: float = 0.1  # probability
    name: str = ""  # as in `clocs.encoders.make.ENCODERS`

    @property
    def capturable(self) -> bool:
        """Whether a step of it can be captured as a CUDA graph: it never waits for the host."""
        return True

    @abstractmethod
    def parameters(self, keys: Tensor) -> Weights:
        """Initial weights of the members with these keys, (members, …) each."""

    @abstractmethod
    def buffers(self, members: int) -> Weights:
        """Initial batch-norm statistics, (members, …) each."""

    @abstractmethod
    def encode(self, weights: Weights, buffers: Weights, x: Tensor) -> Tensor:
        """x: (members, n, samples) -> (members, n, embedding_dim), in evaluation mode."""

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
    # module that maps (batch, leads, samples) to (batch, embedding_dim)
    make: Callable[..., Encoder | nn.Module]
