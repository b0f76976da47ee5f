"""An attention head on frozen feature maps: each class looks at the steps that matter for it.

For every class, a linear score of each step becomes a weight by a softmax over the steps, and the
head's logit is the weighted mean of a second linear map. The head is trained by itself, starting at
zero; its logits are then added to those of a linear layer on the embeddings, solved beforehand.
The sum decides when training stops. Features are standardized channel by channel.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from clocs.encoders.base import Weights
from clocs.evaluation.classifier_loss import classifier_loss
from clocs.evaluation.device_auc import MacroAUC
from clocs.evaluation.labeled_rows import Averaging
from clocs.kernels import keyed_random
from clocs.training.loop import Task

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


class AttentiveHead(Task):
    """A training task: each member has its own feature maps and its own labeled rows."""

    def __init__(
        self,
        train: LabeledMaps,
        validation: LabeledMaps,
        labeled: list[Tensor],
        weights: Tensor | None = None,
        *,
        multilabel: bool,
        dropout: float = 0.0,
        by_auc: bool = False,
        curve: bool = False,
    ) -> None:
        """As `LinearHead`; `dropout` is of features, `by_auc` keeps the epoch of the best AUC."""
        self.train, self.validation, self.weights = train, validation, weights
        self.multilabel, self.dropout = multilabel, dropout
        self.criterion = "auc" if by_auc else "loss"
        self.auc = MacroAUC(validation.targets, multilabel) if curve or by_auc else None
        self.rows = torch.nn.utils.rnn.pad_sequence(labeled, batch_first=True)
        self.counts = torch.tensor([len(rows) for rows in labeled], device=self.rows.device)
        self.mean, self.spread = train.statistics()

    def of(self, members: list[int]) -> AttentiveHead:
        some = copy(self)
        some.train, some.validation = self.train.of(members), self.validation.of(members)
        some.rows, some.counts = self.rows[members], self.counts[members]
        some.mean, some.spread = self.mean[members], self.spread[members]
        some.weights = None if self.weights is None else self.weights[members]
        return some

    def parameters(self, keys: Tensor) -> Weights:
        """Zeros: all steps weigh the same, and add nothing."""
        shape = (self.train.features.shape[-1], self.train.targets.shape[-1])
        return {
            name: torch.zeros(len(keys), *shape, device=keys.device) for name in ("weight", "score")
        } | {"bias": torch.zeros(len(keys), shape[1], device=keys.device)}

    def buffers(self, members: int) -> Weights:
        return {"none": torch.zeros(members, 0)}

    def train_loss(
        self, weights: Weights, buffers: Weights, rows: Tensor, keys: Tensor
    ) -> tuple[Tensor, Weights]:
        """rows: (members, batch), numbers of labeled rows, −1 for padding."""
        own = self.rows.gather(1, rows.clamp(min=0))  # rows of `train`
        member = torch.arange(len(own), device=own.device)[:, None]
        x = self._standardized(self.train.features[member, own].float())
        if self.dropout:
            key = keyed_random.fold(keys, keyed_random.stream("head"))
            x = keyed_random.dropout(x, self.dropout, key)
        targets = self.train.targets[own]
        loss = classifier_loss(
            attended(weights, x), targets, self.multilabel, self.weights, rows >= 0
        )
        return loss, buffers

    def validate(self, weights: Weights, buffers: Weights, keys: Tensor) -> dict[str, Tensor]:
        logits = self.logits(weights, self.validation)
        loss = classifier_loss(logits, self.validation.targets, self.multilabel, self.weights)
        return {"loss": loss} | ({"auc": self.auc(logits)} if self.auc else {})

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
