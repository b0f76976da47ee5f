"""Logistic regressions solved to convergence, all members at once; L2 is chosen on validation.

Newton's method, whose linear systems are solved by conjugate gradients. In the principal axes of
the features the curvature of the loss is nearly diagonal, so few steps are enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from clocs.errors import TrainingError
from clocs.evaluation.classifier_loss import classifier_loss

if TYPE_CHECKING:
    from clocs.evaluation.labeled import LabeledEmbeddings, MemberLabels

L2_STRENGTHS = tuple(10.0**-k for k in range(8))  # strongest first: each solution starts the next
_FLATTEST = 1e-5  # a solution's largest gradient, in standardized features
_NEWTON, _CONJUGATE, _HALVINGS = 60, 60, 20  # the most steps of each kind
_AT_ONCE = {"cpu": 1 << 24, "cuda": 1 << 28}  # numbers of the features of members solved together
# conjugate steps between two looks at who still moves: each look waits for a GPU
_LOOK_EVERY = {"cpu": 1, "cuda": 8}
_LEAST_GAIN = 1e-4  # share of the expected decrease that a step must bring


@dataclass(frozen=True)
class LogisticRegression:
    """Fitted classifiers, one per member."""

    mean: Tensor  # (members, 1, dim) of the training features
    spread: Tensor  # (members, 1, dim) their standard deviation; 1 where it is 0
    weights: Tensor  # (members, dim + 1, classes) for standardized features, the last row the bias
    l2: tuple[float, ...]  # for each member the strength with the lowest validation loss

    def logits(self, x: Tensor) -> Tensor:
        """x: (members, rows, dim) features -> (members, rows, classes)."""
        return _logits((x.double() - self.mean) / self.spread, self.weights)

    def layers(self) -> tuple[Tensor, Tensor]:
        """(members, dim, classes) weights and (members, classes) biases for plain features."""
        weight = self.weights[:, :-1] / self.spread.mT
        return weight, self.weights[:, -1] - (self.mean @ weight)[:, 0]


def fit_logistic(
    x: Tensor,
    y: Tensor,
    validation_x: Tensor,
    validation_y: Tensor,
    *,
    multilabel: bool,
    present: Tensor | None = None,
    validated: Tensor | None = None,
    class_weights: Tensor | None = None,
    l2_strengths: Sequence[float] = L2_STRENGTHS,
) -> LogisticRegression:
    """Fit in float64, and choose the L2 penalty of each member by the validation loss.

    Args:
        x: (members, rows, dim) features to learn from.
        y: (members, rows, classes) their targets.
        validation_x: (members, rows, dim) features to choose the penalty by.
        validation_y: (rows, classes) their targets.
        multilabel: Whether a row can have several classes: sigmoids instead of one softmax.
        present: (members, rows) which rows count; all where None.
        validated: The same of `validation_x`.
        class_weights: (members, classes); None where all count the same.
        l2_strengths: Strengths of the penalty to choose from, strongest first.

    Raises:
        TrainingError: No solution of a member has a finite validation loss.
    """
    x, validation_x = x.double(), validation_x.double()
    if present is None:
        present = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
    share = (present / present.sum(dim=1, keepdim=True))[..., None].double()
    mean = (x * share).sum(dim=1, keepdim=True)
    spread = ((x - mean).square() * share).sum(dim=1, keepdim=True).sqrt()
    spread = torch.where(spread > 0, spread, 1)
    x, validation_x = ((part - mean) / spread for part in (x, validation_x))
    curvature, axes = torch.linalg.eigh(x.mT @ (x * share))
    problem = _Problem(x @ axes, y.double(), multilabel, present, class_weights)

    members, classes = len(x), y.shape[-1]
    w = x.new_zeros(members, x.shape[2] + 1, classes)
    best, lowest = w.clone(), w.new_full((members,), torch.inf)
    chosen, worse = lowest.clone(), torch.zeros_like(lowest)
    for l2 in l2_strengths:
        w = problem.solve(w, l2, curvature)
        turned = torch.cat([axes @ w[:, :-1], w[:, -1:]], dim=1)
        found = _logits(validation_x, turned)
        loss = classifier_loss(found, validation_y, multilabel, class_weights, validated)
        # The loss is convex and its path smooth: after two steps upwards weaker L2 only overfits.
        better = (loss < lowest) & (worse < 2)
        worse = torch.where(better, 0, worse + 1)
        best = torch.where(better[:, None, None], turned, best)
        lowest = torch.where(better, loss, lowest)
        chosen = torch.where(better, l2, chosen)
        if bool((worse >= 2).all()):
            break
    if not bool(lowest.isfinite().all()):
        raise TrainingError(
            "logistic regression found no finite solution: the embeddings or their spread are too "
            "large for it; use another encoder"
        )
    return LogisticRegression(mean, spread, best, tuple(chosen.tolist()))


def fit_members(
    train: LabeledEmbeddings,
    validation: LabeledEmbeddings,
    labels: MemberLabels,
    *,
    strongest_l2: float = L2_STRENGTHS[0],
) -> LogisticRegression:
    """`fit_logistic` for members with rows of their own, as many at a time as memory allows.

    Args:
        train: To learn from.
        validation: To choose the penalty by.
        labels: What each member knows of both.
        strongest_l2: The strongest penalty to choose from, in steps of ten.
    """
    rows = pad_sequence(list(labels.rows), batch_first=True)  # members may have different numbers
    present = pad_sequence([torch.ones_like(own) for own in labels.rows], batch_first=True)
    stronger: list[float] = []
    while L2_STRENGTHS[0] * 10 ** len(stronger) < strongest_l2:
        stronger.insert(0, L2_STRENGTHS[0] * 10 ** (len(stronger) + 1))
    most = _AT_ONCE.get(train.features.device.type, 1 << 24)
    together = max(1, most // (rows.shape[1] * train.features.shape[2]))
    made = []
    for members in torch.arange(len(rows)).split(together):
        own, some = rows[members].to(train.targets.device), labels.of(members.tolist())
        made.append(
            fit_logistic(
                train.features[members[:, None], own],
                train.targets[own],
                validation.features[members],
                validation.targets,
                multilabel=labels.multilabel,
                present=present[members].to(own.device) > 0,
                validated=some.validated,
                class_weights=some.weights,
                l2_strengths=(*stronger, *L2_STRENGTHS),
            )
        )
    parts = zip(*((one.mean, one.spread, one.weights) for one in made), strict=True)
    mean, spread, weights = (torch.cat(part) for part in parts)
    return LogisticRegression(mean, spread, weights, tuple(l2 for one in made for l2 in one.l2))


class _Problem:
    """The loss of all members, its slope and its curvature, for features in principal axes."""

    def __init__(
        self,
        x: Tensor,
        y: Tensor,
        multilabel: bool,
        present: Tensor,
        class_weights: Tensor | None,
    ) -> None:
        self.x, self.y, self.multilabel = x, y, multilabel
        self.present, self.class_weights = present, class_weights
        weight = present.double()[..., None]  # (members, rows, classes or 1) of each term
        total = weight.sum(dim=(1, 2), keepdim=True)
        if class_weights is not None and multilabel:
            weight = weight * (1 + y * (class_weights[:, None].double() - 1))
        elif class_weights is not None:
            weight = weight * (y * class_weights[:, None].double()).sum(dim=-1, keepdim=True)
            total = weight.sum(dim=(1, 2), keepdim=True)
        self.weight = weight / (total * y.shape[-1] if multilabel else total)

    def loss(self, w: Tensor, l2: float) -> Tensor:
        """(members,)."""
        found = _logits(self.x, w)
        fit = classifier_loss(found, self.y, self.multilabel, self.class_weights, self.present)
        return fit + l2 / 2 * w[:, :-1].square().sum(dim=(1, 2))

    def solve(self, w: Tensor, l2: float, curvature: Tensor) -> Tensor:
        """The minimum for one strength of L2, from a start nearby."""
        penalty = w.new_full((w.shape[1], 1), l2)
        penalty[-1] = 0
        per_class = 0.25 / w.shape[2] if self.multilabel else 0.25
        bias = torch.ones_like(curvature[:, :1])
        scale = per_class * torch.cat([curvature.clamp(min=0), bias], dim=1)[..., None] + penalty
        loss = self.loss(w, l2)
        for _ in range(_NEWTON):
            logits = _logits(self.x, w)
            p = logits.sigmoid() if self.multilabel else logits.softmax(dim=-1)
            slope = self._back(self.weight * (p - self.y)) + penalty * w
            live = slope.abs().amax(dim=(1, 2)) > _FLATTEST
            if not bool(live.any()):
                break
            step = self._newton_step(p, slope, penalty, scale, live)
            w, loss, moved = self._search(w, step, slope, loss, l2, live)
            if not moved:
                break
        return w

    def _newton_step(
        self, p: Tensor, slope: Tensor, penalty: Tensor, scale: Tensor, live: Tensor
    ) -> Tensor:
        """Conjugate gradients: the step at which the slope is gone, as far as it is worthwhile."""
        step, rest = torch.zeros_like(slope), -slope
        conditioned = rest / scale
        way = conditioned.clone()
        size = _dot(rest, conditioned)
        enough = size * size.sqrt().clamp(max=0.25) ** 2  # the closer, the more exactly
        every = _LOOK_EVERY.get(slope.device.type, 1)
        for number in range(_CONJUGATE):
            live = live & (size > enough)  # the steps of the others no longer change
            if number % every == 0 and not bool(live.any()):
                break
            bent = self._bend(p, way) + penalty * way
            length = torch.where(live, size / _dot(way, bent), 0)[:, None, None]
            step, rest = step + length * way, rest - length * bent
            conditioned = rest / scale
            now = _dot(rest, conditioned)
            way = conditioned + torch.where(live, now / size, 0)[:, None, None] * way
            size = torch.where(live, now, size)
        return step

    def _search(
        self, w: Tensor, step: Tensor, slope: Tensor, loss: Tensor, l2: float, live: Tensor
    ) -> tuple[Tensor, Tensor, bool]:
        """As long a step as lowers the loss enough: the whole of it, or a half, or a quarter."""
        expected = _dot(step, slope)
        length = live.double()
        for _ in range(_HALVINGS):
            new = self.loss(w + length[:, None, None] * step, l2)
            # a decrease that rounding hides is none; nan is too far
            fails = live & ~(new <= loss + _LEAST_GAIN * length * expected)
            if not bool(fails.any()):
                break
            length = torch.where(fails, length / 2, length)
        length = torch.where(fails, 0, length)
        moved = bool((length > 0).any())
        return w + length[:, None, None] * step, torch.where(length > 0, new, loss), moved

    def _bend(self, p: Tensor, way: Tensor) -> Tensor:
        """The curvature of the loss times a direction."""
        change = p * _logits(self.x, way)
        if self.multilabel:
            change = change * (1 - p)
        else:
            change = change - p * change.sum(dim=-1, keepdim=True)
        return self._back(self.weight * change)

    def _back(self, of_logits: Tensor) -> Tensor:
        """From the slope by logits to that by weights."""
        return torch.cat([self.x.mT @ of_logits, of_logits.sum(dim=1, keepdim=True)], dim=1)


def _logits(x: Tensor, w: Tensor) -> Tensor:
    return torch.baddbmm(w[:, -1:], x, w[:, :-1])


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum(dim=(1, 2))
