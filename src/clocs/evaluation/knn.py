"""k nearest neighbours: what embeddings know without anything being learned on top of them.

Cosine similarity; a row's score for a class is the share of its k nearest labelled rows that have
it, each vote counting the same, label by label. Knows nothing about encoders.
"""

from __future__ import annotations

import torch
from torch import Tensor

from clocs.errors import SettingError
from clocs.pretraining.losses import unit

_AT_ONCE = 50_000_000  # similarities held at a time


def votes(features: Tensor, known: Tensor, targets: Tensor, k: int) -> Tensor:
    """One member's (rows, classes) shares of neighbours that have each label.

    Args:
        features: (rows, dim) embeddings to judge.
        known: (labelled, dim) embeddings of labelled rows.
        targets: (labelled, classes).
        k: How many neighbours.
    """
    if not 1 <= k <= len(known):
        raise SettingError(
            f"k is {k}, but {len(known)} rows are labelled; give a k from 1 to that number"
        )
    own, bank, truth = unit(features), unit(known).T, targets.to(features.dtype)
    pieces = [
        truth[(some @ bank).topk(k, dim=1).indices].mean(dim=1)
        for some in own.split(max(1, _AT_ONCE // len(known)))
    ]
    # a zero vector is as far from everyone: it knows no more than how common a label is
    dead = (own == 0).all(dim=1, keepdim=True)
    return torch.where(dead, truth.mean(dim=0), torch.cat(pieces))
