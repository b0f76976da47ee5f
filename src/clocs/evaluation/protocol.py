"""The row that a module of `clocs.evaluation.protocols` declares: how encoders are evaluated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clocs.registry import Option

if TYPE_CHECKING:
    from clocs.evaluation.protocol_data import ProtocolOutput


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
