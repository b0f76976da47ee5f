"""One linear layer per member on frozen embeddings, trained by gradient descent."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clocs import keyed_random
from clocs.encoders.base import Weights
from clocs.evaluation.classifier_loss import classifier_loss
from clocs.evaluation.device_auc import MacroAUC
from clocs.training.task import Task


@dataclass(frozen=True)
class Labelled:
    """Embeddings of one part with their targets.

    Attributes:
        features: (members, rows, dim).
        targets: (rows, classes).
        multilabel: Whether each class is a question of its own.
    """

    features: Tensor
    targets: Tensor
    multilabel: bool


def probabilities(logits: NDArray[np.float64], multilabel: bool) -> NDArray[np.float64]:
    """(…, classes) logits -> probabilities: a sigmoid each, or one softmax."""
    z = torch.from_numpy(logits)
    return np.asarray((z.sigmoid() if multilabel else z.softmax(dim=-1)).numpy())


class LinearHead(Task):
    """One linear layer a member on its own embeddings and its own labelled rows."""

    def __init__(
        self,
        train: Labelled,
        validation: Labelled,
        labelled: list[Tensor],
        weights: Tensor | None = None,
        *,
        curve: bool = False,
    ) -> None:
        """Prepare.

        Args:
            train: Embeddings of rows to learn from.
            validation: Of rows to stop by.
            labelled: For each member, the rows of `train` that it may learn from.
            weights: (members, classes) of the classes; None where all count the same.
            curve: Whether to compute the validation AUC after every epoch.
        """
        self.train, self.validation, self.weights = train, validation, weights
        self.auc = MacroAUC(validation.targets, validation.multilabel) if curve else None
        self.rows = torch.nn.utils.rnn.pad_sequence(labelled, batch_first=True)
        self.counts = torch.tensor([len(rows) for rows in labelled], device=self.rows.device)

    def parameters(self, keys: Tensor) -> Weights:
        """Uniform in ±1/√dim, as torch initialises a linear layer."""
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
        """rows: (members, batch), numbers of labelled rows, −1 where a member has no more."""
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
