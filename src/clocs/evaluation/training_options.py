"""Options that several protocols share."""

from __future__ import annotations

from clocs.registry import Option

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
