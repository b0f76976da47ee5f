"""Logistic regression on frozen embeddings, solved to convergence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clocs.evaluation.protocol import EvaluationProtocol
from clocs.registry import Option

if TYPE_CHECKING:
    from clocs.evaluation.protocol_data import ProtocolInput, ProtocolOutput


def predict(given: ProtocolInput, *, strongest_l2: float) -> ProtocolOutput:
    from clocs.evaluation.logistic import fit_members

    (train, validation, *tests), weights = given.embeddings(), given.class_weights()
    fitted = fit_members(
        train, validation, given.labeled, class_weights=weights, strongest_l2=strongest_l2
    )
    logits = [fitted.logits(part.features) for part in (validation, *tests)]
    return given.output(
        *logits,
        per_member={"l2": list(fitted.l2)},
        classifiers=given.on_frozen(*fitted.layers()),
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
