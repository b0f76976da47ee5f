"""k nearest neighbours by cosine similarity: nothing is trained on top of the embeddings."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from clocs.errors import SettingError
from clocs.evaluation.protocol import EvaluationProtocol
from clocs.registry import Option

if TYPE_CHECKING:
    from torch import Tensor

    from clocs.evaluation.protocol_data import ProtocolInput, ProtocolOutput

_AT_ONCE = 50_000_000  # similarities held at a time


def predict(given: ProtocolInput, *, k: int) -> ProtocolOutput:
    from clocs.evaluation.protocol_data import ProtocolOutput

    train, *parts = given.embeddings()
    validation, test, *further = (
        np.stack(
            [
                votes(part.features[member], train.features[member, rows], train.targets[rows], k)
                .double()
                .cpu()
                .numpy()
                for member, rows in enumerate(given.labeled)
            ]
        )
        for part in parts
    )
    return ProtocolOutput(validation, test, test, further)


def votes(features: Tensor, known: Tensor, targets: Tensor, k: int) -> Tensor:
    """(rows, classes) the share of the k nearest labeled rows that have each class.

    features: (rows, dim) of one member, known: (labeled, dim), targets: (labeled, classes).
    """
    import torch

    from clocs.pretraining.losses import unit

    if not 1 <= k <= len(known):
        raise SettingError(
            f"`k` is {k}, but {len(known)} rows are labeled; give a `k` from 1 to {len(known)}"
        )
    own, bank, truth = unit(features), unit(known).T, targets.to(features.dtype)
    pieces = [
        truth[(some @ bank).topk(k, dim=1).indices].mean(dim=1)
        for some in own.split(max(1, _AT_ONCE // len(known)))
    ]
    # a zero vector is equally far from all rows: it gets the frequency of each class
    zero = (own == 0).all(dim=1, keepdim=True)
    return torch.where(zero, truth.mean(dim=0), torch.cat(pieces))


KNN = EvaluationProtocol(
    name="knn",
    help="vote of the nearest labeled frames by cosine similarity, nothing trained",
    predict=predict,
    options=(Option("k", 20, "Neighbors that vote", minimum=1),),
    class_weights=False,
)
