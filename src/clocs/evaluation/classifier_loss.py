"""The loss of a classifier, optionally with class weights, so that rare classes count as much."""

from __future__ import annotations

import torch
from torch import Tensor

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
