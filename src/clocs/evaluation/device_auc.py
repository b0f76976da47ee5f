"""Macro AUC on the device, for a curve over epochs: no word from the host, so it can be captured.

The same number as `metrics.auc_per_class`, made of sorting and searching alone. Knows nothing about
training.
"""

from __future__ import annotations

import torch
from torch import Tensor


class DeviceAUC:
    """Logits of rows whose targets are known beforehand -> (members,) macro AUC."""

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
            others = scores[:, lacks, c].sort(dim=1).values
            own = scores[:, has, c].contiguous()
            under = torch.searchsorted(others, own) + torch.searchsorted(others, own, right=True)
            total = total + under.to(scores.dtype).mean(dim=1) / (2 * len(lacks))
        return total / len(self.classes) if self.classes else total * torch.nan
