"""AUC of tensors, on any device: of resampled rows, and as a curve over epochs.

The same number as `metrics.auc`, made of sorting and searching alone: the host is never waited for,
so that it can be part of a CUDA graph.
"""

from __future__ import annotations

import torch
from torch import Tensor


def weighted_auc(
    positives: Tensor, negatives: Tensor, positive_weights: Tensor, negative_weights: Tensor
) -> Tensor:
    """(resamples,) AUC where each row counts as often as its weight says; ties count half.

    positives: (n,) scores, positive_weights: (resamples, n); negatives alike.
    """
    ordered, order = negatives.sort()
    below = negative_weights[:, order].double().cumsum(dim=1)
    below = torch.nn.functional.pad(below, (1, 0))
    own = positive_weights.double()
    first, last = _below(ordered, positives)
    above = (own * (below[:, first] + below[:, last])).sum(dim=1) / 2
    return above / (own.sum(dim=1) * below[:, -1])


class MacroAUC:
    """Logits of rows with known targets -> (members,) macro AUC."""

    def __init__(self, targets: Tensor, multilabel: bool) -> None:
        """targets: (rows, classes)."""
        self.multilabel = multilabel
        kinds = [(torch.nonzero(y)[:, 0], torch.nonzero(y == 0)[:, 0]) for y in targets.T]
        self.classes = [
            (c, *pair) for c, pair in enumerate(kinds) if min(len(rows) for rows in pair)
        ]

    def __call__(self, logits: Tensor) -> Tensor:
        """logits: (members, rows, classes)."""
        scores = logits.sigmoid() if self.multilabel else logits.softmax(dim=-1)
        total = torch.zeros_like(scores[:, 0, 0])
        for c, has, lacks in self.classes:
            first, last = _below(scores[:, lacks, c].sort(dim=1).values, scores[:, has, c])
            total = total + (first + last).to(scores.dtype).mean(dim=1) / (2 * len(lacks))
        return total / len(self.classes) if self.classes else total * torch.nan


def _below(ordered: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
    """How many of `ordered` are below each score, and how many are not above it."""
    scores = scores.contiguous()
    return (
        torch.searchsorted(ordered, scores),
        torch.searchsorted(ordered, scores, right=True),
    )
