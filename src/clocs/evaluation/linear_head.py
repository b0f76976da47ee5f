"""One linear layer per member on frozen embeddings, trained by gradient descent."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import replace

import torch
from torch import Tensor

from clocs.encoders.base import Weights
from clocs.evaluation.classifier_loss import classifier_loss
from clocs.evaluation.device_auc import MacroAUC
from clocs.evaluation.protocol_data import LabeledEmbeddings
from clocs.kernels import keyed_random
from clocs.training.loop import Task

_SMALL = 500_000  # numbers in a batch of embeddings that one thread handles as fast as two


class LinearHead(Task):
    """A training task: each member has its own embeddings and its own labeled rows."""

    def __init__(
        self,
        train: LabeledEmbeddings,
        validation: LabeledEmbeddings,
        labeled: list[Tensor],
        weights: Tensor | None = None,
        *,
        curve: bool = False,
    ) -> None:
        """Each member may learn from its `labeled` rows of `train`.

        weights: (members, classes) class weights; None where all count the same. `curve` computes
        the validation AUC after every epoch.
        """
        self.train, self.validation, self.weights = train, validation, weights
        self.auc = MacroAUC(validation.targets, validation.multilabel) if curve else None
        self.rows = torch.nn.utils.rnn.pad_sequence(labeled, batch_first=True)
        self.counts = torch.tensor([len(rows) for rows in labeled], device=self.rows.device)

    def of(self, members: list[int]) -> LinearHead:
        some = copy(self)
        some.train, some.validation = (
            replace(part, features=part.features[members]) for part in (self.train, self.validation)
        )
        some.rows, some.counts = self.rows[members], self.counts[members]
        some.weights = None if self.weights is None else self.weights[members]
        return some

    def parameters(self, keys: Tensor) -> Weights:
        """Uniform in ±1/√dim, as torch initializes a linear layer."""
        dim, classes = self.train.features.shape[-1], self.train.targets.shape[-1]
        return {
            "weight": keyed_random.symmetric(keys, "head.weight", (dim, classes), dim),
            "bias": keyed_random.symmetric(keys, "head.bias", (classes,), dim),
        }

    def buffers(self, members: int) -> Weights:
        return {"none": torch.zeros(members, 0)}

    def train_loss(
        self, weights: Weights, buffers: Weights, rows: Tensor, keys: Tensor
    ) -> tuple[Tensor, Weights]:
        """rows: (members, batch), numbers of labeled rows, −1 for padding."""
        present = rows >= 0
        own = self.rows.gather(1, rows.clamp(min=0))  # rows of `train`
        member = torch.arange(len(own), device=own.device)[:, None]
        logits = self.logits(weights, self.train.features[member, own])
        targets = self.train.targets[own]
        loss = classifier_loss(logits, targets, self.train.multilabel, self.weights, present)
        return loss, buffers

    def validate(self, weights: Weights, buffers: Weights, keys: Tensor) -> dict[str, Tensor]:
        part = self.validation
        logits = self.logits(weights, part.features)
        loss = classifier_loss(logits, part.targets, part.multilabel, self.weights)
        return {"loss": loss} | ({"auc": self.auc(logits)} if self.auc else {})

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
