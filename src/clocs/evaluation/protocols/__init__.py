"""Evaluation protocols, one module each; all rows declared here are in `PROTOCOLS`."""

from __future__ import annotations

from clocs.errors import SettingError
from clocs.evaluation.protocol import EvaluationProtocol
from clocs.registry import rows_in

PROTOCOLS = rows_in(__name__, EvaluationProtocol)


def find_protocol(name: str) -> EvaluationProtocol:
    """The row of that name."""
    if name not in PROTOCOLS:
        raise SettingError(f"there is no protocol {name!r}; choose one of {', '.join(PROTOCOLS)}")
    return PROTOCOLS[name]
