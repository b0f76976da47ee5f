"""Words that the shell completes: models, methods, datasets, labels, and files.

Nothing here imports torch: methods and encoders are read from their source.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import click
from click.shell_completion import CompletionItem, split_arg_string

from clocs.cli.signatures import read_names
from clocs.errors import ClocsError

_ROWS = {  # what declares the names that a parameter takes
    "method": ("clocs.pretraining", "Method"),
    "encoder": ("clocs.encoders", "EncoderRow"),
    "protocol": ("clocs.evaluation", "EvaluationProtocol"),
}


def complete(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """The names that begin with what was typed, or, where there are none, files."""
    try:
        known = list(_known(context, str(parameter.name)))
    except (ClocsError, OSError, ValueError, LookupError):
        known = []
    found = [CompletionItem(name) for name in known if name.startswith(incomplete)]
    return found or [CompletionItem(incomplete, type="file")]


def _known(context: click.Context, parameter: str) -> Iterable[str]:
    known: Iterable[str] = ()
    match context.info_name, parameter:
        case _, "method" | "encoder" | "protocol":
            known = read_names(*_ROWS[parameter])
        case "prepare", "name":
            known = read_names("clocs.datasets", "DatasetRow")
        case "download", "name":
            from clocs.datasets.download import PUBLICATIONS

            known = PUBLICATIONS
        case "reproduce", "names":
            from clocs.experiments.grid import NAMES

            known = (*NAMES, "report")
        case (_, "model" | "models" | "checkpoint") | ("info", "path"):
            from clocs.training.card import SHIPPED

            known = SHIPPED
        case _, "label":
            known = _labels(context.info_name)
    return known


def _labels(command: str | None) -> Iterable[str]:
    """Those of the classifier or the index that was typed after the command.

    They are taken from what was typed: click parses nothing where an option still lacks its value.
    """
    given = split_arg_string(os.environ["COMP_WORDS"])[2]
    if command == "predict":
        from clocs.training.card import read_classifier_card

        return read_classifier_card(given).labels
    import polars as pl

    (rows,) = Path(given, "patient").glob("rows-*.parquet")
    labels: list[str] = pl.read_parquet(rows)["labels"].explode().drop_nulls().unique().to_list()
    return sorted(labels)
