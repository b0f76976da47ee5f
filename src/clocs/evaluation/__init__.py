"""Evaluation: checkpoints and labelled frames -> honest scores, and whether they differ.

A protocol (linear, linear-converged, finetune, knn) asks encoders about validation and test rows;
scores, intervals over patients and paired tests are made of what they say.
"""

from clocs.evaluation.baseline import score_against_random
from clocs.evaluation.comparison import Comparison, compare, compare_all, holm
from clocs.evaluation.finetune import Classifiers
from clocs.evaluation.groups import (
    Scored,
    evaluate_frames,
    evaluate_groups,
    score_groups,
)
from clocs.evaluation.labelled_rows import By
from clocs.evaluation.predictions import Predictions
from clocs.evaluation.protocols import PROTOCOLS, Protocol
from clocs.evaluation.result import Evaluation

__all__ = [
    "PROTOCOLS",
    "By",
    "Classifiers",
    "Comparison",
    "Evaluation",
    "Predictions",
    "Protocol",
    "Scored",
    "compare",
    "compare_all",
    "evaluate_frames",
    "evaluate_groups",
    "holm",
    "score_against_random",
    "score_groups",
]
