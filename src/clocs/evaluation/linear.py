"""Linear evaluation: what a linear layer can read off frozen embeddings. Two solvers.

`LinearHead` is the paper's: one linear layer by gradient descent, a task for the engine.
`converged` is the exact one: standardised features, L-BFGS, L2 chosen on validation.
Knows nothing about encoders: embeddings and targets in, logits out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.optimize
import torch
from numpy.typing import NDArray
from torch import Tensor

from clocs import keyed_random
from clocs.encoders.base import Weights
from clocs.evaluation.class_weights import classifier_loss
from clocs.evaluation.device_auc import DeviceAUC

STRENGTHS = tuple(10.0**-k for k in range(8))  # of L2, strongest first: each start is the next's


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


class LinearHead:
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
        self.auc = DeviceAUC(validation.targets, validation.multilabel) if curve else None
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


def converged(
    train: Labelled,
    validation: Labelled,
    test: Labelled,
    member: int,
    labelled: Tensor,
    weights: Tensor | None = None,
) -> tuple[list[NDArray[np.float64]], float]:
    """Logits of validation and test by one member's logistic regression, and the L2 it chose.

    weights: (classes,) of the classes; None where all count the same.
    """
    parts = [part.features[member].double() for part in (train, validation, test)]
    fit_x, fit_y = parts[0][labelled], train.targets[labelled]
    mean, spread = fit_x.mean(dim=0), fit_x.std(dim=0, correction=0)
    spread = torch.where(spread > 0, spread, 1)
    fit_x, validation_x, test_x = ((x - mean) / spread for x in (fit_x, *parts[1:]))
    shape = (fit_x.shape[1] + 1, fit_y.shape[1])

    def logits(flat: Tensor, x: Tensor) -> Tensor:
        w = flat.view(shape)
        return torch.addmm(w[-1], x, w[:-1])

    def mean_loss(z: Tensor, y: Tensor) -> Tensor:
        own = None if weights is None else weights[None]
        return classifier_loss(z[None], y, train.multilabel, own)[0]

    def objective(flat: NDArray[np.float64], strength: float) -> tuple[float, NDArray[np.float64]]:
        w = torch.from_numpy(flat).to(fit_x.device).requires_grad_()
        loss = mean_loss(logits(w, fit_x), fit_y)
        loss = loss + strength / 2 * w.view(shape)[:-1].square().sum()
        (gradient,) = torch.autograd.grad(loss, w)
        return float(loss.detach()), np.asarray(gradient.cpu().numpy())

    best: tuple[float, float, Tensor] | None = None
    start = np.zeros(shape[0] * shape[1])
    worse = 0
    for strength in STRENGTHS:
        found = scipy.optimize.minimize(
            objective,
            start,
            args=(strength,),
            method="L-BFGS-B",
            jac=True,
            options={"maxiter": 1000, "gtol": 1e-5},
        )
        start = found.x
        w = torch.from_numpy(start).to(fit_x.device)
        loss = float(mean_loss(logits(w, validation_x), validation.targets))
        worse = worse + 1 if best is not None and loss >= best[0] else 0
        if best is None or loss < best[0]:
            best = (loss, strength, w)
        if worse == 2:  # the loss is convex and its path smooth: weaker L2 only overfits more
            break
    assert best is not None  # STRENGTHS is not empty
    w = best[2]
    return [np.asarray(logits(w, x).cpu().numpy()) for x in (validation_x, test_x)], best[1]
