"""What is learned, as far as the training loop needs to know it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable

import torch
from torch import Tensor

from clocs.encoders.base import Weights
from clocs.kernels import keyed_random


class Task(ABC):
    """Initial weights, a loss on training rows, and a loss on validation data."""

    counts: Tensor  # (members,) training rows of each member
    # the metric of `validate` that decides which epoch is the best: 'loss' for the lowest, any
    # other, of values up to 1, for the highest
    criterion: str = "loss"

    @abstractmethod
    def parameters(self, keys: Tensor) -> Weights:
        """Initial weights, (members, …) each; keys: (members,)."""

    @abstractmethod
    def buffers(self, members: int) -> Weights:
        """Initial values of what changes without a gradient, (members, …) each."""

    @abstractmethod
    def train_loss(
        self, weights: Weights, buffers: Weights, rows: Tensor, keys: Tensor
    ) -> tuple[Tensor, Weights]:
        """rows: (members, batch) -> (members,) losses, and the buffers after this batch.

        A row of −1 is padding, for members with fewer rows than a batch; it never occurs where all
        members have equally many.
        """

    @abstractmethod
    def validate(self, weights: Weights, buffers: Weights, keys: Tensor) -> dict[str, Tensor]:
        """'loss' and any other metric, (members,) each, in evaluation mode."""

    def after_step(self, weights: Weights, buffers: Weights, moved: Tensor) -> None:
        """Change buffers, in place, after a step of the members that moved, (members, 1) bool."""
        return

    def lr_factor(self, name: str) -> float:
        """By how much the learning rate of the weights of this name differs from the others'."""
        return 1.0

    def of(self, members: list[int]) -> Task | None:
        """The same task for some of its members, in this order; None where it cannot be divided."""
        return None

    def epoch_order(self, keys: Tensor) -> Tensor:
        """(members, rows): a random order of each member's rows, then −1 up to the longest."""
        return shuffled_rows(keys, self.counts)

    def stage(self, order: Tensor, size: int, steps: int, keys: Tensor) -> Iterable[object]:
        """Yields once per step, when the data of that step are ready; keys: (steps, members)."""
        return range(steps)

    @property
    def shared(self) -> bool:
        """Whether other processes make the same steps, each with a part of the loss."""
        return False

    def summed(self, part: Tensor) -> Tensor:
        """What all processes have found together, where this one has found a part of it."""
        return part

    @property
    def streamed(self) -> bool:
        """Whether validation waits for data from the host."""
        return False

    @property
    def capturable(self) -> bool:
        """Whether a step can be captured as a CUDA graph."""
        return True


def shuffled_rows(keys: Tensor, counts: Tensor) -> Tensor:
    """(members, rows): each member's rows in an order given by its key, padded with −1."""
    longest = int(counts.max())
    beyond = torch.arange(longest, device=keys.device) >= counts[:, None]
    last = torch.iinfo(torch.int64).max
    order = keyed_random.bits(keys, longest).masked_fill(beyond, last).argsort(dim=1, stable=True)
    return order.masked_fill(beyond, -1)
