"""Evaluation: checkpoints and labeled frames -> test scores, intervals and paired tests."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clocs.evaluation.comparison import compare, compare_all
    from clocs.evaluation.groups import evaluate_groups, score_groups
    from clocs.evaluation.result import Evaluation, Predictions

_MODULES = {
    "Evaluation": "result",
    "Predictions": "result",
    "compare": "comparison",
    "compare_all": "comparison",
    "evaluate_groups": "groups",
    "score_groups": "groups",
}

__all__ = [
    "Evaluation",
    "Predictions",
    "compare",
    "compare_all",
    "evaluate_groups",
    "score_groups",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'clocs.evaluation' has no attribute {name!r}")
    return getattr(import_module(f"clocs.evaluation.{_MODULES[name]}"), name)
