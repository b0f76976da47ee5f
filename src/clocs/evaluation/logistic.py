"""Logistic regression solved to convergence: L-BFGS, the L2 penalty chosen on validation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy.optimize
import torch
from numpy.typing import NDArray
from torch import Tensor

from clocs.errors import TrainingError
from clocs.evaluation.classifier_loss import classifier_loss

# numbers up to which features are brought to the CPU: the solver waits for a GPU in every iteration
_ON_CPU = 1 << 19
L2_STRENGTHS = tuple(10.0**-k for k in range(8))  # strongest first: each solution starts the next


@dataclass(frozen=True)
class LogisticRegression:
    """A fitted classifier."""

    mean: Tensor  # (dim,) of the training features
    spread: Tensor  # (dim,) their standard deviation; 1 where it is 0
    weights: Tensor  # (dim + 1, classes) for standardised features, the last row the bias
    l2: float  # the strength of the penalty with the lowest validation loss

    def logits(self, x: Tensor) -> Tensor:
        """x: (rows, dim) features -> (rows, classes)."""
        return torch.addmm(
            self.weights[-1], (x.double() - self.mean) / self.spread, self.weights[:-1]
        )


def fit_logistic(
    x: Tensor,
    y: Tensor,
    validation_x: Tensor,
    validation_y: Tensor,
    *,
    multilabel: bool,
    class_weights: Tensor | None = None,
    l2_strengths: Sequence[float] = L2_STRENGTHS,
    iterations: int = 1000,
) -> LogisticRegression:
    """Fit in float64, and choose the L2 penalty by the validation loss.

    Args:
        x: (rows, dim) features to learn from.
        y: (rows, classes) their targets.
        validation_x: (rows, dim) features to choose the penalty by.
        validation_y: (rows, classes) their targets.
        multilabel: Whether a row can have several classes: sigmoids instead of one softmax.
        class_weights: (classes,); None where all count the same.
        l2_strengths: Strengths of the penalty to choose from, strongest first.
        iterations: Most iterations for each strength.

    Raises:
        TrainingError: No solution has a finite validation loss.
    """
    given = x.device
    if x.numel() <= _ON_CPU:
        x, y, validation_x, validation_y = (t.cpu() for t in (x, y, validation_x, validation_y))
        class_weights = None if class_weights is None else class_weights.cpu()
    x, validation_x = x.double(), validation_x.double()
    mean, spread = x.mean(dim=0), x.std(dim=0, correction=0)
    spread = torch.where(spread > 0, spread, 1)
    x, validation_x = ((part - mean) / spread for part in (x, validation_x))
    shape = (x.shape[1] + 1, y.shape[1])
    weights = None if class_weights is None else class_weights[None]

    def mean_loss(w: Tensor, part: Tensor, targets: Tensor) -> Tensor:
        logits = torch.addmm(w[-1], part, w[:-1])
        return classifier_loss(logits[None], targets, multilabel, weights)[0]

    def objective(flat: NDArray[np.float64], l2: float) -> tuple[float, NDArray[np.float64]]:
        w = torch.from_numpy(flat).to(x.device).view(shape).requires_grad_()
        loss = mean_loss(w, x, y) + l2 / 2 * w[:-1].square().sum()
        (gradient,) = torch.autograd.grad(loss, w)
        return float(loss.detach()), np.asarray(gradient.view(-1).cpu().numpy())

    best, lowest, worse = torch.zeros(shape), np.inf, 0
    chosen, start = l2_strengths[0], np.zeros(shape[0] * shape[1])
    for l2 in l2_strengths:
        start = scipy.optimize.minimize(
            objective,
            start,
            args=(l2,),
            method="L-BFGS-B",
            jac=True,
            options={"maxiter": iterations, "gtol": 1e-5},
        ).x
        w = torch.from_numpy(start).to(x.device).view(shape)
        loss = float(mean_loss(w, validation_x, validation_y))
        worse = worse + 1 if loss >= lowest else 0
        if loss < lowest:
            best, lowest, chosen = w, loss, l2
        if worse == 2:  # the loss is convex and its path smooth: weaker L2 only overfits more
            break
    if not np.isfinite(lowest):
        raise TrainingError(
            "logistic regression found no finite solution: the embeddings or their spread are too "
            "large for it; use another encoder"
        )
    return LogisticRegression(mean.to(given), spread.to(given), best.to(given), chosen)
