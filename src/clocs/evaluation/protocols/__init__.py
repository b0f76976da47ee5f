"""Evaluation protocols; the rows that the modules here declare are in `PROTOCOLS`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clocs.errors import find_row
from clocs.registry import Option, rows_in

if TYPE_CHECKING:
    from clocs.evaluation.labeled import ProtocolOutput


@dataclass(frozen=True)
class EvaluationProtocol:
    """A way to evaluate encoders.

    `predict` is called with a `ProtocolInput` and the protocol's own options by keyword, and
    predicts the validation and test rows.
    """

    name: str
    help: str  # what it does, as a phrase
    predict: Callable[..., ProtocolOutput]
    options: tuple[Option, ...] = ()
    trains: bool = False  # in epochs, by `Settings`
    class_weights: bool = True  # whether classes can be weighted
    against_untrained: bool = True  # whether untrained encoders are scored for comparison


HEAD_DROPOUT = Option(
    "head_dropout", 0.0, "Probability of dropout before the last layer", minimum=0, maximum=0.95
)
STOP_BY = Option(
    "stop_by",
    "loss",
    "Which validation score the kept epoch is the best by",
    choices=("loss", "auc"),
)

# the protocols by which classifiers are trained: of a layer on a frozen encoder, and of both
PROTOCOL_OF_HEAD = {"linear": "linear-converged", "whole": "finetune"}

PROTOCOLS = rows_in(__name__, EvaluationProtocol)


def find_protocol(name: str) -> EvaluationProtocol:
    """The row of that name."""
    return find_row(PROTOCOLS, name, "protocol")
