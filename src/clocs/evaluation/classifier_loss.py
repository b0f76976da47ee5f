"""The loss of classifiers with or without class weights, their logits, their AUC in training."""

from __future__ import annotations

import torch
from torch import Tensor

from clocs.encoders.base import Encoder, Weights
from clocs.pretraining.losses import classification


def class_weights(targets: Tensor, multilabel: bool) -> Tensor:
    """targets: (rows, classes) of one member -> (classes,) weights.

    Single-label: all classes present have the same total weight. Multi-label: the positives of a
    class weigh as much as its negatives (the weight is that of a positive). A missing class has 1.
    """
    rows, positives = len(targets), targets.sum(dim=0).float()
    if multilabel:
        usable = (positives > 0) & (positives < rows)
        return torch.where(usable, (rows - positives) / positives.clamp(min=1), 1)
    present = positives > 0
    return torch.where(present, rows / (present.sum() * positives.clamp(min=1)), 1)


def classifier_loss(
    logits: Tensor,
    targets: Tensor,
    multilabel: bool,
    weights: Tensor | None = None,
    present: Tensor | None = None,
) -> Tensor:
    """(members,) mean loss.

    Args:
        logits: (members, rows, classes).
        targets: The same, or (rows, classes) where all members have the same rows.
        multilabel: Whether a row can have several classes.
        weights: (members, classes) from `class_weights`; None where all count the same.
        present: (members, rows) which rows count; all where None.
    """
    total, weight = summed_loss(logits, targets, multilabel, weights, present)
    return total / weight


def summed_loss(
    logits: Tensor,
    targets: Tensor,
    multilabel: bool,
    weights: Tensor | None = None,
    present: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """(members,) the sum of the losses and the sum of their weights, to be added up over pieces."""
    if weights is not None and multilabel:
        y = targets.to(logits.dtype)
        each = torch.nn.functional.softplus(logits) - logits * y
        losses = (each * (1 + y * (weights[:, None].to(logits.dtype) - 1))).mean(dim=-1)
    else:
        losses = classification(logits, targets, multilabel)
    share = torch.ones_like(losses) if present is None else present.to(losses.dtype)
    if weights is not None and not multilabel:
        share = share * (targets * weights[:, None]).sum(dim=-1).to(losses.dtype)
    return (losses * share).sum(dim=1), share.sum(dim=1)


def head_logits(encoder: Encoder, weights: Weights, buffers: Weights, x: Tensor) -> Tensor:
    """x: (members, n, …) as the encoder sees it -> (members, n, classes), in evaluation mode."""
    z = encoder.encode(weights, buffers, x)
    return torch.baddbmm(weights["head.bias"][:, None], z, weights["head.weight"])


class MacroAUC:
    """Logits of rows with known targets -> (members,) macro AUC."""

    def __init__(self, targets: Tensor, multilabel: bool) -> None:
        """targets: (rows, classes)."""
        self.multilabel = multilabel
        kinds = [(torch.nonzero(y)[:, 0], torch.nonzero(y == 0)[:, 0]) for y in targets.T]
        self.classes = [
            (c, *pair) for c, pair in enumerate(kinds) if min(len(rows) for rows in pair)
        ]

    def __call__(self, logits: Tensor, present: Tensor | None = None) -> Tensor:
        """logits: (members, rows, classes); present: (members, rows) which count, None for all.

        A class without positives or negatives among a member's rows is left out of its mean.
        """
        scores = logits.sigmoid() if self.multilabel else logits.softmax(dim=-1)
        own = torch.ones_like(scores[..., 0], dtype=torch.bool) if present is None else present
        total, classes = torch.zeros_like(scores[:, 0, 0]), torch.zeros_like(scores[:, 0, 0])
        for c, has, lacks in self.classes:
            # beyond all scores, those that do not count are below none
            below = scores[:, lacks, c].masked_fill(~own[:, lacks], torch.inf).sort(dim=1).values
            first, last = ranks_among(below, scores[:, has, c])
            positives, negatives = own[:, has].sum(dim=1), own[:, lacks].sum(dim=1)
            ranks = ((first + last) * own[:, has]).to(scores.dtype).sum(dim=1) / positives
            defined = (positives > 0) & (negatives > 0)
            total = total + torch.where(defined, ranks / (2 * negatives), 0)
            classes = classes + defined
        return total / classes  # nan where no class is defined


def ranks_among(ordered: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
    """How many of `ordered` are below each score, and how many are not above it."""
    scores = scores.contiguous()
    return (
        torch.searchsorted(ordered, scores),
        torch.searchsorted(ordered, scores, right=True),
    )
