"""Heads on frozen encoders, trained by gradient descent: a linear layer, and attention."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

from clocs.encoders.base import Weights
from clocs.evaluation.classifier_loss import MacroAUC, classifier_loss
from clocs.evaluation.labeled import Averaging, LabeledEmbeddings, MemberLabels
from clocs.kernels import keyed_random
from clocs.training.loop import Task

_SMALL = 500_000  # numbers in a batch of embeddings that one thread handles as fast as two


class Head(Task):
    """A training task on labels: each member has its own labeled rows."""

    def __init__(
        self, train: Any, validation: Any, labels: MemberLabels, *, by_auc: bool = False
    ) -> None:
        """`by_auc` keeps the epoch of the best validation AUC."""
        self.train, self.validation, self.labels = train, validation, labels
        self.criterion = "auc" if by_auc else "loss"
        wanted = labels.curve or by_auc
        self.auc = MacroAUC(validation.targets, labels.multilabel) if wanted else None
        self.rows = torch.nn.utils.rnn.pad_sequence(list(labels.rows), batch_first=True)
        self.counts = torch.tensor([len(rows) for rows in labels.rows], device=self.rows.device)

    def of(self, members: list[int]) -> Self:
        some = copy(self)
        some.train, some.validation = self.train.of(members), self.validation.of(members)
        some.rows, some.counts = self.rows[members], self.counts[members]
        some.labels = self.labels.of(members)
        return some

    def buffers(self, members: int) -> Weights:
        return {"none": torch.zeros(members, 0)}

    def learned(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """rows: (members, batch), numbers of labeled rows, −1 for padding -> features, targets."""
        own = self.rows.gather(1, rows.clamp(min=0))  # rows of `train`
        features = self.train.features  # by two indices, torch needs three times as long on a CPU
        first = torch.arange(len(own), device=own.device)[:, None] * features.shape[1]
        found = features.flatten(0, 1).index_select(0, (first + own).flatten())
        return found.unflatten(0, own.shape), self.train.targets[own]

    def loss(self, logits: Tensor, targets: Tensor, present: Tensor | None = None) -> Tensor:
        """(members,) of logits (members, rows, classes), those that are `present` or all."""
        labels = self.labels
        return classifier_loss(logits, targets, labels.multilabel, labels.weights, present)

    def scored(self, logits: Tensor) -> dict[str, Tensor]:
        """The metrics of validation."""
        own = self.labels.validated
        loss = self.loss(logits, self.validation.targets, own)
        return {"loss": loss} | ({"auc": self.auc(logits, own)} if self.auc else {})


class LinearHead(Head):
    """One linear layer per member."""

    train: LabeledEmbeddings
    validation: LabeledEmbeddings

    def parameters(self, keys: Tensor) -> Weights:
        """Uniform in ±1/√dim, as torch initializes a linear layer."""
        dim, classes = self.train.features.shape[-1], self.train.targets.shape[-1]
        return {
            "weight": keyed_random.symmetric(keys, "head.weight", (dim, classes), dim),
            "bias": keyed_random.symmetric(keys, "head.bias", (classes,), dim),
        }

    def train_loss(
        self, weights: Weights, buffers: Weights, rows: Tensor, keys: Tensor
    ) -> tuple[Tensor, Weights]:
        features, targets = self.learned(rows)
        return self.loss(self.logits(weights, features), targets, rows >= 0), buffers

    def validate(self, weights: Weights, buffers: Weights, keys: Tensor) -> dict[str, Tensor]:
        return self.scored(self.logits(weights, self.validation.features))

    @staticmethod
    def logits(weights: Weights, features: Tensor) -> Tensor:
        """features: (members, rows, dim) -> (members, rows, classes)."""
        return torch.baddbmm(weights["bias"][:, None], features, weights["weight"])


@contextmanager
def few_threads(device: torch.device, batch: int) -> Iterator[None]:
    """One thread where a batch of so many numbers is too small to be worth sharing."""
    threads = torch.get_num_threads()
    if device.type == "cpu" and batch < _SMALL:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


_AT_ONCE = {"cpu": 1 << 24, "cuda": 1 << 28}  # numbers of the features that are read at a time


@dataclass(frozen=True)
class LabeledMaps:
    """Feature maps of the rows of one part."""

    features: Tensor  # (members, rows, steps, channels), float16
    linear: Tensor  # (members, rows, classes) logits of a linear layer on the embeddings
    targets: Tensor  # (rows, classes), or (recordings, classes) where logits are averaged
    average: Averaging | None = None  # over the rows of each recording

    def pieces(self) -> Iterator[Tensor]:
        """Features of some rows at a time, in float32."""
        each = max(1, self.features[:, :1].numel())
        size = max(1, _AT_ONCE.get(self.features.device.type, 1 << 24) // each)
        for some in self.features.split(size, dim=1):
            yield some.float()

    def of(self, members: list[int]) -> LabeledMaps:
        return replace(self, features=self.features[members], linear=self.linear[members])

    def statistics(self) -> tuple[Tensor, Tensor]:
        """(members, 1, 1, channels) mean and standard deviation; 1 where that is 0."""
        count = self.features.shape[1] * self.features.shape[2]
        mean = sum(some.sum(dim=(1, 2), dtype=torch.float64) for some in self.pieces()) / count
        assert isinstance(mean, Tensor)  # there are rows
        mean = mean[:, None, None]
        squares = sum((some - mean).square().sum(dim=(1, 2)) for some in self.pieces()) / count
        assert isinstance(squares, Tensor)
        spread = squares[:, None, None].sqrt()
        return mean.float(), torch.where(spread > 0, spread, 1).float()


class AttentiveHead(Head):
    """Attention over the steps of feature maps, per class.

    A linear score of each step becomes a weight by a softmax over the steps; the logit is the
    weighted mean of a second linear map. The head starts at zero and is trained by itself. Its
    logits are then added to those of a linear layer on the embeddings, solved beforehand; the sum
    decides when training stops. Features are standardized channel by channel.
    """

    def __init__(
        self,
        train: LabeledMaps,
        validation: LabeledMaps,
        labels: MemberLabels,
        *,
        dropout: float = 0.0,
        by_auc: bool = False,
    ) -> None:
        """`dropout` is of features."""
        super().__init__(train, validation, labels, by_auc=by_auc)
        self.dropout = dropout
        self.mean, self.spread = train.statistics()

    def of(self, members: list[int]) -> Self:
        some = super().of(members)
        some.mean, some.spread = self.mean[members], self.spread[members]
        return some

    def parameters(self, keys: Tensor) -> Weights:
        """Zeros: all steps weigh the same, and add nothing."""
        shape = (self.train.features.shape[-1], self.train.targets.shape[-1])
        return {
            name: torch.zeros(len(keys), *shape, device=keys.device) for name in ("weight", "score")
        } | {"bias": torch.zeros(len(keys), shape[1], device=keys.device)}

    def train_loss(
        self, weights: Weights, buffers: Weights, rows: Tensor, keys: Tensor
    ) -> tuple[Tensor, Weights]:
        features, targets = self.learned(rows)
        x = self._standardized(features.float())
        if self.dropout:
            key = keyed_random.fold(keys, keyed_random.stream("head"))
            x = keyed_random.dropout(x, self.dropout, key)
        return self.loss(attended(weights, x), targets, rows >= 0), buffers

    def validate(self, weights: Weights, buffers: Weights, keys: Tensor) -> dict[str, Tensor]:
        return self.scored(self.logits(weights, self.validation))

    @torch.no_grad()
    def logits(self, weights: Weights, part: LabeledMaps) -> Tensor:
        """(members, rows or recordings, classes) of a part."""
        pieces = [attended(weights, self._standardized(some)) for some in part.pieces()]
        found = part.linear + torch.cat(pieces, dim=1)
        return found if part.average is None else part.average(found)

    def _standardized(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.spread


def attended(weights: Weights, x: Tensor) -> Tensor:
    """x: (members, rows, steps, channels) -> (members, rows, classes)."""
    flat = x.flatten(1, 2)
    scores, values = (
        torch.bmm(flat, weights[name]).unflatten(1, x.shape[1:3]) for name in ("score", "weight")
    )
    pooled: Tensor = (scores.softmax(dim=2) * values).sum(dim=2)
    return pooled + weights["bias"][:, None]
