"""Logistic regression on frozen embeddings, solved to convergence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clocs.evaluation.protocol import EvaluationProtocol
from clocs.registry import Option

if TYPE_CHECKING:
    from torch import Tensor

    from clocs.evaluation.protocol_data import ProtocolInput, ProtocolOutput


_AT_ONCE = {"cpu": 1 << 24, "cuda": 1 << 28}  # numbers of the features of members solved together


def predict(given: ProtocolInput, *, strongest_l2: float) -> ProtocolOutput:
    import torch
    from torch.nn.utils.rnn import pad_sequence

    from clocs.evaluation.logistic import L2_STRENGTHS, fit_logistic

    (train, validation, *tests), weights = given.embeddings(), given.class_weights()
    rows = pad_sequence(given.labelled, batch_first=True)  # members may have different numbers
    present = pad_sequence([torch.ones_like(own) for own in given.labelled], batch_first=True)
    most = _AT_ONCE.get(given.device.type, 1 << 24)
    together = max(1, most // (rows.shape[1] * train.features.shape[2]))
    logits: list[list[Tensor]] = []
    l2: list[float] = []
    stronger = []  # ten times as strong each, above those that are always tried
    while L2_STRENGTHS[0] * 10 ** len(stronger) < strongest_l2:
        stronger.insert(0, L2_STRENGTHS[0] * 10 ** (len(stronger) + 1))
    for members in torch.arange(len(rows)).split(together):
        own = rows[members].to(train.targets.device)
        fitted = fit_logistic(
            train.features[members[:, None], own],
            train.targets[own],
            validation.features[members],
            validation.targets,
            multilabel=train.multilabel,
            present=present[members].to(own.device) > 0,
            class_weights=None if weights is None else weights[members],
            l2_strengths=(*stronger, *L2_STRENGTHS),
        )
        logits.append([fitted.logits(part.features[members]) for part in (validation, *tests)])
        l2 += fitted.l2
    return given.output(
        *(torch.cat(part) for part in zip(*logits, strict=True)), per_member={"l2": l2}
    )


LINEAR_CONVERGED = EvaluationProtocol(
    name="linear-converged",
    help="the same layer solved to convergence, its L2 penalty chosen on validation",
    predict=predict,
    options=(
        Option(
            "strongest_l2",
            1.0,
            "The strongest L2 penalty to choose from, such as 100 where labels are few",
            minimum=1,
            maximum=1e6,
        ),
    ),
)
