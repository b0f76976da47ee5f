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

    Attributes:
        name: For Python and the command line.
        help: What it does, as a phrase.
        predict: Called with a `ProtocolInput` and the protocol's options by keyword; predicts the
            validation and test rows.
        options: Its own options.
        trains: Whether it trains in epochs, by `Settings`.
        class_weights: Whether classes can be weighted.
        against_untrained: Whether untrained encoders are scored for comparison.
    """

    name: str
    help: str
    predict: Callable[..., ProtocolOutput]
    options: tuple[Option, ...] = ()
    trains: bool = False
    class_weights: bool = True
    against_untrained: bool = True
