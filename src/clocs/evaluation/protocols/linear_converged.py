"""Logistic regression on frozen embeddings, solved to convergence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clocs.evaluation.protocol import EvaluationProtocol

if TYPE_CHECKING:
    from clocs.evaluation.protocol_data import ProtocolInput, ProtocolOutput


def predict(given: ProtocolInput) -> ProtocolOutput:
    import torch

    from clocs.evaluation.logistic import fit_logistic

    (train, validation, test), weights = given.embeddings(), given.class_weights()
    fitted = [
        fit_logistic(
            train.features[member, rows],
            train.targets[rows],
            validation.features[member],
            validation.targets,
            multilabel=train.multilabel,
            class_weights=None if weights is None else weights[member],
        )
        for member, rows in enumerate(given.labelled)
    ]
    logits = [
        torch.stack([one.logits(part.features[m]) for m, one in enumerate(fitted)])
        for part in (validation, test)
    ]
    return given.output(*logits, per_member={"l2": [one.l2 for one in fitted]})


LINEAR_CONVERGED = EvaluationProtocol(
    name="linear-converged",
    help="the same layer solved to convergence, its L2 penalty chosen on validation",
    predict=predict,
)
